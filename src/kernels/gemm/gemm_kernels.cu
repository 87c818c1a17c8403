#include "kernels/gemm/gemm_kernels.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "base/random.h"
#include "device/cuda.h"

namespace keel::cuda {
namespace {

// One block a tile of 64 rows × one group, turned in shared memory so that rows of 256 bytes are written.
template <class T>
__global__ void expand_awq_kernel(const uint2* codes, const std::uint32_t* rows_of_groups, T* out, std::int64_t rows, int groups) {
  constexpr int kStride = 128 + 8;  // elements
  __shared__ __align__(16) T tile[64 * kStride];
  const std::int64_t row_tile = blockIdx.x / groups, group = blockIdx.x % groups;
  const int thread = threadIdx.x, row = thread / 32 * 16 + thread % 32 / 4, pair = thread % 4;
  const std::uint32_t* scales = rows_of_groups + static_cast<std::int64_t>(blockIdx.x) * 64;
  const std::uint32_t of_row[2] = {scales[row], scales[row + 8]};
#pragma unroll
  for (int quarter = 0; quarter < 4; ++quarter) {
    const uint2 two = codes[static_cast<std::int64_t>(blockIdx.x) * 512 + quarter * 128 + thread];
    const std::uint32_t words[2] = {two.x, two.y};
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int a = 0; a < 4; ++a) {
        const float scale = __half2float(__ushort_as_half(static_cast<unsigned short>(of_row[a & 1] & 0xffff)));
        const int zero = static_cast<int>(of_row[a & 1] >> 16);
        T* to = tile + (row + (a & 1) * 8) * kStride + (quarter * 2 + i) * 16 + (a >> 1) * 8 + pair * 2;
        to[0] = static_cast<T>(static_cast<float>(static_cast<int>(words[i] >> (4 * a) & 15) - zero) * scale);
        to[1] = static_cast<T>(static_cast<float>(static_cast<int>(words[i] >> (4 * a + 16) & 15) - zero) * scale);
      }
    }
  }
  __syncthreads();
  for (int chunk = thread; chunk < 64 * 16; chunk += 128) {
    const std::int64_t n = row_tile * 64 + chunk / 16;
    if (n >= rows) break;
    *reinterpret_cast<uint4*>(out + n * groups * 128 + group * 128 + chunk % 16 * 8) =
        *reinterpret_cast<const uint4*>(tile + chunk / 16 * kStride + chunk % 16 * 8);
  }
}

template <class T>
__global__ void add_bias_kernel(float* out, const T* bias, std::int64_t columns) {
  const std::int64_t column = static_cast<std::int64_t>(blockIdx.y) * blockDim.x + threadIdx.x;
  if (column < columns) out[blockIdx.x * columns + column] += static_cast<float>(bias[column]);
}

template <class T>
__global__ void fill_random_kernel(T* out, std::int64_t count, std::uint64_t seed) {
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += step) {
    out[i] = static_cast<T>(static_cast<float>(2 * random_unit(seed, static_cast<std::uint64_t>(i)) - 1));
  }
}

}  // namespace

void expand_awq(cudaStream_t stream, const GemmWeights& w, void* out) {
  const int groups = static_cast<int>(w.columns / 128);
  const auto blocks = static_cast<unsigned>((w.rows + 63) / 64 * groups);
  const auto* codes = static_cast<const uint2*>(w.packed);
  const auto* scales = static_cast<const std::uint32_t*>(w.group_scales);
  if (w.dtype == DType::f16) {
    expand_awq_kernel<<<blocks, 128, 0, stream>>>(codes, scales, static_cast<__half*>(out), w.rows, groups);
  } else {
    expand_awq_kernel<<<blocks, 128, 0, stream>>>(codes, scales, static_cast<__nv_bfloat16*>(out), w.rows, groups);
  }
  check_launch("expand_awq");
}

void add_bias(cudaStream_t stream, float* out, const void* bias, DType dtype, std::int64_t tokens, std::int64_t columns) {
  const dim3 blocks(static_cast<unsigned>(tokens), static_cast<unsigned>((columns + 255) / 256));
  if (dtype == DType::f16) {
    add_bias_kernel<<<blocks, 256, 0, stream>>>(out, static_cast<const __half*>(bias), columns);
  } else {
    add_bias_kernel<<<blocks, 256, 0, stream>>>(out, static_cast<const __nv_bfloat16*>(bias), columns);
  }
  check_launch("add_bias");
}

void fill_random(cudaStream_t stream, void* out, DType dtype, std::int64_t count, std::uint64_t seed) {
  if (dtype == DType::f16) {
    fill_random_kernel<<<1024, 256, 0, stream>>>(static_cast<__half*>(out), count, seed);
  } else {
    fill_random_kernel<<<1024, 256, 0, stream>>>(static_cast<__nv_bfloat16*>(out), count, seed);
  }
  check_launch("fill_random");
}

}  // namespace keel::cuda
