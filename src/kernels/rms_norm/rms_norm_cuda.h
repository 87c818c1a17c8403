// out = x / rms(x) · weight on CUDA, with the residual sum before it where there is one. Sums are f32.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "base/dtype.h"

namespace keel::cuda {

// Every array but gather is 16-byte aligned. At most 32,768 elements a row.
struct AddRmsNormArgs {
  DType dtype;            // f16 or bf16: residual, added and out
  void* residual;         // [rows, width]; += added, in place, where added is given
  const void* added = nullptr;  // [rows, width] or null
  const float* weight;    // [width], device
  void* out;              // [rows, width]
  std::int64_t rows;
  std::int64_t width;     // a multiple of 8
  float epsilon;
  const std::int32_t* gather = nullptr;  // device, [rows] or null: out row i is of residual row gather[i] (then added must be null)
};

void add_rms_norm(cudaStream_t stream, const AddRmsNormArgs& args);

}  // namespace keel::cuda
