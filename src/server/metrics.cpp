#include "server/metrics.h"

#include <prometheus/text_serializer.h>

#include "server/version.h"

namespace keel {
namespace {

const std::vector<double> kFirstTokenSeconds = {.001, .005, .01, .02, .04, .06, .08, .1, .25, .5, .75,
                                                1,    2.5,  5,   7.5, 10,  20,  40,  80, 160, 640, 2560};
const std::vector<double> kTokenSeconds = {.01, .025, .05, .075, .1, .15, .2, .3, .4, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80};
const std::vector<double> kRequestSeconds = {.3, .5, .8, 1,  1.5, 2,   2.5, 5,   10,  15,   20,
                                             30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680};

// 1, 2, 5, 10, 20, 50, … up to the longest sequence.
std::vector<double> token_bounds(std::int64_t longest) {
  std::vector<double> bounds;
  for (double decade = 1;; decade *= 10) {
    for (const double step : {1., 2., 5.}) {
      if (step * decade > static_cast<double>(longest)) return bounds;
      bounds.push_back(step * decade);
    }
  }
}

void raise_to(prometheus::Counter& counter, std::int64_t total) {
  const double more = static_cast<double>(total) - counter.Value();
  if (more > 0) counter.Increment(more);
}

}  // namespace

Metrics::Metrics(const Attestation& attestation, const std::string& model_name, bool vllm_names)
    : prefix_(vllm_names ? "vllm:" : "keel:"), labels_{{"model_name", model_name}, {"engine", "0"}} {
  first_token_ = &histogram("time_to_first_token_seconds", "Time to first token", kFirstTokenSeconds);
  next_token_ = &histogram("inter_token_latency_seconds", "Time between a choice's tokens", kTokenSeconds);
  token_time_ = &histogram("request_time_per_output_token_seconds", "Mean time per token after the first, per choice",
                           kTokenSeconds);
  whole_ = &histogram("e2e_request_latency_seconds", "Time from submission to the last token", kRequestSeconds);
  queue_ = &histogram("request_queue_time_seconds", "Time from submission until a choice first runs", kRequestSeconds);
  prefill_ = &histogram("request_prefill_time_seconds", "Time from when a choice first runs to its first token", kRequestSeconds);
  inference_ = &histogram("request_inference_time_seconds", "Time from when a choice first runs to its last token", kRequestSeconds);
  decode_ = &histogram("request_decode_time_seconds", "Time from the first token to the last", kRequestSeconds);
  const auto bounds = token_bounds(attestation.max_model_len);
  prompt_tokens_ = &histogram("request_prompt_tokens", "Prompt tokens of a finished choice", bounds);
  generation_tokens_ = &histogram("request_generation_tokens", "Generated tokens of a finished choice", bounds);
  overflows_ = &counter("client_overflows_total", "Requests cancelled because the client did not read its stream");
  describe_engine(attestation);
}

void Metrics::describe_engine(const Attestation& attestation) {
  gauge("cache_config_info", "What the KV cache really is; always 1",
        {{"key_dtype", std::string(name(attestation.format.key))},
         {"value_dtype", std::string(name(attestation.format.value))},
         {"cache_dtype", short_name(attestation.format)},
         {"scales", attestation.scales},
         {"bytes_per_token", std::to_string(attestation.bytes_per_token)},
         {"block_size", std::to_string(attestation.page_size)},
         {"num_blocks", std::to_string(attestation.pages)},
         {"pool_bytes", std::to_string(attestation.pool_bytes)},
         {"weights_format", attestation.weights_format},
         {"device", attestation.device},
         {"cpu_target", attestation.cpu_target},
         {"version", kVersion}})
      .Set(1);
  const DeviceMemory& memory = attestation.device_memory;
  if (memory.total == 0) return;
  const char* help = "The GPU's memory once the engine was ready: held for weights, workspace and cache, in use by others (context, modules, graphs, programs), free";
  const std::pair<const char*, std::int64_t> uses[] = {{"weights", memory.weights}, {"workspace", memory.workspace}, {"cache", memory.cache},
                                                       {"other", memory.other()}, {"free", memory.total - memory.in_use}};
  for (const auto& [use, bytes] : uses) gauge("device_memory_bytes", help, {{"use", use}}).Set(static_cast<double>(bytes));
  gauge("device_memory_peak_bytes", "The most of weights, workspace and cache held at once until the engine was ready").Set(static_cast<double>(memory.peak));
}

prometheus::Gauge& Metrics::gauge(const std::string& name, const std::string& help, prometheus::Labels labels) {
  labels.insert(labels_.begin(), labels_.end());
  return prometheus::BuildGauge().Name(prefix_ + name).Help(help).Register(registry_).Add(labels);
}

prometheus::Counter& Metrics::counter(const std::string& name, const std::string& help, prometheus::Labels labels) {
  labels.insert(labels_.begin(), labels_.end());
  return prometheus::BuildCounter().Name(prefix_ + name).Help(help).Register(registry_).Add(labels);
}

prometheus::Histogram& Metrics::histogram(const std::string& name,
                                          const std::string& help,
                                          std::vector<double> bounds) {
  return prometheus::BuildHistogram().Name(prefix_ + name).Help(help).Register(registry_).Add(labels_, bounds);
}

void Metrics::http_request(std::string_view path, std::string_view method, unsigned status) {
  const bool known = !path.empty();
  counter("http_requests_total", "HTTP requests answered, by route, method and status",
          {{"handler", known ? std::string(path) : "none"},
           {"method", known ? std::string(method) : "any"},
           {"status", std::to_string(status)}})
      .Increment();
}

void Metrics::finished(const ChoiceTimes& times) {
  whole_->Observe(times.whole());
  queue_->Observe(times.queue);
  prefill_->Observe(times.prefill);
  inference_->Observe(times.inference());
  decode_->Observe(times.decode);
  prompt_tokens_->Observe(static_cast<double>(times.prompt_tokens));
  generation_tokens_->Observe(static_cast<double>(times.generation_tokens));
  if (times.generation_tokens > 1) {
    token_time_->Observe(times.decode / static_cast<double>(times.generation_tokens - 1));
  }
}

std::string Metrics::text(const EngineStats& stats) {
  const auto set = [&](const char* name, const char* help, double value, prometheus::Labels labels = {}) {
    gauge(name, help, std::move(labels)).Set(value);
  };
  const auto total = [&](const char* name, const char* help, std::int64_t value, prometheus::Labels labels = {}) {
    raise_to(counter(name, help, std::move(labels)), value);
  };
  const double pages = static_cast<double>(std::max<std::int64_t>(1, stats.pages_total));
  set("num_requests_running", "Sequences being computed", static_cast<double>(stats.running));
  set("num_requests_waiting", "Sequences waiting", static_cast<double>(stats.waiting));
  set("kv_cache_usage_perc", "Share of the pages that sequences hold, 0 to 1", static_cast<double>(stats.pages_held) / pages);
  const char* pages_help = "Pages by state: held by sequences, kept for reuse, free";
  set("kv_cache_pages", pages_help, static_cast<double>(stats.pages_held), {{"state", "held"}});
  set("kv_cache_pages", pages_help, static_cast<double>(stats.pages_cached), {{"state", "cached"}});
  set("kv_cache_pages", pages_help,
      static_cast<double>(stats.pages_total - stats.pages_held - stats.pages_cached), {{"state", "free"}});
  total("prompt_tokens_total", "Prompt tokens, computed or found cached", stats.prompt_tokens);
  total("generation_tokens_total", "Generated tokens", stats.generation_tokens);
  total("prefix_cache_queries_total", "Prompt tokens looked up in the prefix cache", stats.prefix_queries);
  total("prefix_cache_hits_total", "Prompt tokens found in the prefix cache", stats.prefix_hits);
  total("num_preemptions_total", "Sequences put back to be computed again", stats.preemptions);
  total("engine_steps_total", "Forward passes", stats.steps);
  total("engine_rows_total", "Rows computed, by kind", stats.prefill_rows, {{"kind", "prefill"}});
  total("engine_rows_total", "Rows computed, by kind", stats.decode_rows, {{"kind", "decode"}});
  const auto by_route = [&](const char* name, const char* help, const std::map<std::string, std::int64_t>& counts) {
    for (const auto& [route, count] : counts) {  // "route: reason"
      const std::size_t colon = route.find(": ");
      total(name, help, count, {{"route", route.substr(0, colon)}, {"reason", route.substr(colon + 2)}});
    }
  };
  by_route("attention_rows_total", "Rows of attention, by the way they took on a device with several, and why", stats.routes);
  by_route("attention_prompts_total", "Prompts, each by the way of its last rows through attention on a device with several, and why", stats.prompt_routes);
  for (const auto& [reason, count] : stats.finished) {
    total("request_success_total", "Finished choices, by reason", count, {{"finished_reason", reason}});
  }
  return prometheus::TextSerializer().Serialize(registry_.Collect());
}

}  // namespace keel
