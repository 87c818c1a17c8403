#include "server/server.h"

#include <atomic>
#include <csignal>
#include <cstdlib>
#include <ctime>
#include <thread>

#include <boost/asio/post.hpp>
#include <boost/asio/signal_set.hpp>

#include "base/error.h"
#include "base/log.h"
#include "server/http_server.h"
#include "server/openai/api.h"
#include "server/openai/chat.h"
#include "server/openai/completions.h"
#include "server/openai/generate.h"
#include "server/openai/models.h"
#include "server/version.h"

namespace keel {
namespace {

ServerOptions with_environment(ServerOptions options) {
  if (const char* key = std::getenv("KEEL_API_KEY"); key != nullptr && *key != '\0') options.api_keys.emplace_back(key);
  return options;
}

const Tokenizer& tokenizer_of(const Engine& engine) {
  if (engine.tokenizer() == nullptr) fail("the server needs a tokenizer; {} has none", engine.attestation().model);
  return *engine.tokenizer();
}

std::vector<std::string> names_of(const Engine& engine, const ServerOptions& options) {
  if (!options.served_model_names.empty()) return options.served_model_names;
  return {engine.attestation().model};
}

HttpLimits limits_of(const ServerOptions& options) { return {.body_bytes = options.max_body_bytes}; }

}  // namespace

struct Server::Parts {
  Parts(Engine& engine, const ChatTemplate* chat_template, ServerOptions given)
      : options(with_environment(std::move(given))),
        api{.engine = engine,
            .tokenizer = tokenizer_of(engine),
            .chat_template = chat_template,
            .options = options,
            .models = names_of(engine, options),
            .started = std::time(nullptr),
            .metrics = Metrics(engine.attestation(), names_of(engine, options).front(), options.vllm_metric_names),
            .io = io},
        router(options.api_keys),
        http(io, router, limits_of(options), [this](auto path, auto method, unsigned status) {
          api.metrics.http_request(path, method, status);
        }) {
    add_routes();
  }

  void add_routes();
  void drive_engine();
  void engine_failed(const std::string& reason);
  void begin_drain(std::chrono::milliseconds timeout);
  void end_requests();
  void await_signal();
  void refuse_when_draining() const;

  ServerOptions options;
  asio::io_context io{1};
  Api api;
  Router router;
  HttpServer http;
  asio::steady_timer drain_timer{io};
  asio::signal_set signals{io};
  std::atomic<bool> draining = false;
  std::atomic<bool> cut_short = false;
  std::atomic<bool> connections_ended = false;
  std::thread io_thread, engine_thread;
};

void Server::Parts::refuse_when_draining() const {
  if (draining) throw RequestError({503, "the server is shutting down"});
}

void Server::Parts::add_routes() {
  const auto text = [](std::string body, unsigned status = 200) {
    return HttpResponse{.status = status, .body = std::move(body), .content_type = "text/plain; charset=utf-8"};
  };
  router.add({http::verb::get, "/health",
              [this, text](const HttpRequest&) { return draining ? text("draining\n", 503) : text("ok\n"); }, true});
  router.add({http::verb::get, "/metrics",
              [this](const HttpRequest&) {
                return HttpResponse{.body = api.metrics.text(api.engine.stats()),
                                    .content_type = "text/plain; version=0.0.4; charset=utf-8"};
              },
              true});
  router.add({http::verb::get, "/version",
              [](const HttpRequest&) { return json_response({{"version", kVersion}}); }});
  router.add({http::verb::get, "/v1/models", [this](const HttpRequest&) { return json_response(model_list(api)); }});
  router.add({http::verb::get, "/v1/models/*", [this](const HttpRequest& request) {
                const std::string name(path_of(request.base()).substr(std::string_view("/v1/models/").size()));
                check_model(api, name);
                return json_response(model_card(api, name));
              }});

  const auto generating = [this](auto read) -> WaitingHandler {
    return [this, read](const HttpRequest& request, Reply& reply) -> asio::awaitable<void> {
      refuse_when_draining();
      AnswerPlan plan = co_await on_reader(api, [&] { return read(api, request.body()); });
      co_await generate(api, std::move(plan), reply);
    };
  };
  router.add({http::verb::post, "/v1/completions", generating(read_completion)});
  router.add({http::verb::post, "/v1/chat/completions", generating(read_chat)});

  const auto converting = [this](auto convert) -> WaitingHandler {
    return [this, convert](const HttpRequest& request, Reply& reply) -> asio::awaitable<void> {
      const Json answer = co_await on_reader(api, [&] { return convert(api, request.body()); });
      co_await reply.send(json_response(answer));
    };
  };
  router.add({http::verb::post, "/tokenize", converting(tokenize)});
  router.add({http::verb::post, "/detokenize", converting(detokenize)});
}

void Server::Parts::drive_engine() try {
  while (true) {
    if (api.engine.has_work()) {
      api.engine.step();
    } else if (connections_ended) {
      return;
    } else if (draining) {  // wait_for_work returns at once after stop()
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    } else {
      api.engine.wait_for_work(std::chrono::milliseconds(100));
    }
  }
} catch (const std::exception& error) {
  asio::post(io, [this, reason = std::string(error.what())] { engine_failed(reason); });
}

// Nothing is known of the engine's state any more, so nobody can be served: the clients are told, then the server ends.
void Server::Parts::engine_failed(const std::string& reason) {
  log_line("error", fmt::format("the engine failed and the server ends: {}", reason));
  cut_short = true;
  for (OutputQueue* queue : api.open) queue->end({500, "the engine failed: " + reason});
  begin_drain(std::chrono::seconds(1));
}

// On the connections' thread, like the next.
void Server::Parts::begin_drain(std::chrono::milliseconds timeout) {
  const bool already = draining.exchange(true);
  if (already && drain_timer.expiry() <= std::chrono::steady_clock::now() + timeout) return;  // the sooner end counts
  log_info("draining: {} requests have {:.1f} s to finish", api.open.size(),
           std::chrono::duration<double>(timeout).count());
  api.engine.stop();
  drain_timer.expires_after(timeout);
  drain_timer.async_wait([this](const boost::system::error_code& error) {
    if (!error) end_requests();
  });
  if (already) return;
  http.drain([this] {
    drain_timer.cancel();
    io.stop();
  });
}

void Server::Parts::await_signal() {
  signals.async_wait([this](const boost::system::error_code& error, int) {
    if (error) return;
    if (draining) {
      log_warning("second signal: ending at once");
      std::_Exit(130);
    }
    begin_drain(options.shutdown_timeout);
    await_signal();
  });
}

// Tells the clients first, then closes what is still open a second later.
void Server::Parts::end_requests() {
  if (!api.open.empty()) {
    cut_short = true;
    log_warning("cancelling {} requests that outlast the drain", api.open.size());
  }
  for (OutputQueue* queue : api.open) queue->end({503, "the request was cancelled: the server is shutting down"});
  drain_timer.expires_after(std::chrono::seconds(1));
  drain_timer.async_wait([this](const boost::system::error_code& error) {
    if (!error) http.close_all();
  });
}

Server::Server(Engine& engine, const ChatTemplate* chat_template, ServerOptions options)
    : parts_(std::make_unique<Parts>(engine, chat_template, std::move(options))) {}

Server::~Server() {
  if (!parts_->io_thread.joinable()) return;
  drain(std::chrono::milliseconds(0));
  wait();
}

void Server::start() {
  Parts& parts = *parts_;
  parts.http.listen(parts.options.host, parts.options.port);
  const bool local = parts.options.host == "localhost" || parts.options.host.starts_with("127.") || parts.options.host == "::1";
  if (!local && parts.options.api_keys.empty()) {
    log_warning("listening on {} without an API key: whoever reaches port {} may use this server", parts.options.host,
                port());
  }
  parts.engine_thread = std::thread([&parts] { parts.drive_engine(); });
  parts.io_thread = std::thread([&parts] {
    parts.io.run();
    parts.connections_ended = true;
  });
}

std::uint16_t Server::port() const { return parts_->http.port(); }

void Server::drain() { drain(parts_->options.shutdown_timeout); }

void Server::drain(std::chrono::milliseconds timeout) {
  asio::post(parts_->io, [parts = parts_.get(), timeout] { parts->begin_drain(timeout); });
}

bool Server::wait() {
  if (parts_->io_thread.joinable()) parts_->io_thread.join();
  if (parts_->engine_thread.joinable()) parts_->engine_thread.join();
  parts_->api.reader.join();
  return !parts_->cut_short;
}

void Server::drain_on_signals() {
  asio::post(parts_->io, [parts = parts_.get()] {
    parts->signals.add(SIGTERM);
    parts->signals.add(SIGINT);
    parts->await_signal();
  });
}

int run_server(Engine& engine, const ChatTemplate* chat_template, ServerOptions options) {
  const std::string host = options.host;
  Server server(engine, chat_template, std::move(options));
  server.start();
  server.drain_on_signals();
  log_info("serving on http://{}:{}", host.find(':') == std::string::npos ? host : "[" + host + "]", server.port());
  const bool all_finished = server.wait();
  log_info("stopped");
  return all_finished ? 0 : 1;
}

}  // namespace keel
