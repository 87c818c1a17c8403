// Products by cuBLASLt: f16 or bf16 in, f32 sums.
#pragma once

#include <cublasLt.h>

#include <vector>

#include "device/cuda.h"
#include "kernels/gemm/gemm_cuda.h"

namespace keel::cuda {

class LibraryGemm {
 public:
  LibraryGemm();
  ~LibraryGemm();
  LibraryGemm(const LibraryGemm&) = delete;

  // At most `count`, the library's own guess first. `args` has dense weights.
  std::vector<cublasLtMatmulAlgo_t> algorithms(const GemmArgs& args, int count) const;
  // False, with nothing launched, where this algorithm cannot do this product.
  bool run(cudaStream_t stream, const GemmArgs& args, const cublasLtMatmulAlgo_t& algorithm);
  std::int64_t workspace_bytes() const { return workspace_.bytes(); }

 private:
  cublasLtHandle_t handle_ = nullptr;
  DeviceBuffer<std::byte> workspace_;
};

}  // namespace keel::cuda
