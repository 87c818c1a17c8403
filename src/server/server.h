// The OpenAI-compatible server: HTTP in front of one engine.
//
// Threads: one for all connections (Asio), one that drives the engine, one that reads request bodies (JSON, template,
// tokens), so that a long prompt delays no open stream. A connection costs no thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "text/chat_template.h"

namespace keel {

struct ServerOptions {
  std::string host = "127.0.0.1";
  std::uint16_t port = 8000;                    // 0 = any free one
  std::vector<std::string> api_keys;            // none: open to whoever reaches the port; KEEL_API_KEY adds one
  std::vector<std::string> served_model_names;  // names a request may use, the first is reported; empty = the engine's
  std::size_t max_body_bytes = 16 << 20;
  std::chrono::seconds shutdown_timeout{30};    // for running requests, once a drain began
  bool vllm_metric_names = false;               // metrics as "vllm:…" instead of "keel:…"
  bool model_sampling_defaults = true;          // generation_config.json's temperature and so on
  std::size_t max_backlog_outputs = 1024;       // per request, not yet taken by its client; past it: cancelled
  std::chrono::milliseconds ping_interval{15'000};  // SSE comment on a silent stream
};

class Server {
 public:
  // `chat_template` may be null: then chat requests are refused. Both references outlive the server. Throws Error for
  // an engine without a tokenizer.
  Server(Engine& engine, const ChatTemplate* chat_template, ServerOptions options);
  ~Server();  // drains, without patience

  void start();                // throws Error when the address cannot be bound
  std::uint16_t port() const;  // the real one, once started

  // Any thread. Stops accepting and the engine's intake; running requests go on until the timeout, then are cancelled. Of
  // several calls the soonest end counts.
  void drain();
  void drain(std::chrono::milliseconds timeout);
  void drain_on_signals();  // from now SIGTERM and SIGINT drain; a second one ends the process at once
  bool wait();  // returns when drained; false when requests had to be cancelled or the engine failed

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

// Serves until SIGTERM or SIGINT, then drains; a second signal ends the process at once. Returns the exit code: 0, or 1
// where requests had to be cancelled or the engine failed.
int run_server(Engine& engine, const ChatTemplate* chat_template, ServerOptions options);

}  // namespace keel
