// Some rows of one product, on one thread: what matmul.cpp splits its work into and matmul_kernels.cpp computes.
#pragma once

#include <cstdint>

#include "kernels/matmul/weight_matrix.h"

namespace keel {

struct Product {
  WeightMatrix weights;  // [N, K]
  const float* bias;     // [N] or null
  const float* x;        // [tokens, x_stride]
  std::int64_t x_stride;
  std::int64_t tokens;
  float* out;  // [tokens, out_stride]
  std::int64_t out_stride;
  bool accumulate;
};

// Rows [first, first + count); of awq4, multiples of 8. Uses the instruction set in force (cpu_features.h).
void multiply_rows(const Product& product, std::int64_t first, std::int64_t count);

// Tasks should be multiples of this many rows.
constexpr std::int64_t kRowGranule = 8;

}  // namespace keel
