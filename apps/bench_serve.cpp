// keel bench serve: load on a server that runs already, over HTTP.
#include <fmt/format.h>

#include <cmath>
#include <cstdlib>

#include "base/error.h"
#include "base/log.h"
#include "base/random.h"
#include "bench.h"
#include "lab/openai_load.h"

namespace keel {
namespace {

struct ServeBenchFlags {
  BenchFlags bench;
  WorkloadFlags workload;
  std::string base_url, host = "127.0.0.1", endpoint = "/v1/completions", model;
  std::uint16_t port = 8000;
  double request_rate = INFINITY, burstiness = 1;
  std::int64_t max_concurrency = 0, vocabulary = 0, request_timeout_s = 3600, warmups = 1;
  bool ignore_eos = true;
  std::uint64_t seed = 0;
};

constexpr std::chrono::seconds kCardTimeout{10};
constexpr double kLongestRunS = 1e9;  // which a clock can count
constexpr std::int64_t kVocabularyOfStrangers = 10'000;  // ids every model in use today has

ServerAddress address_of(const ServeBenchFlags& flags) {
  const std::string given = ServerAddress{.host = flags.host, .port = std::to_string(flags.port)}.url();
  Result<ServerAddress> address = parse_base_url(flags.base_url.empty() ? given : flags.base_url);
  if (!address) throw CLI::ValidationError("--base-url: " + address.error());
  if (const char* key = std::getenv("OPENAI_API_KEY")) address->api_key = key;
  return *address;
}

// The server's card of the model, from /v1/models beside the endpoint: the named one, or its first. Null when the server
// has no such list or does not list the name.
nlohmann::json model_card(const ServerAddress& address, const ServeBenchFlags& flags) {
  const std::size_t slash = flags.endpoint.rfind("/completions");
  const std::string path = (slash == std::string::npos ? "/v1" : flags.endpoint.substr(0, slash)) + "/models";
  const HttpReply reply = http_get(address, path, kCardTimeout);
  if (reply.status == 401) fail("{}{}: HTTP 401: the server wants a key: set OPENAI_API_KEY", address.url(), path);
  const nlohmann::json list = nlohmann::json::parse(reply.body, nullptr, false);
  if (reply.status != 200 || !list.is_object() || !list.contains("data") || !list["data"].is_array()) return nullptr;
  for (const nlohmann::json& card : list["data"]) {
    if (card.is_object() && card.contains("id") && card["id"].is_string() && (flags.model.empty() || card["id"] == flags.model)) {
      return card;
    }
  }
  return nullptr;
}

LoadPlan plan_of(const ServeBenchFlags& flags, const RandomWorkload& workload, std::int64_t run) {
  const std::uint64_t seed = random_u64(flags.seed, run);
  LoadPlan plan{.path = flags.endpoint,
                .due_s = arrival_times(workload.prompts, flags.request_rate, flags.burstiness, seed),
                .max_concurrency = flags.max_concurrency,
                .request_timeout = std::chrono::seconds(flags.request_timeout_s)};
  if (const double last = plan.due_s.back(); !(last <= kLongestRunS)) {
    throw CLI::ValidationError(fmt::format("--request-rate {}, --burstiness {}: the last request would be sent after {:.3g} s", flags.request_rate, flags.burstiness, last));
  }
  const CompletionSettings settings{flags.model, flags.bench.temperature, flags.ignore_eos};
  for (const WorkItem& item : random_items(workload, seed)) plan.bodies.push_back(completion_body(item, settings).dump());
  return plan;
}

void report(const ServeBenchFlags& flags,
            const ServerAddress& address,
            const nlohmann::json& card,
            const std::vector<RequestTimes>& requests,
            std::int64_t run,
            RecordFile& file) {
  const MetricChoice choice = flags.bench.metric_choice();
  const RunFigures figures = figures_of(requests, duration_of(requests));
  ResultBlock block("Serving Benchmark Result");
  block.row("Successful requests", figures.completed);
  block.row("Failed requests", figures.failed);
  if (flags.max_concurrency > 0) block.row("Maximum request concurrency", flags.max_concurrency);
  if (std::isfinite(flags.request_rate)) block.row("Request rate configured (RPS)", flags.request_rate);
  block.add_requests(figures);
  if (flags.max_concurrency > 0) block.row("Mean wait before sending (ms)", figures.wait_s.mean() * 1e3);
  block.add_metrics(figures, choice);
  fmt::print("{}", block.text());
  std::fflush(stdout);

  RecordJson record = record_head("serve", run);
  record["url"] = address.url() + flags.endpoint;
  record["model"] = flags.model;
  record["server_model_card"] = RecordJson::parse(card.dump());
  record["seed"] = flags.seed;
  record["workload"] = as_json(flags.workload.random);
  record["workload"]["temperature"] = flags.bench.temperature;
  record["workload"]["ignore_eos"] = flags.ignore_eos;
  record["workload"]["warmup_prompts"] = flags.warmups;
  record["request_rate"] = std::isfinite(flags.request_rate) ? RecordJson(flags.request_rate) : RecordJson("inf");
  record["burstiness"] = flags.burstiness;
  record["max_concurrency"] = flags.max_concurrency > 0 ? RecordJson(flags.max_concurrency) : RecordJson();
  record["figures"] = as_json(figures, choice);
  record["requests"] = requests_as_json(requests, flags.bench.save_detailed);
  file.add(record);
}

void check_flags(const ServeBenchFlags& flags) {
  if (flags.endpoint.empty() || flags.endpoint[0] != '/') {
    throw CLI::ValidationError("--endpoint: wanted a path such as /v1/completions, found '" + flags.endpoint + "'");
  }
  if (flags.endpoint.find("/chat/") != std::string::npos) {
    throw CLI::ValidationError("--endpoint: prompts are token ids, which chat completions do not take: use /v1/completions");
  }
  if (!(flags.request_rate > 0)) throw CLI::ValidationError("--request-rate: wanted more than 0, or inf");
  if (!(flags.burstiness > 0) || std::isinf(flags.burstiness)) throw CLI::ValidationError("--burstiness: wanted more than 0");
}

void serve(ServeBenchFlags& flags) {
  check_flags(flags);
  const ServerAddress address = address_of(flags);
  RecordFile file(flags.bench.output_json);
  const nlohmann::json card = model_card(address, flags);
  if (flags.model.empty() && card.is_null()) fail("{} lists no model: name one with --model", address.url());
  if (flags.model.empty()) flags.model = card["id"];
  RandomWorkload& workload = flags.workload.random;
  workload.vocabulary = flags.vocabulary > 0 ? flags.vocabulary
                        : card.is_object()   ? card.value("vocab_size", kVocabularyOfStrangers)
                                             : kVocabularyOfStrangers;
  log_info("{}{}, model {}; prompts of ids below {}", address.url(), flags.endpoint, flags.model, workload.vocabulary);

  // Warm-up requests, the first of which shows whether the server can be measured at all.
  for (std::int64_t i = 0; i < flags.warmups; ++i) {
    RandomWorkload one = workload;
    one.prompts = 1;
    ServeBenchFlags first = flags;
    first.seed = random_u64(flags.seed, -1 - i);
    const std::vector<RequestTimes> tried = run_load(address, plan_of(first, one, 0));
    if (!tried[0].error.empty()) fail("{}{}: the warm-up request failed: {}", address.url(), flags.endpoint, tried[0].error);
  }
  bool failed = false;
  ProgressBar progress("requests", flags.bench.repeat * workload.prompts);
  for (std::int64_t run = 1; run <= flags.bench.repeat; ++run) {
    const std::vector<RequestTimes> requests = run_load(address, plan_of(flags, workload, run), [&] { progress.advance(1); });
    report(flags, address, card, requests, run, file);
    failed |= report_failures(requests);
  }
  if (failed) throw CLI::RuntimeError(1);
}

}  // namespace

void add_bench_serve(CLI::App& bench) {
  auto flags = std::make_shared<ServeBenchFlags>();
  CLI::App* command = bench.add_subcommand("serve", "Load on a running OpenAI-compatible server");
  command->add_option("--base-url", flags->base_url, "http://HOST[:PORT][/PATH], instead of --host and --port");
  command->add_option("--host", flags->host, "The server's address")->capture_default_str();
  command->add_option("--port", flags->port, "The server's port")->check(CLI::Range(1, 65535))->capture_default_str();
  command->add_option("--endpoint", flags->endpoint, "Path of the completions endpoint")->capture_default_str();
  command->add_option("-m,--model", flags->model, "Name the requests use (the first the server lists)");
  command->add_option("--request-rate", flags->request_rate, "Requests a second; inf = all at once")->capture_default_str();
  command->add_option("--burstiness", flags->burstiness, "Shape of the gaps between requests: 1 = Poisson, less = bursts")->capture_default_str();
  command->add_option("--max-concurrency", flags->max_concurrency, "Requests on their way at once; others wait for a place (no limit)")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 20));
  command->add_option("--vocab-size", flags->vocabulary, "Prompts use ids below this (what the server's model card says, else 10000)")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 30));
  command->add_option("--num-warmups", flags->warmups, "Requests before those that are measured")
      ->check(CLI::Range(std::int64_t{0}, std::int64_t{1} << 20))
      ->capture_default_str();
  command->add_option("--request-timeout", flags->request_timeout_s, "Seconds after which a request counts as failed")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 30))
      ->capture_default_str();
  command->add_flag("--ignore-eos,!--no-ignore-eos", flags->ignore_eos, "Answers go on to their length (on)");
  command->add_option("--seed", flags->seed, "Seed of prompts and arrivals")->check(whole_number())->capture_default_str();
  flags->workload.add_to(*command);
  flags->bench.add_to(*command);
  command->footer("A key for the server is taken from OPENAI_API_KEY.");
  command->callback([flags] { serve(*flags); });
}

}  // namespace keel
