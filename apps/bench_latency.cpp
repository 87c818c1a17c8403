// keel bench latency: one batch at a time, from submission to its last token.
#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "base/log.h"
#include "base/random.h"
#include "bench.h"

namespace keel {
namespace {

struct LatencyFlags {
  ModelFlags model;
  EngineFlags engine;
  BenchFlags bench;
  RandomWorkload batch{.prompts = 8, .input_tokens = 32, .output_tokens = 128};
  std::int64_t warmups = 10, iterations = 30;
};

constexpr double kLatencyPercentiles[] = {10, 25, 50, 75, 90, 99};

// The iterations of one run, put together.
struct Measured {
  std::vector<double> latencies_s;
  std::vector<RequestTimes> requests;
  std::vector<StepTime> steps;
  double duration_s = 0;
  std::int64_t preemptions = 0;
  RouteCounts routes;
  RouteSeconds route_seconds;

  void add(OfflineRun&& run) {
    latencies_s.push_back(run.duration_s);
    requests.insert(requests.end(), run.requests.begin(), run.requests.end());
    steps.insert(steps.end(), run.steps.begin(), run.steps.end());
    duration_s += run.duration_s;
    preemptions += run.preemptions;
    for (const auto& [route, rows] : run.routes) routes[route] += rows;
    for (const auto& [route, seconds] : run.route_seconds) route_seconds[route] += seconds;
  }
};

void report(const LatencyFlags& flags, const Engine& engine, const Measured& measured, const std::optional<GpuRun>& gpu, std::int64_t run, RecordFile& file) {
  const MetricChoice choice = flags.bench.metric_choice();
  const Attestation& attestation = engine.attestation();
  const Sample latency(measured.latencies_s);
  RunFigures figures = figures_of(measured.requests, measured.duration_s);
  figures.peak_concurrent = flags.batch.prompts;  // iterations share a clock's zero, not their time
  const Phases phases = phases_of(measured.steps);
  const StepWork work = work_of(engine.config(), attestation);

  fmt::print("Avg latency: {:.6f} seconds\nStd latency: {:.6f} seconds\n", latency.mean(), latency.stddev());
  for (const double percent : kLatencyPercentiles) fmt::print("{:g}% percentile latency: {:.6f} seconds\n", percent, latency.percentile(percent));
  ResultBlock block("Latency Benchmark Result");
  block.row("Iterations", static_cast<std::int64_t>(measured.latencies_s.size()));
  block.row("Batch size", flags.batch.prompts);
  block.row("Failed requests", figures.failed);
  block.add_requests(figures);
  block.add_metrics(figures, choice);
  block.add_phases(phases, work, gpu);
  block.add_route_seconds(measured.route_seconds);
  if (gpu) block.add_gpu(*gpu);
  fmt::print("{}", block.text());
  std::fflush(stdout);
  if (measured.preemptions > 0) {
    log_warning("{} preemptions: the KV cache of {} slots does not hold the batch, so parts were computed twice",
                measured.preemptions, attestation.slots);
  }

  RecordJson record = record_head("latency", run);
  record["engine"] = as_json(attestation);
  record["gpu"] = as_json(gpu);
  record["limits"] = limits_as_json(engine.options());
  record["seed"] = flags.engine.options.seed;
  record["workload"] = as_json(flags.batch);
  record["workload"]["temperature"] = flags.bench.temperature;
  record["workload"]["warmup_iterations"] = flags.warmups;
  record["figures"] = as_json(figures, choice);
  record["latency"] = as_json(latency, kLatencyPercentiles);
  record["prefill_steps"] = prefill_as_json(phases.prefill, work);
  record["decode_steps"] = decode_as_json(phases.decode, work, gpu);
  record["preemptions"] = measured.preemptions;
  record["attention_rows"] = measured.routes;
  record["attention_route_seconds"] = measured.route_seconds.empty() ? RecordJson() : RecordJson(measured.route_seconds);
  record["latencies_s"] = measured.latencies_s;
  record["requests"] = requests_as_json(measured.requests, flags.bench.save_detailed);
  if (flags.bench.save_detailed) record["steps"] = steps_as_json(measured.steps);
  file.add(record);
}

void latency(LatencyFlags& flags) {
  EngineOptions& options = flags.engine.options;
  if (flags.batch.prompts > options.max_num_seqs) {
    throw CLI::ValidationError(fmt::format("--batch-size {} is more than --max-num-seqs {}: the batch would not run at once",
                                           flags.batch.prompts, options.max_num_seqs));
  }
  options.max_queued = std::max(options.max_queued, flags.batch.prompts);
  RecordFile file(flags.bench.output_json);
  GpuWatch gpu(options);
  const std::unique_ptr<Engine> engine = open_engine(flags.model, flags.engine);
  print_attestation(engine->attestation());
  flags.batch.vocabulary = engine->config().vocabulary;
  check_fits(*engine, flags.batch);

  std::uint64_t iteration = 0;  // each has prompts of its own
  const auto next = [&] {
    return run_offline(*engine, random_items(flags.batch, random_u64(options.seed, iteration++)), flags.bench.temperature);
  };
  bool failed = false;
  ProgressBar progress("iterations", flags.warmups + flags.bench.repeat * flags.iterations);
  for (std::int64_t i = 0; i < flags.warmups; ++i) next(), progress.advance(1);
  for (std::int64_t run = 1; run <= flags.bench.repeat; ++run) {
    Measured measured;
    gpu.start();
    for (std::int64_t i = 0; i < flags.iterations; ++i) measured.add(next()), progress.advance(1);
    report(flags, *engine, measured, gpu.stop(), run, file);
    failed |= report_failures(measured.requests);
  }
  if (failed) throw CLI::RuntimeError(1);
}

}  // namespace

void add_bench_latency(CLI::App& bench) {
  auto flags = std::make_shared<LatencyFlags>();
  CLI::App* command = bench.add_subcommand("latency", "One batch at a time, from submission to its last token");
  const CLI::Range count(std::int64_t{1}, std::int64_t{1} << 30);
  add_engine_flags(*command, flags->model, flags->engine);
  command->add_option("--input-len", flags->batch.input_tokens, "Tokens of a prompt")->check(count)->capture_default_str();
  command->add_option("--output-len", flags->batch.output_tokens, "Tokens of an answer")->check(count)->capture_default_str();
  command->add_option("--batch-size", flags->batch.prompts, "Prompts of a batch")->check(count)->capture_default_str();
  command->add_option("--num-iters-warmup", flags->warmups, "Batches before those that are measured")
      ->check(CLI::Range(std::int64_t{0}, std::int64_t{1} << 30))
      ->capture_default_str();
  command->add_option("--num-iters", flags->iterations, "Batches of a run")->check(count)->capture_default_str();
  flags->bench.add_to(*command);
  command->callback([flags] { latency(*flags); });
}

}  // namespace keel
