// Measures an arm once: a fresh keel, or load on an endpoint.
#pragma once

#include <string>

#include "lab/compare/blocks.h"

namespace keel {

struct MeasureOptions {
  std::string program;     // this keel
  std::string log_folder;  // output of what is started
  std::string api_key;     // of endpoints; never recorded
  bool pilot = false;      // other prompts than the blocks'
};

// What a keel arm says it runs, in the keys of a qualification record's subject. Throws Error where it does not say.
PlanJson subject_of(const ComparePlan& plan, const CompareArm& arm, const MeasureOptions& options);

ArmRun measure_arm(const ComparePlan& plan, const CompareArm& arm, std::int64_t block, const MeasureOptions& options);

}  // namespace keel
