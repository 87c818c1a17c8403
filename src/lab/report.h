// The result blocks and records of `keel bench`. The wording of the blocks is the one that users of vLLM's know.
#pragma once

#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

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

// A result block, line by line. Figures that do not exist (of no requests, no steps) are "n/a".
class ResultBlock {
 public:
  explicit ResultBlock(std::string_view title);
  void row(std::string_view what, std::int64_t value);
  void row(std::string_view what, double value);  // two decimals; four below 1
  void section(std::string_view title);
  void add_requests(const RunFigures& figures);
  void add_metrics(const RunFigures& figures, const MetricChoice& choice);
  void add_phases(const Phases& phases, const Attestation& attestation);
  std::string text() const;

 private:
  void centred(std::string_view title, char fill);
  std::string text_;
};

RecordJson as_json(const Sample& seconds, std::span<const double> percentiles);  // in ms
RecordJson as_json(const RunFigures& figures, const MetricChoice& choice);
RecordJson as_json(const PhaseFigures& phase, const Attestation& attestation);
RecordJson as_json(const Attestation& attestation);
RecordJson requests_as_json(std::span<const RequestTimes> requests, bool token_times);
RecordJson steps_as_json(std::span<const StepTime> steps);

}  // namespace keel
