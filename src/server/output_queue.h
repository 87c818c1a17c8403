// From the engine's thread to the connection's: what a request's choices gave, not yet taken.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "engine/request.h"
#include "server/openai/errors.h"

namespace keel {

// push never blocks, and the backlog is bounded: past `limit` outputs everything is dropped and `overflow` is called
// (on the engine's thread, once). Made with make_shared: the answer owns it, the engine's thread borrows it for a push.
class OutputQueue : public std::enable_shared_from_this<OutputQueue> {
 public:
  struct Item {
    std::size_t prompt;  // which of the HTTP request's prompts
    Output output;
    std::chrono::steady_clock::time_point when;
  };

  OutputQueue(boost::asio::io_context& io, std::size_t limit, std::function<void()> overflow);

  void push(std::size_t prompt, const Output& output);  // the engine's thread

  // The connections' thread. Waits for at least one output; nothing after `timeout`.
  boost::asio::awaitable<std::vector<Item>> take(std::chrono::milliseconds timeout);
  // The connections' thread: no more will come, because of `reason`. The first reason stays.
  void end(ApiError reason);
  const std::optional<ApiError>& ended() const { return ended_; }

 private:
  boost::asio::io_context& io_;
  const std::size_t limit_;
  const std::function<void()> overflow_;
  boost::asio::steady_timer arrival_;  // cancelled to wake the waiting side
  std::optional<ApiError> ended_;

  std::mutex mutex_;
  std::vector<Item> items_;  // guarded by mutex_, like the two below
  bool waiting_ = false;
  bool overflowed_ = false;
};

}  // namespace keel
