// One pass over a step's fresh queries, keys and values on CUDA: QK-norm, RoPE, rounding to the cache's types and the
// paged write (kv_write.h states the rounding; the stored bytes equal the CPU's for equal inputs).
//
// q and k are rotated in place in the model's type. The cache stores K rounded from that rotated, 16-bit value, so that every
// route sees the same keys. With `round`, k and v are overwritten in place by what their stored bytes read back as, rounded to
// the model's type: the fresh-prompt route then attends to the keys and values that decode will see.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "base/dtype.h"
#include "kernels/rope/rope.h"
#include "kv/view.h"

namespace keel::cuda {

// Every array is 16-byte aligned.
struct RopeWriteArgs {
  DType dtype;            // f16 or bf16: q, k and v
  void* q;                // [tokens, stride], H heads of D
  void* k;                // [tokens, stride], G heads of D
  void* v;                // [tokens, stride], G heads of D
  std::int64_t stride;    // elements between rows: q, k and v are usually parts of one fused row
  std::int64_t tokens;
  std::int64_t heads;
  const float* q_norm = nullptr;  // device, [D] or null
  const float* k_norm = nullptr;
  float norm_epsilon = 0;
  std::int64_t rotary_dim;  // a multiple of 8
  RopePairs pairs;
  const float* rope_table;          // device, [max positions][rotary_dim / 2][2]: cosine and sine, magnitude included
  const std::int32_t* positions;    // device, [tokens]
  const std::int64_t* slots;        // device, [tokens]: page · page_size + place, or -1: rotated but not stored
  KvLayerView kv;                   // pages and scales in device memory
  bool round = false;
};

void rope_write(cudaStream_t stream, const RopeWriteArgs& args);

// Fills [positions][rotary_dim / 2][2] on the host, in double before rounding: copied to the device once.
void fill_rope_table(float* table, std::int64_t positions, std::int64_t rotary_dim, const double* inverse_frequencies, float magnitude);

}  // namespace keel::cuda
