// Where a unit's pieces meet: parts of warps in shared memory, parts of CTAs in the workspace, always merged in the order of
// the pages, and the outputs.
#pragma once

#include "kernels/paged_attention/decode_cuda_math.cuh"

namespace keel::cuda {

// What a warp or CTA leaves of a unit that it saw only pages [first, last) of; none when pages = 0.
struct Part {
  int sequence, unit, first, last, pages;
  float value_scale;
  const float* at;
};

template <DecodeConfig kConfig>
struct DecodeMerge {
  using Math = DecodeMath<kConfig>;
  using State = typename Math::State;
  static constexpr int kDim = Math::kDim, kTiles = Math::kTiles, kSteps = Math::kSteps, kColumns = Math::kColumns;
  static constexpr int kWarps = kConfig.tuning.warps, kStages = kConfig.tuning.stages;
  static constexpr int kItems = kTiles * kSteps * 32;  // float4s of an O
  static constexpr int kPartFloats = kConfig.part_floats(), kCtaPartFloats = kConfig.cta_part_floats();
  static_assert(kPartFloats * 4 <= kStages * kConfig.stage_bytes(), "a warp's last part is left in its ring");
  // Lanes that share an item when parts are merged, each with every kLanes-th part: few enough that a usual unit's items, four
  // columns of 128 dimensions, are all merged at once.
  static constexpr int kLanes = kWarps >= 16 ? 4 : 2;
  static constexpr int kItemsAWarp = 32 / kLanes;

  // A part in memory: O as items of a float4 (dimensions of accumulator rows g and g + 8 in columns 2q, 2q+1), then m and l
  // of every column. Items go column pair by column pair, so that unused ones lie last; a pair's eight rows are turned by
  // 2q, which spreads a warp's stores over the banks.
  static __device__ int item_index(int tile, int i, int lane) {
    const int g = lane / 4, q = lane % 4;
    return ((tile * 4 + q) * kSteps + i) * 8 + (g + 2 * q) % 8;
  }
  static __device__ int column_of(int index) { return index / 8 / kSteps * 2; }
  static __device__ int row_of(int index) { return (index - column_of(index)) & 7; }

  static __device__ int columns_of(const DecodeParams& p, int unit) {
    return min(kColumns, p.rows * p.group - unit % p.blocks * kColumns);
  }
  static __device__ int items_of(const DecodeParams& p, int unit) { return (columns_of(p, unit) + 1) / 2 * kSteps * 8; }

  struct Item {
    float4 o{0, 0, 0, 0};
    float2 top{kNoScore, kNoScore};
    float2 l{0, 0};
  };

  static __device__ void store_part(float* part, const State& state, int columns, int lane) {
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      const int column = tile * 8 + 2 * (lane % 4);
      if (column >= columns) continue;
#pragma unroll
      for (int i = 0; i < kSteps; ++i) {
        const float(&o)[4] = state.o[tile][i];
        reinterpret_cast<float4*>(part)[item_index(tile, i, lane)] = float4{o[0], o[1], o[2], o[3]};
      }
      if (lane < 4) {
        *reinterpret_cast<float2*>(part + kItems * 4 + column) = float2{state.top[tile][0], state.top[tile][1]};
        *reinterpret_cast<float2*>(part + kItems * 4 + kColumns + column) = float2{state.l[tile][0], state.l[tile][1]};
      }
    }
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
  static __device__ float factor(float value_scale, float l) { return l == 0 ? 0 : value_scale / l; }  // 0: a row that sees nothing

  // A unit that one warp saw whole.
  static __device__ void write_out(const DecodeParams& p, const Part& of, const State& state, int lane) {
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        std::uint16_t* const to = out_row(p, of.sequence, of.unit, tile * 8 + 2 * (lane % 4) + e);
        if (to == nullptr) continue;
        const float times = factor(of.value_scale, state.l[tile][e]);
#pragma unroll
        for (int i = 0; i < kSteps; ++i) write_pair(p, to, i, lane / 4, state.o[tile][i][e] * times, state.o[tile][i][2 + e] * times);
      }
    }
  }
  // One item of a merged unit.
  static __device__ void write_out(const DecodeParams& p, const Part& of, int index, const Item& item) {
    const int g = row_of(index), i = index / 8 % kSteps;
    if (auto* const to = out_row(p, of.sequence, of.unit, column_of(index)); to != nullptr) {
      const float times = factor(of.value_scale, item.l.x);
      write_pair(p, to, i, g, item.o.x * times, item.o.z * times);
    }
    if (auto* const to = out_row(p, of.sequence, of.unit, column_of(index) + 1); to != nullptr) {
      const float times = factor(of.value_scale, item.l.y);
      write_pair(p, to, i, g, item.o.y * times, item.o.w * times);
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

  // ---- merges ----

  // kCount parts of a lane, whose loads are on their way before the first is used.
  template <int kCount>
  struct Gather {
    Item parts[kCount];  // one not loaded adds nothing

    __device__ void load(int n, const float* part, int index) {
      const float* const sums = part + kItems * 4 + column_of(index);
      parts[n] = {reinterpret_cast<const float4*>(part)[index], *reinterpret_cast<const float2*>(sums),
                  *reinterpret_cast<const float2*>(sums + kColumns)};
    }
    __device__ void load_of_cta(int n, const float* part, int index) {
      const auto* const items = reinterpret_cast<const float4*>(part);
      const float4 o = __ldcg(items + index), sums = __ldcg(items + kItems + index / 8);
      parts[n] = {o, {sums.x, sums.y}, {sums.z, sums.w}};
    }
    __device__ void add_to(Item& sum) const {
      float2 top = sum.top;
#pragma unroll
      for (int n = 0; n < kCount; ++n) top = {fmaxf(top.x, parts[n].top.x), fmaxf(top.y, parts[n].top.y)};
      Item next;
      next.top = top;
      add_scaled(sum, next);
#pragma unroll
      for (int n = 0; n < kCount; ++n) add_scaled(parts[n], next);
      sum = next;
    }
  };
  // sum += part, whose top is no higher.
  static __device__ void add_scaled(const Item& part, Item& sum) {
    const float x = exp2_approx(part.top.x - sum.top.x), y = exp2_approx(part.top.y - sum.top.y);
    sum.l = {fmaf(x, part.l.x, sum.l.x), fmaf(y, part.l.y, sum.l.y)};
    sum.o = {fmaf(x, part.o.x, sum.o.x), fmaf(y, part.o.y, sum.o.y), fmaf(x, part.o.z, sum.o.z), fmaf(y, part.o.w, sum.o.w)};
  }
  static __device__ void add_lanes(Item& sum) {
#pragma unroll
    for (int step = kItemsAWarp; step < 32; step *= 2) {
      const auto other = [step](float x) { return __shfl_xor_sync(kAllLanes, x, step); };
      Gather<1> part;
      part.parts[0] = {{other(sum.o.x), other(sum.o.y), other(sum.o.z), other(sum.o.w)},
                       {other(sum.top.x), other(sum.top.y)},
                       {other(sum.l.x), other(sum.l.y)}};
      part.add_to(sum);
    }
  }

  // Merges a unit's parts, bit 2·warp + 1 of `members` in the warp's ring; `extra`: the one part that may lie elsewhere, or
  // null. Into `to`, or into the outputs when that is null.
  static __device__ void merge_warps(
      const DecodeParams& p, const Part& run, unsigned members, const float* extra, const std::byte* ring, float* to) {
    constexpr int kShare = (kWarps + kLanes - 1) / kLanes;
    const int lane = threadIdx.x % 32, share = lane / kItemsAWarp;
    const int items = items_of(p, run.unit);
    for (int index = threadIdx.x / 32 * kItemsAWarp + lane % kItemsAWarp; index < items; index += kWarps * kItemsAWarp) {
      Gather<kShare + 1> gather;
#pragma unroll
      for (int n = 0; n < kShare; ++n) {
        const int warp = kLanes * n + share;
        if (members >> (2 * warp + 1) & 1) {
          gather.load(n, reinterpret_cast<const float*>(ring + warp * kStages * kConfig.stage_bytes()), index);
        }
      }
      if (extra != nullptr && share == 0) gather.load(kShare, extra, index);
      Item sum;
      gather.add_to(sum);
      add_lanes(sum);
      if (share > 0) continue;
      if (to == nullptr) {
        write_out(p, run, index, sum);
        continue;
      }
      auto* const items = reinterpret_cast<float4*>(to);
      items[index] = sum.o;
      if (index % 8 == 0) items[kItems + index / 8] = {sum.top.x, sum.top.y, sum.l.x, sum.l.y};
    }
  }

  // Merges the parts that `count` CTAs from `owner` on left of a unit into the outputs: the items that this warp has in
  // merge_warps too.
  static __device__ void merge_ctas(const DecodeParams& p, const Part& cut, int owner, int count) {
    constexpr int kShare = 16 / kLanes;
    const int lane = threadIdx.x % 32, share = lane / kItemsAWarp;
    const int items = items_of(p, cut.unit);
    for (int index = threadIdx.x / 32 * kItemsAWarp + lane % kItemsAWarp; index < items; index += kWarps * kItemsAWarp) {
      Item sum;
      for (int base = 0; base < count; base += kLanes * kShare) {
        Gather<kShare> gather;
#pragma unroll
        for (int n = 0; n < kShare; ++n) {
          const int cta = base + kLanes * n + share;
          if (cta < count) {
            gather.load_of_cta(n, p.workspace.cta_parts + (std::int64_t{owner + cta} * 2 + (cta == 0)) * kCtaPartFloats, index);
          }
        }
        gather.add_to(sum);
      }
      add_lanes(sum);
      if (share == 0) write_out(p, cut, index, sum);
    }
  }
};

}  // namespace keel::cuda
