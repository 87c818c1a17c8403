// What the blocks say: within-block ratios, their tests, and one verdict a comparison. Nothing here measures.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "lab/compare/blocks.h"
#include "lab/compare/gate.h"
#include "lab/stats.h"

namespace keel {

inline constexpr double kLeastGuard = 0.99;  // a screen for harm, no claim of equality

struct RatioFigures {
  std::vector<std::optional<double>> ratios;  // one a planned block; above 1 the candidate is better
  std::size_t present = 0;
  std::optional<double> median;               // of those present
  std::optional<Interval> interval;
  std::optional<double> candidate, control;   // medians of the figure itself over the blocks that both have
};

enum class ComparisonVerdict { gain, no_gain, guard_holds, guard_fails, not_reached };
std::string_view name(ComparisonVerdict verdict);  // "gain confirmed", "no confirmed gain", …

struct ComparisonResult {
  PlannedComparison planned;
  std::vector<ComparisonGate> gates;
  RatioFigures figures;                       // of the planned metric
  std::map<ArmMetric, RatioFigures> beside;   // of the others that both arms have: described, not judged
  std::optional<SignTest> sign;               // none where a block is missing
  double p = 1, adjusted_p = 1;               // 1 where missing; a guard has none
  ComparisonVerdict verdict = ComparisonVerdict::not_reached;
  std::vector<std::string> reasons;           // of anything but a plain yes
};

struct FailedRun {
  std::int64_t block;
  std::string arm, reason;
};

struct CompareResult {
  std::int64_t finished = 0, planned = 0;
  std::vector<FailedRun> failed;
  std::vector<ComparisonResult> comparisons;
  ComparisonVerdict overall = ComparisonVerdict::not_reached;
  std::string headline;
  int exit_code = 2;  // 0 every planned gain confirmed (a plan of guards alone: all hold), 1 not, 2 not reached
};

// `folder`: what gate paths are relative to.
CompareResult judge(const ComparePlan& plan, const std::vector<CompareBlock>& blocks, const std::string& folder);

}  // namespace keel
