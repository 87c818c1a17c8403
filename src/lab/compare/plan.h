// What `keel bench compare` measures and how it judges, written down before anything is measured.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "lab/workload.h"

namespace keel {

using PlanJson = nlohmann::ordered_json;

// What an arm's run yields. Ratios are made so that above 1 the candidate is better: candidate / control of rates, control /
// candidate of times.
enum class ArmMetric { output_rate, prefill_rate, decode_rate, ttft_median, ttft_p95, tpot_median, tpot_p95, e2el_median, e2el_p95 };
struct MetricInfo {
  ArmMetric metric;
  const char *key, *title, *unit;
  bool rate;
};
inline constexpr MetricInfo kArmMetrics[] = {
    {ArmMetric::output_rate, "output_tokens_per_s", "complete-request throughput", "output tokens/s", true},
    {ArmMetric::prefill_rate, "prefill_tokens_per_s", "prefill steps", "rows/s", true},
    {ArmMetric::decode_rate, "decode_tokens_per_s", "decode steps", "tokens/s", true},
    {ArmMetric::ttft_median, "ttft_median_ms", "TTFT, median", "ms", false},
    {ArmMetric::ttft_p95, "ttft_p95_ms", "TTFT, p95", "ms", false},
    {ArmMetric::tpot_median, "tpot_median_ms", "TPOT, median", "ms", false},
    {ArmMetric::tpot_p95, "tpot_p95_ms", "TPOT, p95", "ms", false},
    {ArmMetric::e2el_median, "e2el_median_ms", "request, median", "ms", false},
    {ArmMetric::e2el_p95, "e2el_p95_ms", "request, p95", "ms", false},
};
inline const MetricInfo& info(ArmMetric metric) { return kArmMetrics[static_cast<int>(metric)]; }

// A fresh `keel bench throughput` a block.
struct KeelArm {
  std::string model, program;  // empty: the program that compares
  std::vector<std::string> arguments;
};

// A server with OpenAI's completions. With `start` it is a fresh process a block, else it runs already.
struct EndpointArm {
  std::string url, model, path;
  std::vector<std::string> start;
  std::int64_t start_timeout_s;
  std::string reset;  // path that is posted to before each run, to empty caches
  std::int64_t vocabulary, max_concurrency;  // 0: no limit
};

struct CompareArm {
  std::string name;
  std::optional<KeelArm> keel;  // one of the two
  std::optional<EndpointArm> endpoint;
};

enum class ComparisonKind { gain, guard };

struct PlannedComparison {
  std::string name, candidate, control;
  ComparisonKind kind;
  ArmMetric metric;
  std::vector<std::string> gates;  // paths of qualification records; empty: "none", which the report repeats
};

struct ComparePlan {
  std::string name, question;
  std::uint64_t seed;
  std::int64_t blocks, timeout_s, warmups;
  RandomWorkload workload;
  double temperature;
  std::vector<CompareArm> arms;
  std::vector<PlannedComparison> comparisons;
  std::int64_t family;  // Holm's: the gains planned, of this plan or of a larger one it is part of

  std::vector<std::vector<std::string>> order;              // arms by name, a list a block
  std::vector<std::pair<std::string, std::string>> gate_digests;  // SHA-256 of the records when the plan was frozen
  std::string sha256;                                       // of all of it; empty until frozen
  PlanJson source;

  std::size_t arm_at(const std::string& name) const;
  bool is_gated(const CompareArm& arm) const;  // the candidate of a comparison that has gates
  std::uint64_t block_seed(std::int64_t block) const;  // 1 … blocks; pilots are below 0
};

// Throws OptionError naming the key: unknown keys, wrong types, arms that are not there, and a plan that is not what was frozen.
ComparePlan read_compare_plan(const std::string& text, const std::string& label);

// Writes order, the gate records' digests and the hash into the plan. `folder`: what gate paths are relative to; `subject_of`: what
// an arm says it runs. Throws OptionError where a gate's record does not pass for it.
PlanJson frozen_plan(const ComparePlan& plan, const std::string& folder, const std::function<PlanJson(const CompareArm&)>& subject_of);

// SHA-256 of the plan without its hash: keys sorted, no blanks.
std::string plan_hash(const PlanJson& plan);

// A Williams design: over `arms` blocks (twice as many where their number is odd) every arm comes equally often at every place
// and after every other arm. Which arm is which and the rows' order are drawn from the seed.
std::vector<std::vector<std::size_t>> counterbalanced_order(std::size_t arms, std::int64_t blocks, std::uint64_t seed);

// The smallest adjusted p that the plan can reach, all blocks won and all comparisons alike.
double least_adjusted_p(const ComparePlan& plan);

}  // namespace keel
