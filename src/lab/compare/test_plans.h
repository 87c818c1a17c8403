// Plans for tests.
#pragma once

#include <functional>
#include <string>

#include "base/option_error.h"
#include "lab/compare/plan.h"

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

inline ComparePlan frozen(const PlanJson& plan, const std::string& folder = ".") {
  return read_compare_plan(frozen_plan(read_compare_plan(plan.dump(), "plan"), folder).dump(2), "plan");
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
