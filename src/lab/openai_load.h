// Load on any OpenAI-compatible endpoint: streamed completions sent at given times, timed as the client sees them.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "lab/request_times.h"
#include "lab/workload.h"

namespace keel {

struct ServerAddress {
  std::string host, port;
  std::string prefix;   // of every path; "" or "/proxy"
  std::string api_key;  // sent as a bearer token when not empty

  std::string authority() const;  // "host:port"
  std::string url() const;
};

// "http://host[:port][/prefix]"; TLS is refused by name.
Result<ServerAddress> parse_base_url(std::string_view url);

struct HttpReply {
  int status;
  std::string body;
};
// Throws Error, naming the endpoint, when there is no answer.
HttpReply http_get(const ServerAddress& address, std::string_view path, std::chrono::seconds timeout);
HttpReply http_post(const ServerAddress& address, std::string_view path, std::chrono::seconds timeout);  // without a body

struct CompletionSettings {
  std::string model;
  double temperature = 0;
  bool ignore_eos = true;
};
nlohmann::json completion_body(const WorkItem& item, const CompletionSettings& settings);

struct LoadPlan {
  std::string path;                  // such as /v1/completions
  std::vector<std::string> bodies;   // JSON of streaming requests
  std::vector<double> due_s;         // one a body, ascending
  std::int64_t max_concurrency = 0;  // requests on their way at once; 0 = no limit
  std::chrono::seconds request_timeout{3600};
};

// A request whose connection, status, events or end are not as they should be carries the reason in `error`. Each has a
// connection of its own, and making it is part of its time. Times are taken when bytes are read, on one thread.
std::vector<RequestTimes> run_load(const ServerAddress& address, const LoadPlan& plan, const std::function<void()>& on_end = {});

}  // namespace keel
