// How a step's decode work is spread over the device, and where the pieces of a split context meet.
//
// A unit is one KV head of one sequence with up to 8·tiles query columns (column = row · group + head of the group; a
// second block of columns is a second unit). The units' pages, laid end to end in the order (sequence, unit, page), are
// cut into equal runs, one a warp. A unit cut between warps of a CTA is merged in shared memory, one cut between CTAs
// through the workspace by whichever arrives last, always in the order of the pages: the bytes do not depend on timing.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "kernels/paged_attention/decode_cuda_shape.h"

namespace keel::cuda {

// Divides numbers below 4096 by 1 to 16 without the many instructions of a division.
struct Divisor {
  int by;
  std::uint32_t inverse;  // ceil(2^16 / by)

  Divisor(int divisor) : by(divisor), inverse((65536 + divisor - 1) / divisor) {}
#ifdef __CUDACC__
  __device__ operator int() const { return by; }
  __device__ friend int operator/(int x, const Divisor& d) { return static_cast<int>(x * d.inverse >> 16); }
  __device__ friend int operator%(int x, const Divisor& d) { return x - x / d * d.by; }
#endif
};

struct DecodeParams {
  const void* q;
  std::int64_t q_stride;
  void* out;
  std::int64_t out_stride;
  bool bf16;  // q and out
  const std::byte* keys;
  const std::byte* values;
  std::int64_t key_page_bytes, value_page_bytes;
  const float* key_scales;
  const float* value_scales;
  const std::int32_t* page_table;
  std::int64_t page_table_stride;
  const std::int32_t* contexts;
  int sequences;
  int rows;
  Divisor group;   // query heads a KV head
  Divisor blocks;  // of 8·tiles columns
  int units;   // a sequence: kv_heads · blocks; unit = kv_head · blocks + block
  float scale_log2;  // softmax_scale · log2 e
  bool early;        // launched before the kernel before it has ended: see DecodeAttentionArgs
  DecodeWorkspace workspace;
};

void plan_decode(cudaStream_t stream, const DecodeParams& params, int ctas, int warps);

// One file a key type, for compile time. `value` and `dim` must be served.
void launch_decode_f16_keys(cudaStream_t stream, const DecodeParams& params, DType value, int dim, int ctas);
void launch_decode_bf16_keys(cudaStream_t stream, const DecodeParams& params, DType value, int dim, int ctas);
void launch_decode_e4m3_keys(cudaStream_t stream, const DecodeParams& params, DType value, int dim, int ctas);

}  // namespace keel::cuda
