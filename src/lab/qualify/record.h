// The record of a qualification (docs/formats/qualification-record.md), and its one-page report.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lab/qualify/verdict.h"

namespace keel {

struct RecordParts {
  nlohmann::json plan;
  std::string version, commit, device, cpu_target;
  int threads = 0;
  nlohmann::ordered_json effective;  // by arm: what really ran
  std::span<const GateResult> gates;
  std::vector<std::string> does_not_cover;
  nlohmann::ordered_json times;      // the only part that a repeated or resumed run may not reproduce
};
nlohmann::ordered_json make_record(const RecordParts& parts);

// Throws Error naming the file where it is no record or its plan is not the one its hash names.
nlohmann::json read_record(const std::filesystem::path& file);
bool every_gate_passed(const nlohmann::json& record);

std::string record_report(const nlohmann::ordered_json& record);  // HTML

}  // namespace keel
