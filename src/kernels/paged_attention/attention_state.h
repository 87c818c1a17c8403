// Softmax attention over a part of the context, in a form that can be joined with other parts.
//
// For each of `rows` query rows: max = the largest score seen (base-2 units), sum = Σ 2^(score - max),
// out = Σ 2^(score - max) · v. A row that has seen nothing has max = -infinity, sum = 0, out = 0.
// merge() is exact up to f32 rounding and deterministic; it is not associative to the last bit, so parts are always
// joined in the order of their positions.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

namespace keel {

// A view of rows · (head_dim + 2) floats.
struct AttentionState {
  float* max;  // [rows]
  float* sum;  // [rows]
  float* out;  // [rows, head_dim]

  static std::int64_t floats(std::int64_t rows, std::int64_t head_dim) {
    return rows * (head_dim + 2);
  }
  static AttentionState at(float* memory, std::int64_t rows) {
    return {memory, memory + rows, memory + 2 * rows};
  }
};

// into = into joined with `from`, which covers later positions.
inline void merge(const AttentionState& into,
                  const AttentionState& from,
                  std::int64_t rows,
                  std::int64_t head_dim) {
  for (std::int64_t row = 0; row < rows; ++row) {
    if (from.sum[row] == 0.0f) continue;  // saw nothing; NaN compares unequal and goes through
    float* a = into.out + row * head_dim;
    const float* b = from.out + row * head_dim;
    const float max = into.max[row] > from.max[row] ? into.max[row] : from.max[row];
    const float keep = std::exp2(into.max[row] - max);
    const float add = std::exp2(from.max[row] - max);
    for (std::int64_t dim = 0; dim < head_dim; ++dim) a[dim] = a[dim] * keep + b[dim] * add;
    into.sum[row] = into.sum[row] * keep + from.sum[row] * add;
    into.max[row] = max;
  }
}

}  // namespace keel
