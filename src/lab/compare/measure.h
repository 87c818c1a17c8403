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

ArmRun measure_arm(const ComparePlan& plan, const CompareArm& arm, std::int64_t block, const MeasureOptions& options);

}  // namespace keel
