// y = x · Wᵀ (+ bias) on CUDA, f32 sums: cuBLASLt with measured algorithms for many rows, keel's own kernel that
// streams the weights once for few (decode). AWQ's 4-bit weights stay packed: their own kernel for few rows, expanded into a
// scratch and given to cuBLASLt for many.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "base/dtype.h"
#include "kernels/matmul/weight_matrix.h"

namespace keel::cuda {

// A weight matrix in device memory, as the kernels want it. Several [N_i, K] that share x are fused by rows.
struct GemmWeights {
  DType dtype;                 // of x, out and dense weights: f16 or bf16
  std::int64_t rows = 0;       // N
  std::int64_t columns = 0;    // K
  const void* dense = nullptr;       // [N, K], or null for AWQ
  const void* packed = nullptr;      // AWQ: repacked by pack_awq
  const void* group_scales = nullptr;  // AWQ: repacked scales and zeros
  const void* bias = nullptr;        // [N] in dtype, or null
  std::int64_t bytes() const;  // that one product reads
};

struct GemmArgs {
  GemmWeights weights;
  const void* x;            // [tokens, K] contiguous
  std::int64_t tokens;      // M
  void* out;                // [tokens, N] in `out_type`
  DType out_type;           // weights.dtype, or f32 (logits)
};

class Gemm {
 public:
  // `max_tokens`: most rows of any product; `scratch_elements`: the largest N · K of the AWQ matrices, 0 for none.
  Gemm(DType dtype, std::int64_t max_tokens, std::int64_t scratch_elements);
  ~Gemm();

  void run(cudaStream_t stream, const GemmArgs& args);  // capturable once prepared
  // Chooses and times algorithms for this matrix at this M now, so that no capture or timed run does.
  void prepare(cudaStream_t stream, const GemmArgs& args);
  std::int64_t workspace_bytes() const;  // device memory held

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// AWQ matrices (of one fused group, equal K) -> host buffers in the kernel's order, to be copied to the device.
struct PackedAwq {
  std::vector<std::byte> packed, group_scales;
};
PackedAwq pack_awq(const std::vector<WeightMatrix>& parts);

}  // namespace keel::cuda
