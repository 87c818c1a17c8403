// Which shapes of attention deserve a plan of their own: those whose calls, served by a slower plan of many lengths, have lost the time
// that building one takes. So building never takes more time than going without has taken before.
#pragma once

#include <cstddef>
#include <map>

#include "kernels/paged_attention/cudnn_sdpa.h"

namespace keel::cuda {

class PlanTally {
 public:
  static constexpr std::size_t kMostShapes = 64;
  // Building takes some 50 ms; at 550 TFLOP/s these lose as much to a plan of many lengths, which takes 6 % longer (H200, cuDNN 9.14).
  static constexpr double kFlopOfAPlan = 0.05 / 0.06 * 550e12;

  // Counts a call without a plan of its own. True when the shape has earned one; it is forgotten then.
  bool earns(const SdpaShape& shape);
  std::size_t shapes() const { return flop_.size(); }

 private:
  std::map<SdpaShape, double> flop_;  // of the kMostShapes with the most, of those that were counted while they were in it
};

double flop_of(const SdpaShape& shape);  // of scores that a causal mask leaves, and of their values

}  // namespace keel::cuda
