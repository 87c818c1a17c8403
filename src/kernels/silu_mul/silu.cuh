// silu(x) = x / (1 + e^-x) in f32, for CUDA's kernels.
#pragma once

namespace keel::cuda {

// e^-x overflows to infinity for very negative x, where the quotient is the -0 that it should round to.
__device__ inline float silu(float x) { return __fdividef(x, 1.0f + __expf(-x)); }

}  // namespace keel::cuda
