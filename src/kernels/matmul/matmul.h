// y = W·x (+ bias), for several W that share x.
//
// Weights stay in their stored encoding, activations and results are f32.
//   f32, f16, bf16, awq4: f32 products and sums of the exact weights: |error| <= columns · 2^-24 · Σ|w·x|. The order of the sum
//     may depend on `tokens`.
//   q8_0 … q6_k: x is rounded once to integers of 16 bits, in runs of 32 columns that share a power of two; sums within a run
//     are exact. With X the run's largest |x| and b the block's offset (q4_1's m, q4_k's -dmin · minimum, else 0):
//     |error| <= Σ|w| · max(2^-15 · X, 2^-127) + columns/4 · 2^-24 · Σ(|w - b| + |b|) · |x|, to first order.
//     A token's results have the same bits in any company; those of a token with a NaN or infinity are NaN.
#pragma once

#include <cstddef>
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
  std::span<std::byte> workspace = {};  // matmul_workspace() of its largest weights
};

// Bytes of workspace, 4-byte aligned, that a product with such weights takes: x as integers.
std::int64_t matmul_workspace(const WeightMatrix& weights, std::int64_t tokens);

void matmul(const Stream& stream, const MatmulArgs& args);

// out[columns] = row `row` of the matrix, exactly. For embeddings, tests and references; awq4 too.
void dequantize_row(const WeightMatrix& weights, std::int64_t row, float* out);

}  // namespace keel
