// What every endpoint works with.
#pragma once

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/thread_pool.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <exception>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "server/metrics.h"
#include "server/output_queue.h"
#include "server/server.h"

namespace keel {

struct Api {
  Engine& engine;
  const Tokenizer& tokenizer;
  const ChatTemplate* chat_template;  // may be null
  ServerOptions options;
  std::vector<std::string> models;  // served names, at least one
  std::int64_t started;             // Unix time
  Metrics metrics;
  boost::asio::io_context& io;      // the connections' thread
  boost::asio::thread_pool reader{1};  // where bodies become requests
  std::set<OutputQueue*> open;      // of requests being answered; the connections' thread
};

// Runs `work` on the reader's thread; the caller goes on on its own. Exceptions come back too. A caller that is
// cancelled meanwhile learns of it afterwards: `work` is never abandoned, so it may refer to the caller's frame.
template <class Work>
boost::asio::awaitable<std::invoke_result_t<Work>> on_reader(Api& api, Work work) {
  namespace asio = boost::asio;
  std::optional<std::invoke_result_t<Work>> result;
  std::exception_ptr failure;
  auto start = [&](auto handler) {
    asio::post(api.reader, [&, guard = asio::make_work_guard(handler), handler = std::move(handler)]() mutable {
      try {
        result.emplace(work());
      } catch (...) {
        failure = std::current_exception();
      }
      asio::post(std::move(handler));
    });
  };
  co_await asio::async_initiate<const asio::use_awaitable_t<>, void()>(start, asio::use_awaitable);
  if (failure) std::rethrow_exception(failure);
  co_return std::move(*result);
}

}  // namespace keel
