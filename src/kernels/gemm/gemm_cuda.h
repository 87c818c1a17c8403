// y = x · Wᵀ (+ bias) on CUDA, f32 sums: cuBLASLt with measured algorithms for many rows, keel's own kernel that
// streams the weights once for few (decode). AWQ's 4-bit weights stay packed: their own kernel for few rows, expanded into a
// scratch and given to cuBLASLt for many.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
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
  bool accumulate = false;  // out += instead of out =, summed in f32 and rounded once; more than 512 tokens alone
  // Given, W's rows are eight of a gate, eight of what it gates, in turn (silu_mul_cuda.h), and out is [tokens, N / 2] in dtype:
  // silu(gate) · up of the rounded product. A kernel that cannot do that at once leaves the product, [tokens, N], here.
  void* gate_up = nullptr;
};

class Gemm {
 public:
  // `max_tokens`: most rows of any product; `scratch_elements`: the largest N · K of the AWQ matrices, 0 for none. What
  // `prepare` measured is kept in the file `cache_path` for the same GPU, driver and library; empty: nowhere.
  Gemm(DType dtype, std::int64_t max_tokens, std::int64_t scratch_elements, std::string cache_path = {});
  ~Gemm();

  // Capturable once prepared; a product that is not is guessed, and that is told once. The weights and the bias must not be what the
  // kernel just before in the stream writes: they are read before it ends.
  void run(cudaStream_t stream, const GemmArgs& args);
  // Times the kernels that can do this product, at this M and all down to half of it, and keeps the fastest, so that no capture or
  // timed run does. Waits for the stream; overwrites `out`; wants some 250 MB of device memory while it runs, and does with less.
  void prepare(cudaStream_t stream, const GemmArgs& args);
  // For products that always follow each other, as a decode layer's do: of the kernels that are fastest alone, those with which `run`,
  // which launches the products and what lies between, takes the shortest time. A kernel that starts early, or lets the next one, is
  // worth more there than alone. `run` wants weights beyond the L2 cache; it is captured, and run some hundred times.
  void prepare_together(cudaStream_t stream, std::span<const GemmArgs> products, const std::function<void()>& run);
  bool prepared(const GemmArgs& args) const;
  std::int64_t workspace_bytes() const;  // device memory held

 private:
  struct State;
  std::unique_ptr<State> state_;
};

std::string default_gemm_cache();  // in XDG_CACHE_HOME or ~/.cache; empty where there is neither

// AWQ matrices (of one fused group, equal K) -> host buffers in the kernel's order, to be copied to the device.
struct PackedAwq {
  std::vector<std::byte> packed, group_scales;
};
// `in_turn`: eight rows of the one, eight of the other, of two parts of equal size.
PackedAwq pack_awq(const std::vector<WeightMatrix>& parts, bool in_turn = false);

}  // namespace keel::cuda
