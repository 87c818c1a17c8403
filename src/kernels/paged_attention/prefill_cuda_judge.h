// What the tests of CUDA's prefill attention judge by.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "kernels/cuda_test.h"
#include "kernels/paged_attention/prefill_cuda.h"
#include "kernels/paged_attention/prefill_cuda_scene.h"

namespace keel::cuda {

constexpr std::int64_t kMiB = 1 << 20;

using NativeRoute = void (PrefillAttention::*)(cudaStream_t, const PrefillAttentionArgs&, std::vector<PrefillRefusal>*);

// Roundoff of a probability as the plain kernel multiplies it.
inline double plain_p_unit(const PrefillShape& shape) { return shape.format.value == DType::bf16 ? 0x1p-8 : 0x1p-11; }

// Of cuDNN's kernels on inputs in the model's type.
inline double native_p_unit(const PrefillShape& shape) { return shape.dtype == DType::f16 ? 0x1p-10 : 0x1p-7; }

inline void expect_right(const PrefillScene::Verdict& verdict, const std::string& what) {
  EXPECT_EQ(verdict.unwritten, 0) << what;
  EXPECT_EQ(verdict.overwritten, 0) << what;
  EXPECT_EQ(verdict.wrong, 0) << what << ": " << verdict.worst << " of the bound at " << verdict.where;
}

// What holds a merge of `rows` and gathers `tokens` at once.
inline std::int64_t workspace_for(const PrefillShape& shape, std::int64_t rows, std::int64_t tokens) {
  const std::int64_t heads = shape.group * shape.kv_heads;
  return rows * heads * (shape.head_dim * 6 + 8) + (tokens + kPrefillSpareRows) * 2 * shape.kv_heads * shape.head_dim * 2;
}

}  // namespace keel::cuda
