#include "bench.h"

#include <algorithm>
#include <map>

#include "base/error.h"
#include "base/log.h"
#include "base/text_file.h"
#include "base/utc_time.h"

namespace keel {
namespace {

// The words of this process, as Linux keeps them.
std::string command_line() {
  std::string words = read_text_file("/proc/self/cmdline");
  if (words.ends_with('\0')) words.pop_back();
  std::replace(words.begin(), words.end(), '\0', ' ');
  return words;
}

}  // namespace

void BenchFlags::add_to(CLI::App& command) {
  command.add_option("--output-json", output_json, "File that gets one JSON line a run, appended");
  command.add_flag("--save-detailed", save_detailed, "In that line also the time of every token and step");
  command.add_option("--repeat", repeat, "Runs, one after the other; each is reported and recorded by itself")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 20))
      ->capture_default_str();
  command.add_option("--temperature", temperature, "0 = greedy")->check(number_between(0, 1e3))->capture_default_str();
  command.add_option("--percentile-metrics", percentile_metrics, "Metrics to print: ttft,tpot,itl,e2el (all)")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check(CLI::IsMember({"ttft", "tpot", "itl", "e2el"}));
  command.add_option("--metric-percentiles", choice.percentiles, "Percentiles of each, such as 50,90,99.9 (90,99)")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check(number_between(0, 100));
}

MetricChoice BenchFlags::metric_choice() const {
  MetricChoice result = choice;
  if (percentile_metrics.empty()) return result;
  result.metrics.clear();
  for (const Metric metric : kAllMetrics) {
    if (std::ranges::count(percentile_metrics, name(metric)) > 0) result.metrics.push_back(metric);
  }
  return result;
}

void WorkloadFlags::add_to(CLI::App& command) {
  const CLI::Range length(std::int64_t{1}, std::int64_t{1} << 30);
  command.add_option("--dataset-name", dataset_name, "random: prompts of random tokens")
      ->check(CLI::IsMember({"random"}))
      ->capture_default_str();
  command.add_option("--random-input-len,--input-len", random.input_tokens, "Tokens of a prompt")->check(length)->capture_default_str();
  command.add_option("--random-output-len,--output-len", random.output_tokens, "Tokens of an answer")->check(length)->capture_default_str();
  command.add_option("--random-range-ratio", random.range_ratio, "R: lengths are uniform between (1-R) and (1+R) times those")
      ->check(number_between(0, 0.999))
      ->capture_default_str();
  command.add_option("--num-prompts", random.prompts, "Requests")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 20))
      ->capture_default_str();
}

RecordJson as_json(const RandomWorkload& workload) {
  return {{"dataset", "random"},
          {"prompts", workload.prompts},
          {"input_tokens", workload.input_tokens},
          {"output_tokens", workload.output_tokens},
          {"range_ratio", workload.range_ratio},
          {"vocabulary", workload.vocabulary}};
}

RecordFile::RecordFile(const std::string& path) : path_(path) {
  if (path.empty()) return;
  out_.open(path, std::ios::app);
  if (!out_) fail("--output-json {}: cannot be written", path);
}

void RecordFile::add(const RecordJson& record) {
  if (path_.empty()) return;
  out_ << record.dump(-1, ' ', false, RecordJson::error_handler_t::replace) << std::endl;
  if (!out_) fail("--output-json {}: writing failed", path_);
}

RecordJson record_head(const std::string& command, std::int64_t run) {
  return {{"record", "keel bench " + command},
          {"keel_version", KEEL_VERSION},
          {"keel_commit", kCommit[0] != '\0' ? RecordJson(kCommit) : RecordJson()},
          {"time", utc_time()},
          {"command_line", command_line()},
          {"run", run}};
}

RecordJson limits_as_json(const EngineOptions& options) {
  return {{"max_num_seqs", options.max_num_seqs},
          {"max_num_batched_tokens", options.max_num_batched_tokens},
          {"prefix_caching", options.enable_prefix_caching},
          {"chunked_prefill", options.enable_chunked_prefill},
          {"enforce_eager", options.enforce_eager}};
}

void add_engine_flags(CLI::App& command, ModelFlags& model, EngineFlags& engine) {
  engine.options.enable_prefix_caching = false;
  engine.options.attention_plans = true;
  model.add_to(command);
  engine.add_to(command);
  command.get_option("--enable-prefix-caching")->description("Reuse the pages of equal prefixes (off)");
  command.add_flag("--profile-routes", engine.options.profile_routes, "CUDA: time each way through attention by itself, between events and without graphs: slower");
  command.get_option("--seed")->description("Seed of the prompts, and of sampling");
}

void check_fits(const Engine& engine, const RandomWorkload& workload) {
  const std::int64_t longest = engine.attestation().max_model_len;
  if (workload.longest_input() > longest - workload.longest_output()) {
    throw CLI::ValidationError(fmt::format("prompts of up to {} and answers of up to {} tokens do not fit the longest context of {}",
                                           workload.longest_input(), workload.longest_output(), longest));
  }
}

GpuWatch::GpuWatch(EngineOptions& options) {
  const Device device = choose_device(options.device);
  options.device = device == Device::cuda ? "cuda" : "cpu";
  if (device == Device::cpu) return;
  monitor_ = std::make_unique<GpuMonitor>(device_bus_id(device));
  read_bytes_per_s_ = device_read_rate(device);
}

void GpuWatch::start() {
  if (monitor_) monitor_->start();
}

std::optional<GpuRun> GpuWatch::stop() {
  if (!monitor_) return std::nullopt;
  std::vector<GpuReading> readings = monitor_->stop();
  return GpuRun{monitor_->problem(), monitor_->driver(), monitor_->power_limit_w(), std::move(readings), read_bytes_per_s_};
}

bool report_failures(std::span<const RequestTimes> requests) {
  std::map<std::string, std::int64_t> reasons;
  for (const RequestTimes& request : requests) {
    if (!request.error.empty()) ++reasons[request.error];
  }
  for (const auto& [reason, count] : reasons) {
    log_line("error", fmt::format("{} of {} requests failed: {}", count, requests.size(), reason));
  }
  return !reasons.empty();
}

void add_bench(CLI::App& app) {
  CLI::App* bench = app.add_subcommand("bench", "Measure latency, throughput, a server under load; compare in paired blocks; sweep for `keel fit`");
  bench->require_subcommand(1);
  add_bench_latency(*bench);
  add_bench_throughput(*bench);
  add_bench_serve(*bench);
  add_bench_compare(*bench);
  add_bench_sweep(*bench);
}

}  // namespace keel
