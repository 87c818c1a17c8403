// Some rows of one product, on one thread: what matmul.cpp splits its work into and matmul_kernels.cpp computes.
#pragma once

#include <cstdint>

#include "kernels/matmul/quantized.h"
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
  const QuantizedRun* quantized;  // x in groups, where is_quantized(weights.type)
};

// Rows [first, first + count); of awq4, multiples of 8. Use the instruction set in force (cpu_features.h). The first takes the
// types whose products are of f32, the second those of is_quantized().
void multiply_rows(const Product& product, std::int64_t first, std::int64_t count);
void multiply_rows_quantized(const Product& product, std::int64_t first, std::int64_t count);

// Tasks should be multiples of this many rows.
constexpr std::int64_t kRowGranule = 16;

}  // namespace keel
