// keel bench throughput: all requests at once, from the first submission to the last token.
#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "base/log.h"
#include "base/random.h"
#include "bench.h"

namespace keel {
namespace {

struct ThroughputFlags {
  ModelFlags model;
  EngineFlags engine;
  BenchFlags bench;
  WorkloadFlags workload;
  std::int64_t warmups = 1;
  bool subject = false;
};

void report(const ThroughputFlags& flags, const Engine& engine, const OfflineRun& done, const std::optional<GpuRun>& gpu, std::int64_t run, RecordFile& file) {
  const MetricChoice choice = flags.bench.metric_choice();
  const Attestation& attestation = engine.attestation();
  const RunFigures figures = figures_of(done.requests, done.duration_s);
  const Phases phases = phases_of(done.steps);
  const StepWork work = work_of(engine.config(), attestation);

  fmt::print("Throughput: {:.2f} requests/s, {:.2f} total tokens/s, {:.2f} output tokens/s\n", figures.requests_per_s(),
             figures.total_tokens_per_s(), figures.output_tokens_per_s());
  fmt::print("Total num prompt tokens:  {}\nTotal num output tokens:  {}\n", figures.input_tokens, figures.output_tokens);
  ResultBlock block("Throughput Benchmark Result");
  block.row("Successful requests", figures.completed);
  block.row("Failed requests", figures.failed);
  block.add_requests(figures);
  block.add_metrics(figures, choice);
  block.add_phases(phases, work, gpu);
  block.add_route_seconds(done.route_seconds);
  block.row("Most running", done.most_running);
  block.row("Preemptions", done.preemptions);
  if (gpu) block.add_gpu(*gpu);
  fmt::print("{}", block.text());
  std::fflush(stdout);

  RecordJson record = record_head("throughput", run);
  record["engine"] = as_json(attestation);
  record["gpu"] = as_json(gpu);
  record["limits"] = limits_as_json(engine.options());
  record["seed"] = flags.engine.options.seed;
  record["workload"] = as_json(flags.workload.random);
  record["workload"]["temperature"] = flags.bench.temperature;
  record["workload"]["warmup_prompts"] = flags.warmups;
  record["figures"] = as_json(figures, choice);
  record["prefill_steps"] = prefill_as_json(phases.prefill, work);
  record["decode_steps"] = decode_as_json(phases.decode, work, gpu);
  record["most_running"] = done.most_running;
  record["preemptions"] = done.preemptions;
  record["attention_rows"] = done.routes;
  record["attention_route_seconds"] = done.route_seconds.empty() ? RecordJson() : RecordJson(done.route_seconds);
  record["prefix_hit_tokens"] = done.prefix_hits;
  record["requests"] = requests_as_json(done.requests, flags.bench.save_detailed);
  if (flags.bench.save_detailed) record["steps"] = steps_as_json(done.steps);
  file.add(record);
}

void throughput(ThroughputFlags& flags) {
  if (flags.subject) return fmt::print("{}\n", run_subject(flags.model, flags.engine).dump());
  EngineOptions& options = flags.engine.options;
  RandomWorkload& workload = flags.workload.random;
  options.max_queued = std::max({options.max_queued, workload.prompts, flags.warmups});
  RecordFile file(flags.bench.output_json);
  GpuWatch gpu(options);
  const std::unique_ptr<Engine> engine = open_engine(flags.model, flags.engine);
  print_attestation(engine->attestation());
  workload.vocabulary = engine->config().vocabulary;
  check_fits(*engine, workload);

  if (flags.warmups > 0) {
    RandomWorkload warmup = workload;
    warmup.prompts = flags.warmups;
    run_offline(*engine, random_items(warmup, random_u64(options.seed, 0)), flags.bench.temperature);
  }
  bool failed = false;
  ProgressBar progress("requests", flags.bench.repeat * workload.prompts);
  for (std::int64_t run = 1; run <= flags.bench.repeat; ++run) {
    const std::vector<WorkItem> items = random_items(workload, random_u64(options.seed, run));
    gpu.start();
    const OfflineRun done = run_offline(*engine, items, flags.bench.temperature, [&] { progress.advance(1); });
    report(flags, *engine, done, gpu.stop(), run, file);
    failed |= report_failures(done.requests);
  }
  if (failed) throw CLI::RuntimeError(1);
}

}  // namespace

void add_bench_throughput(CLI::App& bench) {
  auto flags = std::make_shared<ThroughputFlags>();
  CLI::App* command = bench.add_subcommand("throughput", "All requests at once, to the last token");
  add_engine_flags(*command, flags->model, flags->engine);
  flags->workload.add_to(*command);
  command->add_option("--num-warmups", flags->warmups, "Requests before those that are measured")
      ->check(CLI::Range(std::int64_t{0}, std::int64_t{1} << 20))
      ->capture_default_str();
  command->add_flag("--subject", flags->subject, "Measure nothing: say which model, cache format, scales, device and build this is, as a qualification record would");
  flags->bench.add_to(*command);
  command->callback([flags] { throughput(*flags); });
}

}  // namespace keel
