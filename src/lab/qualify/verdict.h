// How each gate is judged, from what the journal holds and nothing else. No option changes a rule.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

namespace keel {

inline constexpr const char* kGates[] = {"production", "nll", "retrieval", "questions"};  // in their order

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
  double limit, floor;  // the rise's upper limit and the control's own mean NLL may be at most these
};
NllRule nll_rule(std::int64_t vocabulary);
GateResult judge_nll(std::span<const nlohmann::json> documents, const NllRule& rule);

// Items: answer.h's outcomes, one an item and arm.
struct AnswerRule {
  double limit = 0, floor = 1;  // the gross loss's upper limit may be at most, the share that the control has right at least these
};
inline constexpr AnswerRule kRetrievalRule{0.05, 0.5}, kQuestionsRule{0.02, 0.2}, kSumsRule{0.02, 0.5};
GateResult judge_answers(const std::string& gate, std::span<const std::string> labels, std::span<const nlohmann::json> control,
                         std::span<const nlohmann::json> rerun, std::span<const nlohmann::json> candidate, const AnswerRule& rule);

// A pass needs every gate; else the first that did not pass decides.
Verdict overall(std::span<const GateResult> gates);

}  // namespace keel
