// keel's own products for few rows of x (decode): bound by the weights' bytes, which are read once.
#pragma once

#include <cuda_runtime_api.h>

#include <vector>

#include "kernels/gemm/gemm_cuda.h"

namespace keel::cuda {

inline constexpr std::int64_t kSkinnyTokens = 64;  // most rows of x in one launch
inline constexpr std::int64_t kAwqTileRows = 64;   // rows and columns of a packed AWQ tile
inline constexpr std::int64_t kAwqGroup = 128;

// What of a multiprocessor's shared memory a block takes: all but room for a norm's block; two thirds of that, so that its first weights do not
// hold up the norm before it; half, with another block of this kernel in the other half.
enum class SkinnyShare : std::uint8_t { whole, most, pair };

// How the work is cut: tiles of 64 · warpgroups rows of W; a cluster of `splits` blocks shares a tile, each with its slice of K.
struct SkinnyPlan {
  int warpgroups = 0;  // 1 to 3
  int splits = 0;      // 1, 2, 4 or 8
  SkinnyShare share = SkinnyShare::whole;
  bool streams_x = false;  // x comes along with the weights; otherwise each block keeps its slice of it
  bool operator==(const SkinnyPlan&) const = default;
};

// The plans that this product can run with, the likely best first; none where it cannot run (the caller then has cuBLASLt).
std::vector<SkinnyPlan> skinny_plans(const GemmArgs& args);
// tokens <= kSkinnyTokens. The weights must not be written by the kernel launched just before: they are read ahead of its end.
void skinny_gemm(cudaStream_t stream, const GemmArgs& args, SkinnyPlan plan);

}  // namespace keel::cuda
