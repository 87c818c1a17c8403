// The shape of a launch of skinny_gemm: what the host works out of a plan and the kernel follows.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/gemm/skinny_gemm.h"

namespace keel::cuda {

inline constexpr int kMaxWarpgroups = 3;  // with the fourth that asks and adds, two blocks share a multiprocessor at 64 registers a thread
inline constexpr int kMaxCluster = 8;
inline constexpr int kLeadBytes = 64 << 10;  // some 2 us of a multiprocessor's share of the memory: a launch and a half (H200: best of 0 to 128 KiB)
inline constexpr int kMostSharingTokens = 32;
// Two blocks of so many warpgroups share a multiprocessor's registers; 4-bit codes take more.
constexpr int most_sharing_warpgroups(bool is_awq) { return is_awq ? 1 : kMaxWarpgroups; }
inline constexpr int kMinStages = 3, kMaxStages = 24;
constexpr int shared_bytes_of(SkinnyShare share) {  // a little is left for a block of the next kernel, a norm: it then has begun when this one ends
  return (share == SkinnyShare::whole ? 225 : share == SkinnyShare::most ? 145 : 111) * 1024;
}
inline constexpr int kRowBytes = 128;                   // of a tile of x or dense W: 64 elements
inline constexpr int kDenseTileBytes = 64 * kRowBytes;  // 64 rows × 64 columns
inline constexpr int kAwqScaleBytes = 64 * 4;           // f16 scale and 16-bit zero of each row of a tile
inline constexpr int kAwqCodeBytes = 64 * 128 / 2;      // 64 rows × one group
inline constexpr int kAwqTileBytes = kAwqCodeBytes + kAwqScaleBytes;
inline constexpr int kAwqStep = 2;  // groups in a stage

struct SkinnyShape {
  const std::byte* packed;
  const std::byte* group_scales;
  const void* bias;
  void* out;
  bool is_f32_out, is_gated;
  std::int64_t rows;
  int tokens;
  int blocks;        // of K: 64 columns, AWQ 128
  int slice_blocks;  // most that one block of the cluster has
  int tiles;
  int splits;
  int warpgroups, stages;
  bool streams_x;
  int stage_bytes;
  int lead_steps;  // before its last weights are asked for a block lets the next kernel start
  int stages_at, sums_at, own_sums_at, barriers_at, shared_bytes;
};

int padded_tokens(std::int64_t tokens);
SkinnyShape skinny_shape(const GemmArgs& args, SkinnyPlan plan);  // stages = 0 where it does not fit

}  // namespace keel::cuda
