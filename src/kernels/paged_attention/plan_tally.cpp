#include "kernels/paged_attention/plan_tally.h"

#include <algorithm>

namespace keel::cuda {

double flop_of(const SdpaShape& s) {
  const auto rows = static_cast<double>(s.q_tokens), before = static_cast<double>(s.kv_tokens - s.q_tokens);
  return 4.0 * static_cast<double>(s.batch * s.heads * s.head_dim) * rows * (before + 0.5 * (rows + 1));
}

bool PlanTally::earns(const SdpaShape& shape) {
  if (!flop_.contains(shape) && flop_.size() >= kMostShapes) {
    flop_.erase(std::min_element(flop_.begin(), flop_.end(), [](const auto& a, const auto& b) { return a.second < b.second; }));
  }
  double& flop = flop_[shape];
  flop += flop_of(shape);
  if (flop < kFlopOfAPlan) return false;
  flop_.erase(shape);
  return true;
}

}  // namespace keel::cuda
