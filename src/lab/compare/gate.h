// Whether a qualification record speaks for what an arm runs.
#pragma once

#include <filesystem>
#include <string>

#include "lab/compare/plan.h"

namespace keel {

struct ComparisonGate {
  std::string record;
  bool passes = false;
  std::string words;  // what was found
};

// `subject`: what the arm says it runs, in a record's own keys (`keel bench throughput --subject`).
ComparisonGate read_gate(const std::string& record, const std::filesystem::path& folder, const PlanJson& subject);

}  // namespace keel
