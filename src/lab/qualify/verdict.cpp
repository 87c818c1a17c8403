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

GateResult judge_nll(std::span<const nlohmann::json> documents, const NllRule& rule) {
  GateResult result{.gate = "nll"};
  const auto n = static_cast<double>(documents.size());
  std::vector<double> rise, rerun_rise;
  double control = 0, kl = 0, rerun_kl = 0;
  std::int64_t targets = 0, same_top = 0, rerun_same_top = 0;
  result.items = Figures::array();
  for (std::size_t i = 0; i < documents.size(); ++i) {
    const nlohmann::json& document = documents[i];
    Figures item{{"document", i}};
    for (const char* key : {"control", "rerun", "candidate", "kl_rerun", "kl_candidate", "same_top_rerun", "same_top_candidate", "targets"}) {
      item[key] = document.at(key);
      if (!document.at(key).is_null() || !result.why.empty()) continue;
      result.verdict = Verdict::fail;
      const bool is_control = key == std::string_view("control") || key == std::string_view("rerun");
      result.why = fmt::format("document {}: '{}' is no finite number{}", i, key, is_control ? ", of 16-bit keys and values: that says nothing about the candidate" : "");
    }
    result.items.push_back(std::move(item));
    if (result.verdict == Verdict::fail) continue;
    const double native = document.at("control");
    rise.push_back(document.at("candidate").get<double>() - native);
    rerun_rise.push_back(document.at("rerun").get<double>() - native);
    control += native / n;
    kl += document.at("kl_candidate").get<double>() / n;
    rerun_kl += document.at("kl_rerun").get<double>() / n;
    targets += document.at("targets").get<std::int64_t>();
    same_top += document.at("same_top_candidate").get<std::int64_t>();
    rerun_same_top += document.at("same_top_rerun").get<std::int64_t>();
  }
  if (result.verdict == Verdict::fail) return result;
  const MeanLimit found = bootstrap_mean_upper(rise), again = bootstrap_mean_upper(rerun_rise);
  double squares = 0;
  for (const double x : rise) squares += (x - found.mean) * (x - found.mean);
  const double error = rise.size() > 1 ? std::sqrt(squares / (n - 1) / n) : 0, reach = found.upper - found.mean;
  const double harmless = error > 0 ? normal_cdf((rule.limit - reach) / error) : reach <= rule.limit ? 1.0 : 0.0;
  result.figures = {{"documents", documents.size()},
                    {"targets", targets},
                    {"control_nll", control},
                    {"mean_rise", found.mean},
                    {"rise_upper", found.upper},
                    {"limit", rule.limit},
                    {"mean_kl", kl},
                    {"top1_agreement", static_cast<double>(same_top) / static_cast<double>(targets)},
                    {"rerun", {{"mean_rise", again.mean}, {"rise_upper", again.upper}, {"mean_kl", rerun_kl}, {"top1_agreement", static_cast<double>(rerun_same_top) / static_cast<double>(targets)}}},
                    {"floor", {{"control_nll_at_most", rule.floor}, {"met", control <= rule.floor}}},
                    {"power", {{"largest_mean_rise_that_passes_at_this_spread", rule.limit - reach}, {"chance_to_pass_without_any_rise_at_this_spread", harmless}}}};
  if (!(control <= rule.floor)) {
    result.verdict = Verdict::fail;
    result.why = fmt::format("native floor: the control's own NLL is {:.4f} and may be {:.4f}; that says nothing about the cache", control, rule.floor);
  } else {
    const bool passed = std::isfinite(found.upper) && found.upper <= rule.limit;
    result.verdict = passed ? Verdict::pass : Verdict::fail;
    result.why = fmt::format("mean rise {:+.6f} nats, upper limit {:+.6f}, {} the limit of {:.6f}", found.mean, found.upper, passed ? "within" : "past", rule.limit);
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
