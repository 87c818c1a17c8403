// What the bench commands share: their flags, the record each run leaves, and when they end with a failure.
#pragma once

#include <CLI/CLI.hpp>

#include <cstdint>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "device/gpu_monitor.h"
#include "lab/report.h"
#include "lab/workload.h"
#include "options.h"

namespace keel {

extern const char* const kCommit;  // of the checkout this was built from; empty outside of one

struct BenchFlags {
  std::string output_json;
  bool save_detailed = false;
  std::int64_t repeat = 1;
  double temperature = 0;
  std::vector<std::string> percentile_metrics;
  MetricChoice choice;

  void add_to(CLI::App& command);
  MetricChoice metric_choice() const;
};

struct WorkloadFlags {
  std::string dataset_name = "random";
  RandomWorkload random{.prompts = 1000, .input_tokens = 1024, .output_tokens = 128};

  void add_to(CLI::App& command);
};
RecordJson as_json(const RandomWorkload& workload);

// --output-json: one JSON line a run, appended. Opened before anything is measured, so that an hour's run is not lost to a
// wrong path.
class RecordFile {
 public:
  explicit RecordFile(const std::string& path);
  void add(const RecordJson& record);

 private:
  std::string path_;
  std::ofstream out_;
};

// What every record begins with: command, version, commit, time, the words it was called with.
RecordJson record_head(const std::string& command, std::int64_t run);
RecordJson limits_as_json(const EngineOptions& options);

// Prefix caching is off unless asked for: random prompts have none to share, and repeats must not find each other's.
void add_engine_flags(CLI::App& command, ModelFlags& model, EngineFlags& engine);
void check_fits(const Engine& engine, const RandomWorkload& workload);

// Watches the GPU that an engine is measured on; nothing where that is the CPU.
class GpuWatch {
 public:
  // Before the engine is opened, whose device this chooses, while there is memory to measure the rate of reading.
  explicit GpuWatch(EngineOptions& options);
  void start();
  std::optional<GpuRun> stop();

 private:
  std::unique_ptr<GpuMonitor> monitor_;
  double read_bytes_per_s_ = 0;
};

// Says how many requests failed and why, each reason once; true when there are any.
bool report_failures(std::span<const RequestTimes> requests);

void add_bench_latency(CLI::App& bench);
void add_bench_throughput(CLI::App& bench);
void add_bench_serve(CLI::App& bench);
void add_bench_compare(CLI::App& bench);
void add_bench_sweep(CLI::App& bench);

}  // namespace keel
