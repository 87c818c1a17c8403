// keel bench sweep: decode throughput over context and batch, for `keel fit`.
#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "base/log.h"
#include "base/option_error.h"
#include "base/random.h"
#include "bench.h"
#include "lab/sweep.h"

namespace keel {
namespace {

struct SweepFlags {
  ModelFlags model;
  EngineFlags engine;
  SweepOptions sweep{.contexts = {128, 512, 2048}, .batches = {1, 2, 4, 8, 16, 32}};
  std::string output, csv;
};

RecordJson record_of(const SweepFlags& flags, const Attestation& engine, const SweepMeasure& measure, const std::optional<GpuRun>& gpu, std::int64_t repeat) {
  RecordJson record = record_head("sweep", repeat);
  record["context"] = measure.cell.context;
  record["batch"] = measure.cell.batch;
  record["tokens_per_s"] = measure.tokens_per_s();
  record["steps"] = measure.steps;
  record["seconds"] = measure.seconds;
  record["median_step_ms"] = measure.median_step_s * 1e3;
  record["mean_context"] = measure.mean_context;
  record["engine"] = as_json(engine);
  record["gpu"] = as_json(gpu);
  record["limits"] = limits_as_json(flags.engine.options);
  record["seed"] = flags.engine.options.seed;
  return record;
}

// The lines that `keel fit` reads, on standard output or in a file.
class CsvFile {
 public:
  explicit CsvFile(const std::string& path) : path_(path) {
    if (!path.empty()) out_.open(path, std::ios::trunc);
    if (!path.empty() && !out_) fail("--csv {}: cannot be written", path);
  }
  void line(const std::string& text) {
    if (path_.empty()) {
      fmt::print("{}\n", text);
      std::fflush(stdout);
      return;
    }
    out_ << text << std::endl;
    if (!out_) fail("--csv {}: writing failed", path_);
  }

 private:
  std::string path_;
  std::ofstream out_;
};

void sweep(SweepFlags& flags) {
  EngineOptions& options = flags.engine.options;
  SweepOptions& what = flags.sweep;
  what.seed = options.seed;
  for (auto* list : {&what.contexts, &what.batches}) {
    std::ranges::sort(*list);
    list->erase(std::unique(list->begin(), list->end()), list->end());
  }
  if (options.enable_prefix_caching) refuse_option("--enable-prefix-caching: sequences that share pages would read them once for all");
  options.max_num_seqs = std::max(options.max_num_seqs, what.batches.back());
  options.max_queued = std::max(options.max_queued, what.batches.back());
  RecordFile records(flags.output);
  CsvFile csv(flags.csv);
  GpuWatch gpu(options);
  const std::unique_ptr<Engine> engine = open_engine(flags.model, flags.engine);
  options = engine->options();  // its defaults included
  const Attestation& attestation = engine->attestation();
  print_attestation(attestation);
  csv.line(fmt::format("# keel bench sweep: {}, keys {}, values {}, {}; decode steps alone", attestation.model, name(attestation.format.key), name(attestation.format.value), attestation.device));
  std::int64_t fitting = 0;
  for (const SweepCell& cell : sweep_order(what, 0)) {
    if (const auto problem = cell_problem(cell, what, options, attestation)) {
      log_warning("skipped: context {}, batch {}: {}", cell.context, cell.batch, *problem);
      csv.line(fmt::format("# skipped: context {}, batch {}: {}", cell.context, cell.batch, *problem));
    } else {
      ++fitting;
    }
  }
  if (fitting == 0) fail("no cell of the sweep fits this engine");
  csv.line("context,batch,tokens_per_s,repeat,steps,median_step_ms,mean_context");
  ProgressBar progress("cells", fitting * what.repeats);
  for (std::int64_t repeat = 1; repeat <= what.repeats; ++repeat) {
    std::uint64_t number = 0;
    for (const SweepCell& cell : sweep_order(what, repeat)) {
      const std::uint64_t seed = random_u64(random_u64(what.seed, static_cast<std::uint64_t>(repeat)), ++number << 32);
      if (cell_problem(cell, what, options, attestation)) continue;
      gpu.start();
      const SweepMeasure measure = measure_cell(*engine, cell, what, options, seed);
      csv.line(fmt::format("{},{},{:.6g},{},{},{:.6g},{:.6g}", cell.context, cell.batch, measure.tokens_per_s(), repeat, measure.steps, measure.median_step_s * 1e3, measure.mean_context));
      records.add(record_of(flags, attestation, measure, gpu.stop(), repeat));
      progress.advance(1);
    }
  }
}

}  // namespace

void add_bench_sweep(CLI::App& bench) {
  auto flags = std::make_shared<SweepFlags>();
  SweepOptions& what = flags->sweep;
  CLI::App* command = bench.add_subcommand("sweep", "Decode throughput over context and batch, for `keel fit`");
  add_engine_flags(*command, flags->model, flags->engine);
  const CLI::Range size(std::int64_t{1}, std::int64_t{1} << 24), few(std::int64_t{0}, std::int64_t{1} << 16);
  command->add_option("--contexts", what.contexts, "Tokens of each sequence when its timed steps begin")->delimiter(',')->allow_extra_args(false)->check(size)->capture_default_str();
  command->add_option("--batches", what.batches, "Sequences of a step")->delimiter(',')->allow_extra_args(false)->check(size)->capture_default_str();
  command->add_option("--steps", what.steps, "Timed steps of a cell")->check(size)->capture_default_str();
  command->add_option("--warmup-steps", what.warmup_steps, "Steps before them")->check(few)->capture_default_str();
  command->add_option("--repeat", what.repeats, "Times that all cells are measured, each time in another order")->check(size)->capture_default_str();
  command->add_option("--csv", flags->csv, "File for the lines that `keel fit` reads (standard output)");
  command->add_option("--output-json", flags->output, "File that gets one JSON line a measurement, appended; `keel fit` reads it as .jsonl");
  command->callback([flags] { sweep(*flags); });
}

}  // namespace keel
