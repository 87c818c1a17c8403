// Eight 16-bit floats as one 16-byte access, for CUDA's pointwise kernels. Arithmetic is f32.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>


#include <cstdint>
#include <string>

#include "base/dtype.h"
#include "base/error.h"

namespace keel::cuda {

inline constexpr int kVector = 8;  // elements of a 16-byte access

// Two elements in one register.
__device__ inline float2 widen(__half2 pair) { return __half22float2(pair); }
__device__ inline float2 widen(__nv_bfloat162 pair) { return __bfloat1622float2(pair); }
template <class T>
struct PairOf;
template <>
struct PairOf<__half> {
  using Type = __half2;
  static __device__ Type round(float low, float high) { return __floats2half2_rn(low, high); }
};
template <>
struct PairOf<__nv_bfloat16> {
  using Type = __nv_bfloat162;
  static __device__ Type round(float low, float high) { return __floats2bfloat162_rn(low, high); }
};

template <class T>
__device__ void unpack(const uint4& packed, float (&x)[kVector]) {
  const std::uint32_t words[4] = {packed.x, packed.y, packed.z, packed.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 pair = widen(reinterpret_cast<const typename PairOf<T>::Type&>(words[i]));
    x[2 * i] = pair.x;
    x[2 * i + 1] = pair.y;
  }
}

template <class T>
__device__ uint4 pack(const float (&x)[kVector]) {
  std::uint32_t words[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) reinterpret_cast<typename PairOf<T>::Type&>(words[i]) = PairOf<T>::round(x[2 * i], x[2 * i + 1]);
  return {words[0], words[1], words[2], words[3]};
}

// Calls use(T()) for the model's type.
template <class Use>
void with_model_type(DType dtype, const char* kernel, const Use& use) {
  if (dtype == DType::f16) return use(__half());
  if (dtype == DType::bf16) return use(__nv_bfloat16());
  throw Error(std::string(kernel) + " on CUDA wants f16 or bf16, found " + std::string(name(dtype)));
}

}  // namespace keel::cuda
