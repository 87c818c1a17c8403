// Parts of skinny_gemm.cu: 4-bit codes as exact 16-bit numbers, and what is stored.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstddef>
#include <cstdint>

#include "kernels/gemm/hopper_ptx.h"
#include "kernels/gemm/skinny_shape.h"
#include "kernels/silu_mul/silu.cuh"

namespace keel::cuda {

__device__ inline ptx::u32 and_or(ptx::u32 value, ptx::u32 mask, ptx::u32 bits) {  // one LOP3
  ptx::u32 out;
  asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(out) : "r"(value), "r"(mask), "r"(bits));
  return out;
}

// (code - zero) of the eight nibbles of a word, exact: rows g and g + 8 of the m16n8k16 fragment have each their zero. A nibble under the
// exponent of 2^10 is 1024 + code in f16 (1024 + 16 · code four bits higher); 128 + code under 2^7 in bf16.
template <class T>
struct Zeros;
template <>
struct Zeros<__half> {
  __half2 low, high;  // 1024 + zero of row g; -(64 + zero) of row g + 8
  __device__ Zeros(ptx::u32 zero_g, ptx::u32 zero_g8) {
    const ptx::u32 low_bits = 0x64006400u | zero_g * 0x10001u, high_bits = 0xd400d400u | zero_g8 * 0x100010u;
    low = reinterpret_cast<const __half2&>(low_bits);
    high = reinterpret_cast<const __half2&>(high_bits);
  }
  __device__ void subtract(ptx::u32 word, ptx::u32 (&a)[4]) const {
    const __half2 sixteenth = __float2half2_rn(0.0625f);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const ptx::u32 g = and_or(word >> (8 * half), 0x000f000fu, 0x64006400u);
      const ptx::u32 g8 = and_or(word >> (8 * half), 0x00f000f0u, 0x64006400u);
      const __half2 value_g = __hsub2(reinterpret_cast<const __half2&>(g), low);
      const __half2 value_g8 = __hfma2(reinterpret_cast<const __half2&>(g8), sixteenth, high);
      a[2 * half] = reinterpret_cast<const ptx::u32&>(value_g);
      a[2 * half + 1] = reinterpret_cast<const ptx::u32&>(value_g8);
    }
  }
};
template <>
struct Zeros<__nv_bfloat16> {
  __nv_bfloat162 zero[2];  // 128 + zero
  __device__ Zeros(ptx::u32 zero_g, ptx::u32 zero_g8) {
    const ptx::u32 g = 0x43004300u | zero_g * 0x10001u, g8 = 0x43004300u | zero_g8 * 0x10001u;
    zero[0] = reinterpret_cast<const __nv_bfloat162&>(g);
    zero[1] = reinterpret_cast<const __nv_bfloat162&>(g8);
  }
  __device__ void subtract(ptx::u32 word, ptx::u32 (&a)[4]) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const ptx::u32 bits = and_or(word >> (4 * i), 0x000f000fu, 0x43004300u);
      const __nv_bfloat162 value = __hsub2(reinterpret_cast<const __nv_bfloat162&>(bits), zero[i & 1]);
      a[i] = reinterpret_cast<const ptx::u32&>(value);
    }
  }
};

template <class T>
__device__ void store_out(const SkinnyShape& p, int token, std::int64_t n, float value) {
  if (n >= p.rows || token >= p.tokens) return;
  if (p.bias != nullptr) value += static_cast<float>(static_cast<const T*>(p.bias)[n]);
  const std::int64_t at = token * p.rows + n;
  if (p.is_f32_out) {
    static_cast<float*>(p.out)[at] = value;
  } else {
    static_cast<T*>(p.out)[at] = static_cast<T>(value);
  }
}

// W's row n is a gate's, n + 8 that of what it gates.
template <class T>
__device__ void store_gated(const SkinnyShape& p, int token, std::int64_t n, float gate, float up) {
  if (n >= p.rows || token >= p.tokens) return;
  if (p.bias != nullptr) {
    gate += static_cast<float>(static_cast<const T*>(p.bias)[n]);
    up += static_cast<float>(static_cast<const T*>(p.bias)[n + 8]);
  }
  gate = static_cast<float>(static_cast<T>(gate));
  up = static_cast<float>(static_cast<T>(up));
  static_cast<T*>(p.out)[token * (p.rows / 2) + n / 16 * 8 + n % 8] = static_cast<T>(silu(gate) * up);
}

}  // namespace keel::cuda
