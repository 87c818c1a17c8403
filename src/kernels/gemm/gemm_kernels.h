// The small kernels around gemm's products.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/gemm/gemm_cuda.h"

namespace keel::cuda {

// out [N, K] in the weights' dtype: (code - zero) · scale, rounded once.
void expand_awq(cudaStream_t stream, const GemmWeights& weights, void* out);
// out f32 [tokens, columns] += bias in dtype.
void add_bias(cudaStream_t stream, float* out, const void* bias, DType dtype, std::int64_t tokens, std::int64_t columns);
// Uniform in [-1, 1): what a measurement multiplies.
void fill_random(cudaStream_t stream, void* out, DType dtype, std::int64_t count, std::uint64_t seed);

}  // namespace keel::cuda
