// The record of a qualification (docs/formats/qualification-record.md), and its one-page report.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
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

inline constexpr int kRecordVersion = 2;

// What is asked of a record that has been written, checked when it is read.
struct Record {
  std::string plan_sha256, why;
  Verdict verdict;
  std::vector<GateResult> gates;  // names, verdicts and sentences
  nlohmann::json plan, subject;   // subject: every key of subject_json, of its type
  std::int64_t longest_context_tokens;
  bool broken_on_purpose;
};
// Throws Error naming the file and what is wrong: no record, of another version, a key missing or of another type, a plan that is not
// the one its hash names, a verdict that does not follow from its gates.
Record read_record(const std::filesystem::path& file);

std::string record_report(const nlohmann::ordered_json& record);  // HTML

}  // namespace keel
