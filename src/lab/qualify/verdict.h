// How each gate is judged, from what the journal holds and nothing else.
#pragma once

#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

namespace keel {

enum class Verdict { pass, fail, not_reached };
std::string_view name(Verdict verdict);  // "pass", "fail", "not reached"

struct GateResult {
  std::string gate;
  Verdict verdict = Verdict::not_reached;
  std::string why;                            // one sentence, whatever the verdict
  nlohmann::ordered_json figures = nullptr;   // counts, bounds, limits, floor, power
  nlohmann::ordered_json items = nullptr;     // every item's outcome
};

GateResult judge_production(std::span<const nlohmann::json> items, std::int64_t least_faults);

// Items: {"control", "rerun", "candidate": mean NLL of the document's targets or null, "kl_rerun", "kl_candidate", "same_top_rerun",
// "same_top_candidate", "targets"}.
struct NllRule {
  double limit, floor;  // of the rise's upper limit; of the control's own mean NLL
};
GateResult judge_nll(std::span<const nlohmann::json> documents, const NllRule& rule);

// Items: {"right": bool, "finish", "answer"}, one an item and arm.
struct AnswerRule {
  double limit, floor;  // of the gross loss's upper limit; of the share that the control has right
};
GateResult judge_answers(const std::string& gate, std::span<const std::string> labels, std::span<const nlohmann::json> control,
                         std::span<const nlohmann::json> rerun, std::span<const nlohmann::json> candidate, const AnswerRule& rule);

// The first gate that failed decides; a pass needs every gate.
Verdict overall(std::span<const GateResult> gates);

}  // namespace keel
