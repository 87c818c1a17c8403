// One row of the cache write: a lane's eight elements normed, rotated, stored as the cache's types have them. Vectors are stored by __stwb:
// nvcc 13.0 makes four stores of a plain one here.
#pragma once

#include <cuda_fp8.h>

#include "kernels/vector_cuda.h"
#include "kv/cuda_page.h"

namespace keel::cuda::rope {

constexpr int kThreads = 128;
constexpr int kWarp = 32;
constexpr int kMostHeadDim = kWarp * kVector;

struct U4Parameters {
  __half scale, zero;
};

// Where K or V goes.
struct Side {
  std::byte* pages;
  std::int64_t page_bytes;
  int row_bytes;  // of a token's head
  Swizzle swizzle;
  DType type;
  int element_bits;
  const float* scales;
};

// What the kernels need of RopeWriteArgs. A row is one token's head: the q heads first, then k's, then v's.
struct Job {
  void *q, *k, *v;
  std::int64_t stride;
  int heads, kv_heads, head_dim;
  int group, group_shift;  // lanes a row, the power of two from head_dim / kVector, and its logarithm
  const float *q_norm, *k_norm;
  float epsilon, inverse_head_dim;
  int rotary_dim;
  bool interleaved;
  const float2* rope_table;
  const std::int32_t* positions;
  const std::int64_t* slots;
  Side keys, values;
  bool round;

  __device__ const float2* turns_of(std::int64_t token) const { return rope_table + static_cast<std::int64_t>(positions[token]) * (rotary_dim / 2); }
  // Of V as u4: the token's for head 0, heads kCudaPageSize apart.
  __device__ U4Parameters* parameters_of(std::int64_t slot) const {
    std::byte* page = values.pages + slot / kCudaPageSize * values.page_bytes;
    return reinterpret_cast<U4Parameters*>(page + static_cast<std::int64_t>(kv_heads) * kCudaPageSize * values.row_bytes) + slot % kCudaPageSize;
  }
};

__device__ float group_sum(float x, int group) {
#pragma unroll
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    if (offset < group) x += __shfl_xor_sync(~0u, x, offset);
  }
  return x;
}
__device__ float group_min(float x, int group) {
#pragma unroll
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    if (offset < group) x = fminf(x, __shfl_xor_sync(~0u, x, offset));
  }
  return x;
}
__device__ float group_max(float x, int group) { return -group_min(-x, group); }

// Where one lane's part of its token's row lies in the pages: at + head · head_bytes. at is null for a token without a slot.
struct Target {
  std::byte* at;
  int head_bytes;
};
// `dim`: the lane's first.
__device__ Target target(const Side& side, std::int64_t slot, int dim) {
  const int head_bytes = kCudaPageSize * side.row_bytes, offset = dim * side.element_bits / 8;
  if (slot < 0) return {nullptr, head_bytes};
  const int place = static_cast<int>(slot) & (kCudaPageSize - 1);
  const int chunk = side.swizzle(place, offset / kCudaChunkBytes);
  const int within = place * side.row_bytes + chunk * kCudaChunkBytes + offset % kCudaChunkBytes;
  return {side.pages + static_cast<std::int64_t>(static_cast<std::uint64_t>(slot) / kCudaPageSize) * side.page_bytes + within, head_bytes};
}

// NaNs become quiet, as they do on their way through f32 on the CPU.
template <class T>
__device__ uint4 quiet(uint4 packed) {
  constexpr std::uint32_t kInfinity = std::is_same_v<T, __half> ? 0x7c00 : 0x7f80;
  constexpr std::uint32_t kQuiet = std::is_same_v<T, __half> ? 0x0200 : 0x0040;
  std::uint32_t words[4] = {packed.x, packed.y, packed.z, packed.w};
#pragma unroll
  for (std::uint32_t& word : words) {
    if ((word & 0x7fff) > kInfinity) word |= kQuiet;
    if ((word >> 16 & 0x7fff) > kInfinity) word |= kQuiet << 16;
  }
  return {words[0], words[1], words[2], words[3]};
}

// E4M3 of packed / scale; most models' scale is 1. The sign is the input's, of a NaN too: the hardware's conversion drops that one.
template <class T>
__device__ uint2 encode_e4m3(const uint4& packed, float scale) {
  float x[kVector];
  unpack<T>(packed, x);
  if (scale != 1) {
#pragma unroll
    for (float& value : x) value = __fdiv_rn(value, scale);
  }
  const std::uint32_t words[4] = {packed.x, packed.y, packed.z, packed.w};
  std::uint32_t codes[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 pair = {x[2 * i], x[2 * i + 1]};
    const std::uint32_t magnitudes = __nv_cvt_float2_to_fp8x2(pair, __NV_SATFINITE, __NV_E4M3) & 0x7f7fu;
    codes[i] = magnitudes | (words[i] >> 8 & 0x80u) | (words[i] >> 16 & 0x8000u);
  }
  return {codes[0] | codes[1] << 16, codes[2] | codes[3] << 16};
}

__device__ void decode_e4m3(const uint2& codes, float scale, float (&x)[kVector]) {
  const std::uint32_t words[2] = {codes.x, codes.y};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const auto pair = static_cast<__nv_fp8x2_storage_t>(words[i / 2] >> (i % 2 * 16));
    const float2 values = __half22float2(__half2(__nv_cvt_fp8x2_to_halfraw2(pair, __NV_E4M3)));
    x[2 * i] = __fmul_rn(values.x, scale);
    x[2 * i + 1] = __fmul_rn(values.y, scale);
  }
}

// Of a row's extremes; infinite extremes stand for a row with an infinity or NaN. Operation by operation the CPU's.
__device__ U4Parameters u4_parameters(float low, float high) {
  low = __fadd_rn(low, 0.0f);  // -0 and 0 are one
  high = __fadd_rn(high, 0.0f);
  const U4Parameters found{__float2half_rn(__fdiv_rn(__fsub_rn(high, low), 15.0f)), __float2half_rn(low)};
  if (isfinite(__half2float(found.scale)) && isfinite(__half2float(found.zero))) return found;
  return {__ushort_as_half(0), __ushort_as_half(0x7e00)};  // zero = NaN: the row reads back as NaN
}

__device__ std::uint32_t encode_u4(const float (&x)[kVector], U4Parameters parameters) {
  const float scale = __half2float(parameters.scale);
  const float zero = __half2float(parameters.zero);
  if (scale == 0) return 0;
  std::uint32_t codes = 0;
#pragma unroll
  for (int j = 0; j < kVector; ++j) {
    const float code = rintf(__fdiv_rn(__fsub_rn(x[j], zero), scale));
    codes |= static_cast<std::uint32_t>(fminf(fmaxf(code, 0.0f), 15.0f)) << (4 * j);
  }
  return codes;
}

__device__ void decode_u4(std::uint32_t codes, U4Parameters parameters, float (&x)[kVector]) {
#pragma unroll
  for (int j = 0; j < kVector; ++j) {
    x[j] = __fmaf_rn(__half2float(parameters.scale), static_cast<float>(codes >> (4 * j) & 15u), __half2float(parameters.zero));
  }
}

// Stores one lane's part of a row of K or V as its type has it; returns what the stored bytes read back as, rounded to T.
template <class T>
__device__ uint4 store(const Side& side, const Target& target, const uint4& packed, int head) {
  std::byte* to = target.at + head * target.head_bytes;
  if (side.type != DType::e4m3) {
    const uint4 same = quiet<T>(packed);
    if (target.at != nullptr) __stwb(reinterpret_cast<uint4*>(to), same);
    return same;
  }
  const float scale = side.scales[head];
  const uint2 codes = encode_e4m3<T>(packed, scale);
  if (target.at != nullptr) __stwb(reinterpret_cast<uint2*>(to), codes);
  float x[kVector];
  decode_e4m3(codes, scale, x);
  return pack<T>(x);
}

// The same for V as u4. `parameters`: the token's for head 0, heads kCudaPageSize apart.
// All lanes of the warp call it, `active` those that hold a part of a row of V.
template <class T>
__device__ uint4 store_u4(const Job& job, const Target& values, U4Parameters* parameters, const uint4& packed, int head, bool active) {
  float x[kVector];
  unpack<T>(packed, x);
  float low = INFINITY, high = -INFINITY;
#pragma unroll
  for (int j = 0; j < kVector; ++j) {
    low = fminf(low, isfinite(x[j]) ? x[j] : -INFINITY);
    high = fmaxf(high, isfinite(x[j]) ? x[j] : INFINITY);
  }
  low = group_min(active ? low : INFINITY, job.group);
  high = group_max(active ? high : -INFINITY, job.group);
  if (!active) return packed;
  const U4Parameters found = u4_parameters(low, high);
  const std::uint32_t codes = encode_u4(x, found);
  if (values.at != nullptr) {
    *reinterpret_cast<std::uint32_t*>(values.at + head * values.head_bytes) = codes;
    if ((threadIdx.x & (job.group - 1)) == 0) parameters[head * kCudaPageSize] = found;
  }
  decode_u4(codes, found, x);
  return pack<T>(x);
}

// Of a token's row of the table: cosine and sine for each of a lane's dimensions, the sine with the sign that this member of its pair wants.
// kAligned: half pairs whose halves are whole vectors, so that a lane's partners are all one other lane's.
template <bool kAligned>
__device__ void load_turns(const Job& job, const float2* table, int dim, float2 (&turns)[kVector]) {
  const int pairs = job.rotary_dim / 2;
  if constexpr (kAligned) {
    if (dim >= job.rotary_dim) return;
    const bool second = dim >= pairs;
    const auto* four_floats = reinterpret_cast<const float4*>(table + (second ? dim - pairs : dim));
#pragma unroll
    for (int j = 0; j < kVector; j += 2) {
      const float4 two = four_floats[j / 2];
      turns[j] = {two.x, second ? two.y : -two.y};
      turns[j + 1] = {two.z, second ? two.w : -two.w};
    }
  } else {
#pragma unroll
    for (int j = 0; j < kVector; ++j) {
      if (dim + j >= job.rotary_dim) continue;
      const bool second = job.interleaved ? j % 2 == 1 : dim + j >= pairs;
      turns[j] = table[job.interleaved ? (dim + j) / 2 : second ? dim + j - pairs : dim + j];
      if (!second) turns[j].y = -turns[j].y;
    }
  }
}

template <bool kAligned>
__device__ void rotate(const Job& job, int dim, const float2 (&turns)[kVector], float (&x)[kVector]) {
  const int pairs = job.rotary_dim / 2;
  float partner[kVector];
  if constexpr (kAligned) {
    const int source = (dim < pairs ? dim + pairs : dim - pairs) / kVector;
#pragma unroll
    for (int j = 0; j < kVector; ++j) partner[j] = __shfl_sync(~0u, x[j], source, job.group);
  } else {
    // Half pairs: the partner is `pairs` dimensions away, a multiple of 4, so in place j or j ^ 4 of another lane.
    const bool swap = pairs % kVector != 0;
#pragma unroll
    for (int j = 0; j < kVector; ++j) {
      const int other = dim + j < pairs ? dim + j + pairs : dim + j - pairs;
      partner[j] = job.interleaved ? x[j ^ 1] : __shfl_sync(~0u, swap ? x[j ^ 4] : x[j], other / kVector, job.group);
    }
  }
#pragma unroll
  for (int j = 0; j < kVector; ++j) {
    if (dim + (kAligned ? 0 : j) < job.rotary_dim) x[j] = x[j] * turns[j].x + partner[j] * turns[j].y;
  }
}

__device__ void load_weights(const float* weight, float (&weights)[kVector]) {
  const auto* four = reinterpret_cast<const float4*>(weight);
  const float4 low = four[0], high = four[1];
  weights[0] = low.x, weights[1] = low.y, weights[2] = low.z, weights[3] = low.w;
  weights[4] = high.x, weights[5] = high.y, weights[6] = high.z, weights[7] = high.w;
}

// 1 / rms(x). All lanes of the warp call it.
__device__ float inverse_rms(const Job& job, const float (&x)[kVector]) {
  float squares = 0;
#pragma unroll
  for (int j = 0; j < kVector; ++j) squares += x[j] * x[j];
  return rsqrtf(group_sum(squares, job.group) * job.inverse_head_dim + job.epsilon);
}

__device__ void scale(float (&x)[kVector], float inverse, const float (&weights)[kVector]) {
#pragma unroll
  for (int j = 0; j < kVector; ++j) x[j] *= inverse * weights[j];
}

// x / rms(x) · weight. All lanes of the warp call it; rows without a weight stay.
__device__ void norm(const Job& job, const float* weight, int dim, float (&x)[kVector]) {
  const float inverse = inverse_rms(job, x);
  if (weight == nullptr || dim >= job.head_dim) return;
  float weights[kVector];
  load_weights(weight + dim, weights);
  scale(x, inverse, weights);
}

}  // namespace keel::cuda::rope
