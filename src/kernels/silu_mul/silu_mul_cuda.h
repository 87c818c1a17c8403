// out = silu(gate) · up on CUDA, gate and up in one fused row: eight of one, eight of the other, in turn.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "base/dtype.h"

namespace keel::cuda {

struct SiluMulArgs {
  DType dtype;           // f16 or bf16
  const void* gate_up;   // [rows, width / 8, 2, 8]: gate, then up
  void* out;             // [rows, width]
  std::int64_t rows;
  std::int64_t width;    // a multiple of 8
};

void silu_mul(cudaStream_t stream, const SiluMulArgs& args);

}  // namespace keel::cuda
