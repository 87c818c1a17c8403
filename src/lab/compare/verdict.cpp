#include "lab/compare/verdict.h"

#include <algorithm>

#include "base/error.h"
#include "base/sha256.h"
#include "base/text_file.h"

namespace keel {
namespace {

const ArmRun* run_of(const CompareBlock& block, const std::string& arm) {
  const auto found = std::ranges::find(block.runs, arm, &ArmRun::arm);
  return found == block.runs.end() ? nullptr : &*found;
}

std::optional<double> figure_of(const CompareBlock& block, const std::string& arm, ArmMetric metric) {
  const ArmRun* run = run_of(block, arm);
  if (run == nullptr || !run->error.empty()) return std::nullopt;
  const auto found = run->figures.find(metric);
  return found == run->figures.end() ? std::nullopt : std::optional(found->second);
}

RatioFigures ratios_of(const ComparePlan& plan, const PlannedComparison& comparison, ArmMetric metric, const std::vector<CompareBlock>& blocks) {
  RatioFigures figures;
  std::vector<double> present, candidates, controls;
  for (std::size_t i = 0; i < static_cast<std::size_t>(plan.blocks); ++i) {
    figures.ratios.emplace_back();
    if (i >= blocks.size()) continue;
    const auto candidate = figure_of(blocks[i], comparison.candidate, metric), control = figure_of(blocks[i], comparison.control, metric);
    if (!candidate || !control) continue;
    figures.ratios.back() = info(metric).rate ? *candidate / *control : *control / *candidate;
    present.push_back(*figures.ratios.back()), candidates.push_back(*candidate), controls.push_back(*control);
  }
  figures.present = present.size();
  if (present.empty()) return figures;
  figures.median = median(present), figures.interval = bootstrap_median_interval(present);
  figures.candidate = median(candidates), figures.control = median(controls);
  return figures;
}

// What the candidate said it runs; null before its first run that did not fail.
PlanJson subject_of(const std::string& arm, const std::vector<CompareBlock>& blocks) {
  for (const CompareBlock& block : blocks) {
    const ArmRun* run = run_of(block, arm);
    if (run != nullptr && run->error.empty() && run->ran.is_object()) return run->ran.value("subject", PlanJson());
  }
  return nullptr;
}

ComparisonGate gate_result(const ComparePlan& plan, const PlannedComparison& comparison, const std::string& record, const std::string& folder, const std::vector<CompareBlock>& blocks) {
  const auto frozen = std::ranges::find(plan.gate_digests, record, &std::pair<std::string, std::string>::first);
  try {
    const std::string digest = hex(sha256(read_text_file(std::filesystem::path(folder) / record)));
    if (frozen == plan.gate_digests.end() || frozen->second != digest) return {.record = record, .words = "not the record that was there when the plan was frozen"};
  } catch (const Error& error) {
    return {.record = record, .words = error.what()};
  }
  ComparisonGate gate = read_gate(record, folder, subject_of(comparison.candidate, blocks));
  const std::int64_t longest = plan.workload.longest_input() + plan.workload.longest_output();
  if (gate.passes && longest > gate.tested_tokens) gate.words += fmt::format(", and the workload's contexts have up to {}: nothing is known of it beyond", longest);
  return gate;
}

void missing_blocks(ComparisonResult& result, const std::vector<CompareBlock>& blocks) {
  const std::size_t planned = result.figures.ratios.size();
  for (std::size_t i = 0; i < std::min(planned, blocks.size()); ++i) {
    if (result.figures.ratios[i]) continue;
    std::string why;
    for (const std::string& arm : {result.planned.candidate, result.planned.control}) {
      const ArmRun* run = run_of(blocks[i], arm);
      if (run != nullptr && !run->error.empty()) {
        why = arm + " failed: " + run->error;
      } else if (why.empty() && !figure_of(blocks[i], arm, result.planned.metric)) {
        why = fmt::format("{} has no {}", arm, info(result.planned.metric).key);
      }
    }
    result.reasons.push_back(fmt::format("block {}: {}", i + 1, why));
  }
  if (blocks.size() < planned) result.reasons.push_back(fmt::format("blocks {} to {} are not run yet", blocks.size() + 1, planned));
}

// All that a comparison's verdict rests on.
ComparisonResult figures_of(const ComparePlan& plan, const PlannedComparison& planned, const std::string& folder, const std::vector<CompareBlock>& blocks) {
  ComparisonResult result{.planned = planned, .gates = {}, .figures = ratios_of(plan, planned, planned.metric, blocks), .beside = {}, .sign = {}, .reasons = {}};
  for (const std::string& gate : planned.gates) result.gates.push_back(gate_result(plan, planned, gate, folder, blocks));
  for (const MetricInfo& metric : kArmMetrics) {
    RatioFigures beside = ratios_of(plan, planned, metric.metric, blocks);
    if (metric.metric != planned.metric && beside.present > 0) result.beside[metric.metric] = std::move(beside);
  }
  missing_blocks(result, blocks);
  if (result.figures.present < result.figures.ratios.size()) return result;
  std::vector<double> ratios;
  for (const auto& ratio : result.figures.ratios) ratios.push_back(*ratio);
  result.sign = sign_test(ratios);
  if (planned.kind == ComparisonKind::gain) result.p = result.sign->p;
  return result;
}

void decide_gain(ComparisonResult& result) {
  const bool gates = std::ranges::all_of(result.gates, &ComparisonGate::passes);
  for (const ComparisonGate& gate : result.gates) {
    if (!gate.passes) result.reasons.push_back(fmt::format("gate {}: {}", gate.record, gate.words));
  }
  if (!result.sign) return;
  const double ratio = *result.figures.median;
  if (ratio < kLeastGain) result.reasons.push_back(fmt::format("the median ratio {:.6g} is below {}", ratio, kLeastGain));
  if (result.adjusted_p > kMostGainP) result.reasons.push_back(fmt::format("the adjusted p {:.6g} is above {}", result.adjusted_p, kMostGainP));
  result.verdict = confirmed_gain(gates, ratio, result.adjusted_p) ? ComparisonVerdict::gain : ComparisonVerdict::no_gain;
}

void decide_guard(ComparisonResult& result) {
  if (!result.sign) return;
  const double ratio = *result.figures.median;
  result.verdict = ratio >= kLeastGuard ? ComparisonVerdict::guard_holds : ComparisonVerdict::guard_fails;
  if (ratio < kLeastGuard) result.reasons.push_back(fmt::format("the median ratio {:.6g} is below {}", ratio, kLeastGuard));
}

// Of the comparisons of one kind: where there are gains, guards stand apart.
void sum_up(CompareResult& result, ComparisonKind kind) {
  const bool gains = kind == ComparisonKind::gain;
  std::size_t all = 0, good = 0, missing = 0;
  for (const ComparisonResult& one : result.comparisons) {
    if (one.planned.kind != kind) continue;
    ++all;
    good += one.verdict == (gains ? ComparisonVerdict::gain : ComparisonVerdict::guard_holds);
    missing += one.verdict == ComparisonVerdict::not_reached;
  }
  if (missing > 0) {
    result.headline = fmt::format("Not reached: {} of {} {} no verdict", missing, all, all == 1 ? "comparison has" : "comparisons have");
    return;
  }
  result.headline = gains && good == 0 ? "No confirmed gain" : fmt::format("{} of {} {}", good, all, gains ? "planned gains are confirmed" : "guards hold");
  result.exit_code = good == all ? 0 : 1;
  result.overall = gains ? (good == all ? ComparisonVerdict::gain : ComparisonVerdict::no_gain) : (good == all ? ComparisonVerdict::guard_holds : ComparisonVerdict::guard_fails);
}

}  // namespace

std::string_view name(ComparisonVerdict verdict) {
  switch (verdict) {
    case ComparisonVerdict::gain: return "gain confirmed";
    case ComparisonVerdict::no_gain: return "no confirmed gain";
    case ComparisonVerdict::guard_holds: return "guard holds";
    case ComparisonVerdict::guard_fails: return "guard fails";
    case ComparisonVerdict::not_reached: return "not reached";
  }
  return "";
}

CompareResult judge(const ComparePlan& plan, const std::vector<CompareBlock>& blocks, const std::string& folder) {
  CompareResult result{.finished = static_cast<std::int64_t>(blocks.size()), .planned = plan.blocks, .failed = {}, .comparisons = {}, .headline = ""};
  for (const CompareBlock& block : blocks) {
    for (const ArmRun& run : block.runs) {
      if (!run.error.empty()) result.failed.push_back({block.number, run.arm, run.error});
    }
  }
  std::vector<double> family;  // of the gains, in the plan's order
  for (const PlannedComparison& planned : plan.comparisons) {
    result.comparisons.push_back(figures_of(plan, planned, folder, blocks));
    if (planned.kind == ComparisonKind::gain) family.push_back(result.comparisons.back().p);
  }
  const std::vector<double> adjusted = family.empty() ? std::vector<double>{} : holm(family, plan.family);
  auto next = adjusted.begin();
  for (ComparisonResult& one : result.comparisons) {
    if (one.planned.kind == ComparisonKind::guard) {
      decide_guard(one);
    } else {
      one.adjusted_p = *next++;
      decide_gain(one);
    }
  }
  sum_up(result, family.empty() ? ComparisonKind::guard : ComparisonKind::gain);
  return result;
}

}  // namespace keel
