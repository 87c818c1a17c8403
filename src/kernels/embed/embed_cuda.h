// out row i = row tokens[i] of the embedding on CUDA.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "base/dtype.h"

namespace keel::cuda {

struct EmbedArgs {
  DType dtype;                 // f16 or bf16
  const void* embedding;       // [vocabulary, width]
  const std::int32_t* tokens;  // device, [rows], each within the vocabulary
  void* out;                   // [rows, width]
  std::int64_t rows;
  std::int64_t width;          // a multiple of 8
};

void embed(cudaStream_t stream, const EmbedArgs& args);

}  // namespace keel::cuda
