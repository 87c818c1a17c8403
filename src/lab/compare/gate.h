// Whether a qualification record speaks for what an arm runs.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "lab/compare/plan.h"

namespace keel {

struct ComparisonGate {
  std::string record;
  bool passes = false;
  std::string words;  // what was found
  std::int64_t tested_tokens = 0;  // the longest context that the record covers
};

// `subject`: what the arm says it runs, in a record's own keys (`keel bench throughput --subject`).
ComparisonGate read_gate(const std::string& record, const std::filesystem::path& folder, const PlanJson& subject);

}  // namespace keel
