#include "lab/qualify/verdict.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "lab/stats.h"

namespace keel {
namespace {

using Figures = nlohmann::ordered_json;

double normal_cdf(double z) { return 0.5 * std::erfc(-z / std::sqrt(2.0)); }

Figures as_json(const PairedOutcomes& outcomes, double limit) {
  return {{"items", outcomes.items},
          {"control_right", outcomes.control_right},
          {"right", outcomes.candidate_right},
          {"losses", outcomes.losses},
          {"gains", outcomes.gains},
          {"gross_loss_upper", gross_loss_upper(outcomes.losses, outcomes.items)},
          {"within_limit", gross_loss_upper(outcomes.losses, outcomes.items) <= limit}};
}

}  // namespace

std::string_view name(Verdict verdict) {
  switch (verdict) {
    case Verdict::pass: return "pass";
    case Verdict::fail: return "fail";
    case Verdict::not_reached: return "not reached";
  }
  return "";
}

GateResult judge_production(std::span<const nlohmann::json> items, std::int64_t least_faults) {
  GateResult result{.gate = "production"};
  std::int64_t checks = 0, faults = 0, detected = 0, not_applicable = 0;
  std::string first_wrong;
  result.items = Figures::array();
  for (const nlohmann::json& item : items) {
    const std::string name = item.at("name");
    const bool applies = item.at("applies"), passed = item.at("passed"), fault = name.starts_with("fault: ");
    (fault ? faults : checks) += applies;
    detected += fault && applies && passed;
    not_applicable += !applies;
    if (applies && !passed && first_wrong.empty()) first_wrong = fault ? name + " was not detected" : name;
    result.items.push_back({{"name", name}, {"outcome", !applies ? "does not apply" : fault ? passed ? "detected" : "not detected" : passed ? "pass" : "fail"}, {"detail", item.at("detail")}});
  }
  result.figures = {{"checks", checks}, {"faults_made", faults}, {"faults_detected", detected}, {"least_faults", least_faults}, {"faults_that_do_not_apply", not_applicable}};
  const bool enough = faults >= least_faults;
  result.verdict = first_wrong.empty() && enough ? Verdict::pass : Verdict::fail;
  result.why = !first_wrong.empty() ? "failed: " + first_wrong
               : !enough            ? fmt::format("{} faults could be made, and at least {} are wanted", faults, least_faults)
                                    : fmt::format("{} checks hold, and {} of {} injected faults were detected", checks, detected, faults);
  return result;
}

NllRule nll_rule(std::int64_t vocabulary) { return {.limit = most_nll_rise(), .floor = 0.75 * std::log(static_cast<double>(vocabulary))}; }

namespace {

// What is no finite number, in words; empty where all are.
std::string not_finite(std::span<const nlohmann::json> documents) {
  for (std::size_t i = 0; i < documents.size(); ++i) {
    for (const std::string key : {"control", "rerun", "candidate", "kl_rerun", "kl_candidate"}) {
      if (!documents[i].at(key).is_null()) continue;
      const bool native = key == "control" || key == "rerun";
      return fmt::format("document {}: '{}' is no finite number{}", i, key, native ? ", of 16-bit keys and values: that says nothing about the candidate" : "");
    }
  }
  return {};
}

double sum_of(std::span<const nlohmann::json> documents, const std::string& key) {
  double sum = 0;
  for (const nlohmann::json& document : documents) sum += document.at(key).get<double>();
  return sum;
}

// An arm against the control.
struct NllArm {
  std::vector<double> rises;  // a document each
  MeanLimit limit;
  Figures figures;

  NllArm(std::span<const nlohmann::json> documents, const std::string& arm) {
    for (const nlohmann::json& document : documents) rises.push_back(document.at(arm).get<double>() - document.at("control").get<double>());
    limit = bootstrap_mean_upper(rises);
    figures = {{"mean_rise", limit.mean},
               {"rise_upper", limit.upper},
               {"mean_kl", sum_of(documents, "kl_" + arm) / static_cast<double>(documents.size())},
               {"top1_agreement", sum_of(documents, "same_top_" + arm) / sum_of(documents, "targets")}};
  }
  // Of the mean.
  double standard_error() const {
    if (rises.size() < 2) return 0;
    double squares = 0;
    for (const double x : rises) squares += (x - limit.mean) * (x - limit.mean);
    const auto n = static_cast<double>(rises.size());
    return std::sqrt(squares / (n - 1) / n);
  }
};

}  // namespace

GateResult judge_nll(std::span<const nlohmann::json> documents, const NllRule& rule) {
  GateResult result{.gate = "nll"};
  result.items = Figures::array();
  for (std::size_t i = 0; i < documents.size(); ++i) {
    Figures item{{"document", i}};
    for (const char* key : {"control", "rerun", "candidate", "kl_rerun", "kl_candidate", "same_top_rerun", "same_top_candidate", "targets"}) item[key] = documents[i].at(key);
    result.items.push_back(std::move(item));
  }
  result.why = not_finite(documents);
  if (!result.why.empty()) {
    result.verdict = Verdict::fail;
    return result;
  }
  const NllArm candidate(documents, "candidate"), rerun(documents, "rerun");
  const auto& [mean, upper] = candidate.limit;
  const double control = sum_of(documents, "control") / static_cast<double>(documents.size()), error = candidate.standard_error(), reach = upper - mean;
  const double harmless = error > 0 ? normal_cdf((rule.limit - reach) / error) : reach <= rule.limit ? 1.0 : 0.0;
  result.figures = {{"documents", documents.size()}, {"targets", static_cast<std::int64_t>(sum_of(documents, "targets"))}, {"control_nll", control}};
  result.figures.update(candidate.figures);
  result.figures.update({{"limit", rule.limit},
                         {"rerun", rerun.figures},
                         {"floor", {{"control_nll_at_most", rule.floor}, {"met", control <= rule.floor}}},
                         {"power", {{"largest_mean_rise_that_passes_at_this_spread", rule.limit - reach}, {"chance_to_pass_without_any_rise_at_this_spread", harmless}}}});
  if (!(control <= rule.floor)) {
    result.verdict = Verdict::fail;
    result.why = fmt::format("native floor: the control's own NLL is {:.4f} and may be {:.4f}; that says nothing about the cache", control, rule.floor);
  } else {
    const bool passed = std::isfinite(upper) && upper <= rule.limit;
    result.verdict = passed ? Verdict::pass : Verdict::fail;
    result.why = fmt::format("mean rise {:+.6f} nats, upper limit {:+.6f}, {} the limit of {:.6f}", mean, upper, passed ? "within" : "past", rule.limit);
  }
  return result;
}

GateResult judge_answers(const std::string& gate, std::span<const std::string> labels, std::span<const nlohmann::json> control,
                         std::span<const nlohmann::json> rerun, std::span<const nlohmann::json> candidate, const AnswerRule& rule) {
  check(!control.empty() && labels.size() == control.size() && control.size() == rerun.size() && control.size() == candidate.size(), "every item in every arm");
  GateResult result{.gate = gate};
  PairedOutcomes outcomes, again;
  result.items = Figures::array();
  for (std::size_t i = 0; i < control.size(); ++i) {
    const bool native = control[i].at("right");
    outcomes.add(native, candidate[i].at("right"));
    again.add(native, rerun[i].at("right"));
    result.items.push_back({{"item", labels[i]}, {"control", control[i]}, {"rerun", rerun[i]}, {"candidate", candidate[i]}});
  }
  // Of answers that a model had no finite logit for, which are wrong.
  const auto errors = [](std::span<const nlohmann::json> outcomes) { return std::ranges::count_if(outcomes, [](const nlohmann::json& outcome) { return outcome.contains("error"); }); };
  const double upper = gross_loss_upper(outcomes.losses, outcomes.items);
  const std::optional<std::int64_t> most = most_losses_within(rule.limit, outcomes.items);
  const double own_rate = static_cast<double>(again.losses) / static_cast<double>(again.items), native = static_cast<double>(outcomes.control_right) / static_cast<double>(outcomes.items);
  result.figures = {{"candidate", as_json(outcomes, rule.limit)},
                    {"rerun", as_json(again, rule.limit)},
                    {"errors", {{"control", errors(control)}, {"rerun", errors(rerun)}, {"candidate", errors(candidate)}}},
                    {"limit", rule.limit},
                    {"floor", {{"control_right_at_least", rule.floor}, {"found", native}, {"met", native >= rule.floor}}},
                    {"power",
                     {{"most_losses_that_pass", most ? Figures(*most) : Figures()},
                      {"control_own_loss_rate", own_rate},
                      {"chance_to_pass_at_that_rate", chance_to_pass(rule.limit, outcomes.items, own_rate)}}}};
  if (!(native >= rule.floor)) {
    result.verdict = Verdict::fail;
    result.why = fmt::format("native floor: the control has {} of {} right and must have {:.0f} %; that says nothing about the cache", outcomes.control_right, outcomes.items, rule.floor * 100);
    return result;
  }
  const bool passed = upper <= rule.limit;
  result.verdict = passed ? Verdict::pass : Verdict::fail;
  result.why = fmt::format("{} losses of {} (control {} right, candidate {}, {} gains): upper limit {:.3f} %, {} the limit of {:.0f} %{}{}", outcomes.losses, outcomes.items,
                           outcomes.control_right, outcomes.candidate_right, outcomes.gains, upper * 100, passed ? "within" : "past", rule.limit * 100,
                           most ? "" : "; so few items cannot pass whatever they show",
                           errors(candidate) > 0 ? fmt::format("; {} of the candidate's answers had no finite logit", errors(candidate)) : "");
  return result;
}

Verdict overall(std::span<const GateResult> gates) {
  for (const GateResult& gate : gates) {
    if (gate.verdict != Verdict::pass) return gate.verdict;
  }
  return Verdict::pass;
}

}  // namespace keel
