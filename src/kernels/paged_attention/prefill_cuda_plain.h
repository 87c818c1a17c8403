// Plain prefill attention (see prefill_cuda.h): the launch, and one function a pair of tensor-core types.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "kernels/paged_attention/prefill_cuda.h"

namespace keel::cuda {

// The geometry must be one that plain_prefill_refusal() accepts.
void prefill_plain(cudaStream_t stream, const PrefillAttentionArgs& args);

struct PlainSequence {
  std::int64_t first_row, table_row;
  std::int32_t rows, context;
  std::int32_t first_tile;  // of the launch
};
inline constexpr int kPlainSequences = 96;  // a launch

// The kernel's parameter.
struct PlainParameters {
  const void* q;
  void* out;
  std::int64_t q_stride, out_stride;
  const std::byte* keys;
  const std::byte* values;
  const float* key_scales;
  const float* value_scales;
  const std::int32_t* page_table;
  std::int64_t page_table_stride, key_page_bytes, value_page_bytes, parameters_offset;
  float softmax_scale;
  std::int32_t group, kv_heads, key_bits, value_bits, sequences, tiles;
  PlainSequence sequence[kPlainSequences];
};
static_assert(sizeof(PlainParameters) <= 4096);  // what a launch takes

inline constexpr int kPlainWarps = 8;
inline constexpr int kPlainRows = kPlainWarps * 16;  // of a block: query rows times the heads of a KV head

namespace plain {
// q, keys and out in the first type; P and values in the second (f16 also for a bf16 model's E4M3 and u4 values: they are
// exact there, and P has 11 bits instead of 8).
void launch_f16(cudaStream_t stream, const PlainParameters& p, std::int64_t head_dim);
void launch_bf16(cudaStream_t stream, const PlainParameters& p, std::int64_t head_dim);
void launch_bf16_f16(cudaStream_t stream, const PlainParameters& p, std::int64_t head_dim);
}  // namespace plain
}  // namespace keel::cuda
