// Plans for tests.
#pragma once

#include <functional>
#include <string>

#include "base/option_error.h"
#include "lab/compare/plan.h"
#include "lab/qualify/plan.h"
#include "lab/qualify/record.h"

namespace keel {

inline PlanJson sample_plan(std::int64_t blocks = 6) {
  return {{"format", "keel-compare-plan"},
          {"version", 1},
          {"name", "test"},
          {"seed", 7},
          {"blocks", blocks},
          {"workload", {{"prompts", 2}, {"input_tokens", 4}, {"output_tokens", 3}}},
          {"arms", {{{"name", "native"}, {"keel", {{"model", "m"}}}}, {{"name", "small"}, {"keel", {{"model", "m"}, {"arguments", {"--kv-cache-dtype", "k16v8"}}}}}}},
          {"comparisons", {{{"name", "small over native"}, {"candidate", "small"}, {"control", "native"}, {"gates", "none"}}}}};
}

// What `keel bench throughput --subject` says.
inline PlanJson sample_subject() {
  PlanJson subject = subject_json({.model_name = "tiny", .model_digest = "d1", .tokenizer_digest = "d2", .weights = "safetensors f16", .control = {DType::f16, DType::f16}, .candidate = {DType::f16, DType::e4m3}, .scales = {}}, "0.1.0");
  subject["scales_digest"] = "d3";
  return subject;
}

// A record that passes for it.
inline PlanJson sample_record(const PlanJson& subject = sample_subject()) {
  PlanJson record{{"record", "keel-qualification"}, {"version", kRecordVersion}, {"verdict", "pass"}, {"why", "every gate passes"},
                  {"plan", {{"subject", subject}, {"panel", {{"longest_context_tokens", 640}}}}}, {"gates", PlanJson::array()}};
  for (const auto& gate : kGates) record["gates"].push_back({{"gate", gate}, {"verdict", "pass"}, {"why", "it does"}});
  record["plan_sha256"] = plan_hash(record["plan"]);
  return record;
}

inline ComparePlan frozen(const PlanJson& plan, const std::string& folder = ".", const PlanJson& subject = sample_subject()) {
  return read_compare_plan(frozen_plan(read_compare_plan(plan.dump(), "plan"), folder, [&](const CompareArm&) { return subject; }).dump(2), "plan");
}

inline std::string refusal(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

}  // namespace keel
