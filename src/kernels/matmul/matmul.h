// y = W·x (+ bias), for several W that share x.
//
// Weights stay in their stored encoding; activations, sums and results are f32, so a product is the exact dequantised
// weights' one up to f32 summation: |error| <= columns · 2^-24 · Σ|w·x|. The order of the sum may depend on `tokens`.
#pragma once

#include <cstdint>
#include <span>

#include "device/stream.h"
#include "kernels/matmul/weight_matrix.h"

namespace keel {

struct MatmulOutput {
  WeightMatrix weights;         // [N, K]
  const float* bias = nullptr;  // [N] or null
  float* out;                   // [tokens, out_stride]; only the first N of each row are written
  std::int64_t out_stride;
  bool accumulate = false;      // out += instead of out =
};

struct MatmulArgs {
  const float* x;          // [tokens, x_stride], K used; must not overlap any out
  std::int64_t x_stride;
  std::int64_t tokens;
  std::span<const MatmulOutput> outputs;
};

void matmul(const Stream& stream, const MatmulArgs& args);

// out[columns] = row `row` of the matrix, exactly. For embeddings, tests and references; awq4 too.
void dequantize_row(const WeightMatrix& weights, std::int64_t row, float* out);

}  // namespace keel
