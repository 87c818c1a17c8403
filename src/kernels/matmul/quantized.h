// Activations as the products with quantised weights take them: 16-bit integers that share a power of two in runs of 32.
//
// x = scale · code within half a scale, which is at most 2^-15 of the run's largest |x| (or 2^-127). A run with a NaN or
// infinity has the scale NaN, and so has all that is computed from it.
#pragma once

#include <cstdint>

#include "kernels/matmul/weight_matrix.h"

namespace keel {

constexpr std::int64_t kRunColumns = 32;

struct QuantizedRun {
  std::int16_t codes[kRunColumns];  // each four columns in the order 0 2 1 3, as pairs come out of packed weights
  float scale;
  float sum;  // scale · the sum of codes: what a block's offset multiplies
};

// Tokens are multiplied in groups of at most eight. Memory: [group][run][slot of the group]. The last group may have more slots
// than tokens, since kernels exist for 1, 2, 4, 6 and 8; such slots are zeros.
constexpr std::int64_t kGroupTokens = 8;

constexpr std::int64_t group_slots(std::int64_t tokens) {
  return tokens <= 2 ? tokens : (tokens + 1) / 2 * 2;
}
constexpr std::int64_t slots(std::int64_t tokens) {
  return tokens / kGroupTokens * kGroupTokens + group_slots(tokens % kGroupTokens);
}

// Whether products with this type take quantised activations.
bool is_quantized(WeightType type);

struct QuantizeArgs {
  const float* x;  // [tokens, x_stride], columns used
  std::int64_t x_stride;
  std::int64_t tokens;   // of this group
  std::int64_t columns;  // a multiple of 32
  QuantizedRun* out;     // this group's
};

// Runs [first, last) of one group.
void quantize_group(const QuantizeArgs& args, std::int64_t first, std::int64_t last);

}  // namespace keel
