// The result blocks and records of `keel bench`. The wording of the blocks is the one that users of vLLM's know.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "device/gpu_monitor.h"
#include "lab/offline_run.h"
#include "lab/request_times.h"

namespace keel {

using RecordJson = nlohmann::ordered_json;

enum class Metric { ttft, tpot, itl, e2el };
inline constexpr Metric kAllMetrics[] = {Metric::ttft, Metric::tpot, Metric::itl, Metric::e2el};
std::string_view name(Metric metric);  // "ttft", …

struct MetricChoice {
  std::vector<Metric> metrics{std::begin(kAllMetrics), std::end(kAllMetrics)};
  std::vector<double> percentiles{90, 99};
};

// The GPU while a run was measured.
struct GpuRun {
  std::string problem;  // why NVML tells nothing; empty where it does
  std::string driver;
  double power_limit_w = 0;
  std::vector<GpuReading> readings;  // the first as the run began, the last as it ended
  double read_bytes_per_s = 0;       // of a kernel that only reads, before the run; 0 = not measured
};

// A result block, line by line. Figures that do not exist (of no requests, no steps) are "n/a".
class ResultBlock {
 public:
  explicit ResultBlock(std::string_view title);
  void row(std::string_view what, std::int64_t value);
  void row(std::string_view what, double value);  // two decimals; four below 1
  void row(std::string_view what, std::string_view value);
  void section(std::string_view title);
  void add_requests(const RunFigures& figures);
  void add_metrics(const RunFigures& figures, const MetricChoice& choice);
  void add_phases(const Phases& phases, const StepWork& work, const std::optional<GpuRun>& gpu);
  void add_route_seconds(const RouteSeconds& seconds);
  void add_gpu(const GpuRun& gpu);
  std::string text() const;

 private:
  void centred(std::string_view title, char fill);
  std::string text_;
};

RecordJson as_json(const Sample& seconds, std::span<const double> percentiles);  // in ms
RecordJson as_json(const RunFigures& figures, const MetricChoice& choice);
RecordJson prefill_as_json(const PhaseFigures& phase, const StepWork& work);
RecordJson decode_as_json(const PhaseFigures& phase, const StepWork& work, const std::optional<GpuRun>& gpu);
RecordJson as_json(const std::optional<GpuRun>& gpu);  // null without a GPU
RecordJson as_json(const Attestation& attestation);
RecordJson requests_as_json(std::span<const RequestTimes> requests, bool token_times);
RecordJson steps_as_json(std::span<const StepTime> steps);

}  // namespace keel
