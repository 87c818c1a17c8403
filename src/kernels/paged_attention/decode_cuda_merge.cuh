// Where a unit's pieces meet: parts of warps in shared memory, parts of CTAs in the workspace, always merged in the order of
// the pages, by the warp that arrives last; and the outputs.
#pragma once

#include "kernels/paged_attention/decode_cuda_math.cuh"

namespace keel::cuda {

template <DecodeConfig kConfig>
struct DecodeMerge {
  using Math = DecodeMath<kConfig>;
  using Sums = typename Math::Sums;
  static constexpr int kDim = Math::kDim, kTiles = Math::kTiles, kColumns = Math::kColumns;
  static constexpr int kWarps = kConfig.tuning.warps, kStages = kConfig.tuning.stages;
  static constexpr int kOutTiles = Math::kOutTiles;
  static constexpr int kPartFloats = kConfig.part_floats();
  static_assert(kPartFloats * 4 <= kStages * kConfig.stage_bytes(), "a warp's last part is left in its ring");

  // ---- parts: O, then m and l, as float4s of a lane beside those of its neighbours ----

  static __device__ void store(float* part, const Sums& sums, int lane) {
    auto* const to = reinterpret_cast<float4*>(part) + lane;
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
      for (int i = 0; i < kOutTiles; ++i) {
        const float(&o)[4] = sums.o[tile][i];
        to[(tile * kOutTiles + i) * 32] = {o[0], o[1], o[2], o[3]};
      }
      to[(kTiles * kOutTiles + tile) * 32] = {sums.top[tile][0], sums.top[tile][1], sums.l[tile][0], sums.l[tile][1]};
    }
  }

  // The sum of parts 0 to `count` - 1; load(n, at): float4 `at` of part n. Batches of loads are on their way together.
  template <int kMostBatch, class Load>
  static __device__ Sums merged(int count, int lane, const Load& load) {
    constexpr int kBatch = std::min(kMostBatch, 32 / (kTiles * kOutTiles));  // registers
    Sums sum = {};
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) sum.top[tile][0] = sum.top[tile][1] = kNoScore;
#pragma unroll 1
    for (int base = 0; base < count; base += kBatch) {
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        float4 o[kBatch][kOutTiles], sums[kBatch];
        float tops[2] = {sum.top[tile][0], sum.top[tile][1]};
#pragma unroll
        for (int n = 0; n < kBatch; ++n) {
          const int part = min(base + n, count - 1);  // past the end one that weighs nothing
          sums[n] = load(part, (kTiles * kOutTiles + tile) * 32 + lane);
#pragma unroll
          for (int i = 0; i < kOutTiles; ++i) o[n][i] = load(part, (tile * kOutTiles + i) * 32 + lane);
        }
#pragma unroll
        for (int n = 0; n < kBatch; ++n) tops[0] = fmaxf(tops[0], sums[n].x), tops[1] = fmaxf(tops[1], sums[n].y);
        const float old[2] = {exp2_approx(sum.top[tile][0] - tops[0]), exp2_approx(sum.top[tile][1] - tops[1])};
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          sum.top[tile][e] = tops[e];
          sum.l[tile][e] *= old[e];
#pragma unroll
          for (int i = 0; i < kOutTiles; ++i) sum.o[tile][i][e] *= old[e], sum.o[tile][i][2 + e] *= old[e];
        }
#pragma unroll
        for (int n = 0; n < kBatch; ++n) {
          const float x = base + n < count ? exp2_approx(sums[n].x - tops[0]) : 0, y = base + n < count ? exp2_approx(sums[n].y - tops[1]) : 0;
          sum.l[tile][0] = fmaf(x, sums[n].z, sum.l[tile][0]);
          sum.l[tile][1] = fmaf(y, sums[n].w, sum.l[tile][1]);
#pragma unroll
          for (int i = 0; i < kOutTiles; ++i) {
            float(&to)[4] = sum.o[tile][i];
            to[0] = fmaf(x, o[n][i].x, to[0]);
            to[1] = fmaf(y, o[n][i].y, to[1]);
            to[2] = fmaf(x, o[n][i].z, to[2]);
            to[3] = fmaf(y, o[n][i].w, to[3]);
          }
        }
      }
    }
    return sum;
  }

  // Whether this warp arrives last of the `parts` CTAs that share a unit, whose first is `owner`; then `sums` is the unit's.
  static __device__ bool merge_ctas(const DecodeParams& p, int owner, int parts, int lane, Sums& sums) {
    store(p.workspace.cta_parts + (std::int64_t{blockIdx.x} * 2 + (owner == blockIdx.x)) * kPartFloats, sums, lane);
    __syncwarp();
    unsigned before = 0;
    if (lane == 0) {
      before = add_acquire_release(p.workspace.arrivals + owner, 1);
      if (before == static_cast<unsigned>(parts - 1)) p.workspace.arrivals[owner] = 0;  // for the next launch
    }
    if (__shfl_sync(kAllLanes, before, 0) != static_cast<unsigned>(parts - 1)) return false;
    __syncwarp();
    const float* const first = p.workspace.cta_parts + std::int64_t{owner} * 2 * kPartFloats;
    sums = merged<8>(parts, lane, [&](int n, int at) { return __ldcg(reinterpret_cast<const float4*>(first + (2 * n + (n == 0)) * kPartFloats) + at); });
    return true;
  }

  // ---- outputs ----

  // Null for a column of padding.
  static __device__ std::uint16_t* out_row(const DecodeParams& p, int sequence, int unit, int column_of_unit) {
    const int column = unit % p.blocks * kColumns + column_of_unit;
    if (column >= p.rows * p.group) return nullptr;
    const std::int64_t row = std::int64_t{sequence} * p.rows + column / p.group;
    return static_cast<std::uint16_t*>(p.out) + row * p.out_stride + (unit / p.blocks * p.group + column % p.group) * kDim;
  }
  // Accumulator rows g and g + 8 of tile i.
  static __device__ void write_pair(const DecodeParams& p, std::uint16_t* row, int i, int g, float low, float high) {
    const std::uint32_t two = p.bf16 ? pack<true>(low, high) : pack<false>(low, high);
    if constexpr (bits(kConfig.value) == 16) {
      row[Math::dimension(i, g, 0)] = static_cast<std::uint16_t>(two);
      row[Math::dimension(i, g, 1)] = static_cast<std::uint16_t>(two >> 16);
    } else {
      *reinterpret_cast<std::uint32_t*>(row + Math::dimension(i, g, 0)) = two;
    }
  }
  static __device__ void write_out(const DecodeParams& p, int sequence, int unit, float value_scale, const Sums& sums, int lane) {
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        std::uint16_t* const to = out_row(p, sequence, unit, Math::out_column(tile, lane) + e);
        if (to == nullptr) continue;
        const float times = sums.l[tile][e] == 0 ? 0 : value_scale / sums.l[tile][e];  // 0: a row that sees nothing
#pragma unroll
        for (int i = 0; i < kOutTiles; ++i) {
          write_pair(p, to, Math::out_tile(i, lane), lane / 4, sums.o[tile][i][e] * times, sums.o[tile][i][2 + e] * times);
        }
      }
    }
  }

  // `context`: of the sequence of this CTA's number.
  static __device__ void write_zeros(const DecodeParams& p, int context) {
    const int width = p.units / p.blocks * p.group * kDim;
    for (int sequence = blockIdx.x; sequence < p.sequences; sequence += gridDim.x) {
      if ((sequence == blockIdx.x ? context : __ldcg(p.contexts + sequence)) > 0) continue;
      for (int row = 0; row < p.rows; ++row) {
        auto* to = static_cast<std::uint16_t*>(p.out) + (std::int64_t{sequence} * p.rows + row) * p.out_stride;
        for (int at = threadIdx.x; at < width; at += kWarps * 32) to[at] = 0;
      }
    }
  }
};

}  // namespace keel::cuda
