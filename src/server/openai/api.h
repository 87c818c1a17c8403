// What every endpoint works with.
#pragma once

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/thread_pool.hpp>
#include <boost/asio/use_awaitable.hpp>
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

// Runs `work` on the reader's thread; the caller goes on on its own. Exceptions come back too.
template <class Work>
boost::asio::awaitable<std::invoke_result_t<Work>> on_reader(Api& api, Work work) {
  using Result = std::invoke_result_t<Work>;
  auto task = [&work]() -> boost::asio::awaitable<Result> { co_return work(); };
  co_return co_await boost::asio::co_spawn(api.reader, task, boost::asio::use_awaitable);
}

}  // namespace keel
