// The decode attention kernel: one template for every pair of key and value types.
//
// S^T = K·Q^T and O^T = V^T·P^T by mma.m16n8k16: tokens and dimensions on M = 16, query columns on N = 8. A warp works
// alone: its lane 0 keeps `stages` pages in flight with bulk copies into the warp's ring of shared memory, all lanes
// multiply what has landed, and nothing but its own mbarriers is waited for until the warp's slice is done.
// Fragment layouts below use PTX's names: lane = 4·g + q; columns 2q, 2q+1 of accumulators, column g of B operands.
#pragma once

#include <cuda_bf16.h>

#include "device/launch.cuh"
#include "kernels/paged_attention/decode_cuda_plan.cuh"
#include "kernels/paged_attention/decode_cuda_ptx.cuh"
#include "kv/cuda_page.h"

namespace keel::cuda {

inline constexpr unsigned kAllLanes = 0xffffffffu;
// Before any score is seen; finite, so that a fully masked page gives exp2(-inf) and not NaN.
inline constexpr float kNoScore = -1.5e38f;

__device__ inline int pages_of(int context) { return (context + kPageTokens - 1) / kPageTokens; }

template <class T>
__device__ inline T load_past_l1(const T* from) {
  static_assert(sizeof(T) % 16 == 0);
  T result;
#pragma unroll
  for (unsigned i = 0; i < sizeof(T) / 16; ++i) reinterpret_cast<int4*>(&result)[i] = __ldcg(reinterpret_cast<const int4*>(from) + i);
  return result;
}

// Position in a warp's slice: pages [page, last) of the current unit, then `left` pages of the units after it.
struct Walk {
  int sequence, unit, context, page, last, left;

  __device__ explicit Walk(const WarpSlice& slice)
      : sequence(slice.sequence),
        unit(slice.unit),
        context(slice.context),
        page(slice.first_page),
        last(min(pages_of(slice.context), slice.first_page + slice.pages)),
        left(slice.pages - (last - page)) {}

  __device__ void next_unit(const DecodeParams& p) {
    if (++unit == p.units) {
      unit = 0;
      do context = __ldcg(p.contexts + ++sequence);
      while (context <= 0);
    }
    page = 0;
    last = min(pages_of(context), left);
    left -= last;
  }
};

// What a warp or CTA leaves of a unit that it saw only pages [first, last) of; none when pages = 0.
struct Part {
  int sequence, unit, first, last, pages;
  float value_scale;
  const float* at;
};

template <DecodeConfig kConfig>
struct DecodeKernel {
  static constexpr DType kKey = kConfig.key, kValue = kConfig.value;
  static constexpr int kDim = kConfig.dim, kTiles = kConfig.tiles;
  static constexpr int kWarps = kConfig.tuning.warps, kStages = kConfig.tuning.stages;
  static constexpr int kColumns = 8 * kTiles;
  static constexpr int kSteps = kDim / 16;  // k steps of S, m tiles of O
  static constexpr int kItems = kTiles * kSteps * 32;  // float4s of an O
  static constexpr bool kBf16Keys = kKey == DType::bf16;
  static constexpr bool kBf16Values = kValue == DType::bf16;  // any other value is multiplied as f16, exactly
  static constexpr int kKeyRow = kDim * bits(kKey) / 8, kValueRow = kDim * bits(kValue) / 8;
  static constexpr int kPartFloats = kConfig.part_floats();
  static_assert(kPartFloats * 4 <= kStages * kConfig.stage_bytes(), "a warp's last part is left in its ring");
  static_assert(kDim % 32 == 0);

  // P is stored 2^kLift too large, so that f16 keeps small weights; a maximum is raised once a weight passes 2^kCeiling
  // (below f16's 65504). bf16 has f32's range and needs no lift.
  static constexpr float kLift = kBf16Values ? 0.0f : 10.0f;
  static constexpr float kCeiling = kLift + 5.0f;

  // Softmax over the tokens a warp has seen. Weights are exp2(score - top); a column's top is the same in all lanes.
  struct State {
    float o[kTiles][kSteps][4];
    float top[kTiles][2];
    float l[kTiles][2];  // this lane's tokens alone, until finish()
    float z[kTiles][2];  // Σ weight · zero point, likewise
  };

  struct Query {
    std::uint32_t b[kTiles][kSteps][2];
    float scale[kTiles][2];  // of the scores of this lane's accumulator columns, in log2 units
    float key_scale, value_scale;
  };

  // Dimension that accumulator rows g (half 0) and g + 8 (half 1) of tile i stand for.
  static __device__ int dimension(int i, int g, int half) {
    if constexpr (bits(kValue) == 16) return 16 * i + g + 8 * half;
    if constexpr (bits(kValue) == 8) return 16 * i + 2 * g + half;
    return 32 * (i / 2) + 4 * g + 2 * (i % 2) + half;
  }

  // ---- queries ----

  // Loads only, so that they are on their way while others are waited for; then finish_query.
  static __device__ void load_query(const DecodeParams& p, int sequence, int unit, int lane, Query& query) {
    const int g = lane / 4, q = lane % 4;
    const int kv_head = unit / p.blocks;
    query.key_scale = p.key_scales[kv_head];
    query.value_scale = p.value_scales[kv_head];
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      const int column = (unit % p.blocks) * kColumns + tile * 8 + g;
      const bool used = column < p.rows * p.group;
      const std::int64_t row = std::int64_t{sequence} * p.rows + column / p.group;
      const auto* from = static_cast<const std::uint16_t*>(p.q) + row * p.q_stride + (kv_head * p.group + column % p.group) * kDim;
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        if constexpr (bits(kKey) == 16) {
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            query.b[tile][step][half] =
                used ? *reinterpret_cast<const std::uint32_t*>(from + 16 * step + 8 * half + 2 * q) : 0u;
          }
        } else {
          // The k index is permuted as the keys' bytes come: k = 2q+e is dimension 4q+e, k = 2q+8+e is 4q+2+e.
          const uint2 four = used ? *reinterpret_cast<const uint2*>(from + 16 * step + 4 * q) : uint2{0, 0};
          query.b[tile][step][0] = four.x;
          query.b[tile][step][1] = four.y;
        }
      }
    }
  }

  // Into L1, while the pages before the unit are multiplied.
  static __device__ void prefetch_query(const DecodeParams& p, int sequence, int unit, int lane) {
    constexpr int kLines = kDim / 64;  // of 128 bytes, a column
    const int kv_head = unit / p.blocks, column = unit % p.blocks * kColumns + lane / kLines;
    if (lane / kLines < kColumns && column < p.rows * p.group) {
      const std::int64_t row = std::int64_t{sequence} * p.rows + column / p.group;
      prefetch(static_cast<const std::uint16_t*>(p.q) + row * p.q_stride + (kv_head * p.group + column % p.group) * kDim + lane % kLines * 64);
    }
    if (lane == 0) prefetch(p.key_scales + kv_head);
    if (lane == 1) prefetch(p.value_scales + kv_head);
  }

  static __device__ void finish_query(const DecodeParams& p, int lane, Query& query) {
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      query.scale[tile][0] = query.scale[tile][1] = p.scale_log2 * query.key_scale;
      if (bits(kKey) == 8 && p.bf16) narrow_query(query, tile, lane);
    }
  }

  // bf16 queries against e4m3 keys are multiplied as f16: times the power of two that brings the column's largest to
  // [2^14, 2^15), which the scores' scale takes back. What f16 drops is below 2^-39 of the largest.
  static __device__ void narrow_query(Query& query, int tile, int lane) {
    float largest = 0;
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float2 two = unpack<true>(query.b[tile][step][half]);
        largest = fmaxf(largest, fmaxf(fabsf(two.x), fabsf(two.y)));
      }
    }
    largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, 1));
    largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, 2));
    const int exponent = max(static_cast<int>(__float_as_uint(largest) >> 23) - 127, -100);
    const float factor = __uint_as_float(static_cast<unsigned>(14 - exponent + 127) << 23);
    const float back = __uint_as_float(static_cast<unsigned>(exponent - 14 + 127) << 23);
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float2 two = unpack<true>(query.b[tile][step][half]);
        query.b[tile][step][half] = pack<false>(two.x * factor, two.y * factor);
      }
    }
#pragma unroll
    for (int e = 0; e < 2; ++e) query.scale[tile][e] *= __shfl_sync(kAllLanes, back, (2 * (lane % 4) + e) * 4);
  }

  // ---- scores ----

  // Row address of this lane in an ldmatrix of tokens 0-7 and 8-15 (lanes 0-7 and 8-15) of a chunk, and of the chunk after
  // it (lanes 16-31); xor 32·n gives the n-th pair of chunks.
  static __device__ std::uint32_t chunk_pair(int row_bytes, int lane) {
    const int slot = lane % 16;
    return slot * row_bytes + swizzled_chunk(row_bytes, slot, lane / 16) * kCudaChunkBytes;
  }
  // The same with the chunk's second half of the pair before the tokens': a transposed 16-bit A operand.
  static __device__ std::uint32_t chunk_pair_transposed(int row_bytes, int lane) {
    const int slot = lane % 8 + lane / 16 * 8;
    return slot * row_bytes + swizzled_chunk(row_bytes, slot, lane / 8 % 2) * kCudaChunkBytes;
  }

  // s[tile]: tokens g (0, 1) and g + 8 (2, 3), columns 2q and 2q+1.
  static __device__ void score(std::uint32_t keys, std::uint32_t lane_offset, const Query& query, float (&s)[kTiles][4]) {
    float even[kTiles][4] = {}, odd[kTiles][4] = {};  // two chains, for latency
    if constexpr (bits(kKey) == 16) {
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        std::uint32_t a[4];
        load_matrices(a, keys + (lane_offset ^ (32 * step)));
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile) {
          multiply_add<kBf16Keys>(step % 2 ? odd[tile] : even[tile], a, query.b[tile][step][0], query.b[tile][step][1]);
        }
      }
    } else {
#pragma unroll
      for (int step = 0; step < kSteps; step += 2) {
        std::uint32_t r[4];
        load_matrices(r, keys + (lane_offset ^ (16 * step)));
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          std::uint32_t a[4];
          widen_e4m3(r[2 * half], a[0], a[2]);
          widen_e4m3(r[2 * half + 1], a[1], a[3]);
#pragma unroll
          for (int tile = 0; tile < kTiles; ++tile) {
            multiply_add<false>(half ? odd[tile] : even[tile], a, query.b[tile][step + half][0], query.b[tile][step + half][1]);
          }
        }
      }
    }
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
      for (int j = 0; j < 4; ++j) s[tile][j] = even[tile][j] + odd[tile][j];
    }
  }

  // ---- softmax ----

  // u4: scale and zero point of tokens g and g + 8. `above`: a power of two (its log2) that the scale does not reach.
  struct Parameters {
    float scale[2], zero[2], above[2];
  };
  static __device__ Parameters load_parameters(const std::byte* parameters, int lane) {
    Parameters result;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const auto two = unpack<false>(reinterpret_cast<const std::uint32_t*>(parameters)[lane / 4 + 8 * half]);
      result.scale[half] = two.x;
      result.zero[half] = two.y;
      const int exponent = static_cast<int>(__float_as_uint(two.x) >> 23 & 0xff) - 126;
      result.above[half] = static_cast<float>(max(exponent, -24));
    }
    return result;
  }

  // Raises the tops to this page's largest and brings what was summed to them. Rare after the first pages.
  static __device__ void raise_tops(const float (&s)[kTiles][4], const Query& query, const Parameters& parameters, State& state) {
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        float largest = fmaxf(s[tile][e] * query.scale[tile][e] + parameters.above[0],
                              s[tile][2 + e] * query.scale[tile][e] + parameters.above[1]);
#pragma unroll
        for (int step = 4; step < 32; step *= 2) largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, step));
        const float top = fmaxf(state.top[tile][e], largest - kLift);
        const float factor = exp2_approx(state.top[tile][e] - top);
        state.top[tile][e] = top;
        state.l[tile][e] *= factor;
        state.z[tile][e] *= factor;
#pragma unroll
        for (int i = 0; i < kSteps; ++i) {
          state.o[tile][i][e] *= factor;
          state.o[tile][i][2 + e] *= factor;
        }
      }
    }
  }

  // Weights of a page as B operands, each the sum of a high and a low 16-bit part.
  struct Weights {
    std::uint32_t high[kTiles][2], low[kTiles][2];
  };

  static __device__ Weights weigh(const float (&s)[kTiles][4], const Query& query, const Parameters& parameters, State& state) {
    float x[kTiles][4];
    bool raise = false;
    const auto exponents = [&] {
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          x[tile][j] = fmaf(s[tile][j], query.scale[tile][j % 2], -state.top[tile][j % 2]);
          raise |= x[tile][j] + parameters.above[j / 2] > kCeiling;
        }
      }
    };
    exponents();
    if (__any_sync(kAllLanes, raise)) {
      raise_tops(s, query, parameters, state);
      exponents();
    }
    Weights weights;
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      float w[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        w[j] = exp2_approx(x[tile][j]);
        state.l[tile][j % 2] += w[j];
        if constexpr (kValue == DType::u4) {
          state.z[tile][j % 2] = fmaf(w[j], parameters.zero[j / 2], state.z[tile][j % 2]);
          w[j] *= parameters.scale[j / 2];
        }
      }
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const std::uint32_t high = pack<kBf16Values>(w[2 * half], w[2 * half + 1]);
        const float2 rounded = unpack<kBf16Values>(high);
        const std::uint32_t low = pack<kBf16Values>(w[2 * half] - rounded.x, w[2 * half + 1] - rounded.y);
        weights.high[tile][half] = transposed(high);
        weights.low[tile][half] = transposed(low);
      }
    }
    return weights;
  }

  // ---- values ----

  // Every page's product is added to O in f32: the MMA's own accumulation truncates, which thousands of pages would show.
  static __device__ void add_product(const std::uint32_t (&a)[4], const Weights& weights, int i, State& state) {
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      float product[4] = {};
      multiply_add<kBf16Values>(product, a, weights.low[tile][0], weights.low[tile][1]);
      multiply_add<kBf16Values>(product, a, weights.high[tile][0], weights.high[tile][1]);
#pragma unroll
      for (int j = 0; j < 4; ++j) state.o[tile][i][j] += product[j];
    }
  }

  static __device__ void add_values(std::uint32_t values, std::uint32_t lane_offset, const Weights& weights, State& state) {
    if constexpr (bits(kValue) == 16) {
#pragma unroll
      for (int i = 0; i < kSteps; ++i) {
        std::uint32_t a[4];
        load_matrices_transposed(a, values + (lane_offset ^ (32 * i)));
        add_product(a, weights, i, state);
      }
    } else if constexpr (bits(kValue) == 8) {
      // A 16-bit unit is dimensions 2g, 2g+1 of a token; a register holds tokens 2q, 2q+1 of it.
#pragma unroll
      for (int i = 0; i < kSteps; i += 2) {
        std::uint32_t r[4];
        load_matrices_transposed(r, values + (lane_offset ^ (16 * i)));
#pragma unroll
        for (int chunk = 0; chunk < 2; ++chunk) {
          std::uint32_t a[4];
          widen_e4m3(__byte_perm(r[2 * chunk], 0, 0x3120), a[0], a[1]);  // even dimensions, odd dimensions
          widen_e4m3(__byte_perm(r[2 * chunk + 1], 0, 0x3120), a[2], a[3]);
          add_product(a, weights, i + chunk, state);
        }
      }
    } else {
      // A 16-bit unit is dimensions 4g..4g+3. A code in f16's lowest bits is the subnormal code · 2^-24, one in bits 4-7
      // code · 2^-20: the MMA takes them as they are, and finish() brings back the powers.
#pragma unroll
      for (int pair = 0; pair < kDim / 64; ++pair) {
        std::uint32_t r[4];
        load_matrices_transposed(r, values + (lane_offset ^ (32 * pair)));
#pragma unroll
        for (int chunk = 0; chunk < 2; ++chunk) {
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            const std::uint32_t t0 = r[2 * chunk] >> (8 * i), t8 = r[2 * chunk + 1] >> (8 * i);
            const std::uint32_t a[4] = {t0 & 0x000f000fu, t0 & 0x00f000f0u, t8 & 0x000f000fu, t8 & 0x00f000f0u};
            add_product(a, weights, (2 * pair + chunk) * 2 + i, state);
          }
        }
      }
    }
  }

  // Sums l over the lanes and makes O a sum of weight · value.
  static __device__ void finish(State& state) {
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
#pragma unroll
        for (int step = 4; step < 32; step *= 2) {
          state.l[tile][e] += __shfl_xor_sync(kAllLanes, state.l[tile][e], step);
          if constexpr (kValue == DType::u4) state.z[tile][e] += __shfl_xor_sync(kAllLanes, state.z[tile][e], step);
        }
        if constexpr (kValue == DType::u4) {
#pragma unroll
          for (int i = 0; i < kSteps; ++i) {
            state.o[tile][i][e] = fmaf(state.o[tile][i][e], 0x1p24f, state.z[tile][e]);
            state.o[tile][i][2 + e] = fmaf(state.o[tile][i][2 + e], 0x1p20f, state.z[tile][e]);
          }
        }
      }
    }
  }

  // ---- the last page of a context ----

  // Slots at or past the context may hold NaN, and 0 · NaN is NaN: clears their values (u4: scales and zero points).
  static __device__ void clear_slots(std::byte* values, int first_unused, int lane) {
    if constexpr (kValue == DType::u4) {
      auto* parameters = reinterpret_cast<std::uint32_t*>(values + kConfig.value_bytes());
      if (lane >= first_unused && lane < kPageTokens) parameters[lane] = 0;
    } else {
      for (int at = first_unused * kValueRow + 16 * lane; at < kConfig.value_bytes(); at += 16 * 32) {
        *reinterpret_cast<uint4*>(values + at) = uint4{0, 0, 0, 0};
      }
    }
    fence_copy_engine();
    __syncwarp();
  }

  static __device__ void mask(const DecodeParams& p, const Walk& walk, int lane, float (&s)[kTiles][4]) {
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int column = walk.unit % p.blocks * kColumns + tile * 8 + 2 * (lane % 4) + j % 2;
        const int token = walk.page * kPageTokens + lane / 4 + 8 * (j / 2);
        if (token > walk.context - p.rows + column / p.group || token >= walk.context) s[tile][j] = -INFINITY;
      }
    }
  }

  // ---- results ----

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

  // One item of a finished unit.
  static __device__ void write_out(const DecodeParams& p, const Part& of, int index, const Item& item) {
    const int g = row_of(index), i = index / 8 % kSteps;
    const float value[2][2] = {{item.o.x, item.o.z}, {item.o.y, item.o.w}};
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const int column = of.unit % p.blocks * kColumns + column_of(index) + e;
      if (column >= p.rows * p.group) continue;
      const std::int64_t row = std::int64_t{of.sequence} * p.rows + column / p.group;
      auto* to = static_cast<std::uint16_t*>(p.out) + row * p.out_stride + (of.unit / p.blocks * p.group + column % p.group) * kDim;
      const float l = e ? item.l.y : item.l.x;
      const float factor = l == 0 ? 0 : of.value_scale / l;  // 0: a row that sees nothing
      const float low = value[e][0] * factor, high = value[e][1] * factor;
      const std::uint32_t two = p.bf16 ? pack<true>(low, high) : pack<false>(low, high);
      if constexpr (bits(kValue) == 16) {
        to[dimension(i, g, 0)] = static_cast<std::uint16_t>(two);
        to[dimension(i, g, 1)] = static_cast<std::uint16_t>(two >> 16);
      } else {
        *reinterpret_cast<std::uint32_t*>(to + dimension(i, g, 0)) = two;
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

  // Four lanes share an item, each with every fourth part; eight items a warp. kCount parts a lane at a time, whose loads are
  // on their way before the first is used.
  template <int kCount>
  struct Gather {
    Item parts[kCount];  // one not loaded adds nothing

    template <bool kFromOtherCtas = false>
    __device__ void load(int n, const float* part, int index) {
      const auto* o = reinterpret_cast<const float4*>(part) + index;
      const auto* top = reinterpret_cast<const float2*>(part + kItems * 4 + column_of(index));
      const auto* l = reinterpret_cast<const float2*>(part + kItems * 4 + kColumns + column_of(index));
      if constexpr (kFromOtherCtas) {
        parts[n] = {__ldcg(o), __ldcg(top), __ldcg(l)};
      } else {
        parts[n] = {*o, *top, *l};
      }
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
    for (int step = 8; step < 32; step *= 2) {
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
    constexpr int kShare = (kWarps + 3) / 4;
    const int lane = threadIdx.x % 32, share = lane / 8;
    const int items = items_of(p, run.unit);
    for (int index = threadIdx.x / 32 * 8 + lane % 8; index < items; index += kWarps * 8) {
      Gather<kShare + 1> gather;
#pragma unroll
      for (int n = 0; n < kShare; ++n) {
        const int warp = 4 * n + share;
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
      reinterpret_cast<float4*>(to)[index] = sum.o;
      if (index / 8 % kSteps == 0 && row_of(index) == 0) {
        *reinterpret_cast<float2*>(to + kItems * 4 + column_of(index)) = sum.top;
        *reinterpret_cast<float2*>(to + kItems * 4 + kColumns + column_of(index)) = sum.l;
      }
    }
  }

  // Merges the parts that `count` CTAs from `owner` on left of a unit into the outputs.
  static __device__ void merge_ctas(const DecodeParams& p, const Part& cut, int owner, int count) {
    constexpr int kShare = 5;
    const int lane = threadIdx.x % 32, share = lane / 8;
    const int items = items_of(p, cut.unit);
    for (int index = threadIdx.x / 32 * 8 + lane % 8; index < items; index += kWarps * 8) {
      Item sum;
      for (int base = 0; base < count; base += 4 * kShare) {
        Gather<kShare> gather;
#pragma unroll
        for (int n = 0; n < kShare; ++n) {
          const int cta = base + 4 * n + share;
          if (cta < count) {
            gather.template load<true>(n, p.workspace.cta_parts + (std::int64_t{owner + cta} * 2 + (cta == 0)) * kPartFloats, index);
          }
        }
        gather.add_to(sum);
      }
      add_lanes(sum);
      if (share == 0) write_out(p, cut, index, sum);
    }
  }

  static __device__ void run(const DecodeParams& p) {
    extern __shared__ __align__(128) std::byte ring[];
    __shared__ __align__(8) std::uint64_t landed[kWarps][kStages];
    __shared__ Part parts[kWarps][2];  // of each warp: of its first unit if others follow, of its last
    __shared__ int spares_used;
    __shared__ bool is_last[2];

    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int global_warp = blockIdx.x * kWarps + warp;
    const WarpSlice slice = load_past_l1(p.workspace.slices + global_warp);
    const CtaCuts cuts = load_past_l1(p.workspace.cuts + blockIdx.x);
    std::byte* const my_ring = ring + warp * kStages * kConfig.stage_bytes();
    const std::uint32_t ring_address = shared_address(my_ring), barriers = shared_address(landed[warp]);
    if (lane < kStages) init_barrier(barriers + 8 * lane);
    if (lane < 2) parts[warp][lane].pages = 0;
    if (threadIdx.x == 0) spares_used = 0;
    fence_copy_engine();
    __syncthreads();

    // Copies: lane 0 issues; the 32 page ids ahead lie one a lane.
    const std::uint64_t policy = p.blocks == 1 ? evict_first_policy() : evict_normal_policy();
    Walk ahead(slice);
    int ids = 0, ids_first = 0;
    const auto fetch_ids = [&] {
      ids_first = ahead.page;
      const int page = ahead.page + lane;
      ids = page < ahead.last ? __ldcg(p.page_table + ahead.sequence * p.page_table_stride + page) : 0;
    };
    const int zero_context = blockIdx.x < p.sequences ? __ldcg(p.contexts + blockIdx.x) : 1;
    Query query;
    if (slice.pages > 0) fetch_ids();
    const auto copy_next = [&](int stage) {
      if (ahead.page == ahead.last) {
        if (ahead.left == 0) return;
        ahead.next_unit(p);
        fetch_ids();
        if constexpr (!kConfig.load_only) prefetch_query(p, ahead.sequence, ahead.unit, lane);
      } else if (ahead.page - ids_first == 32) {
        fetch_ids();
      }
      const std::int64_t id = __shfl_sync(kAllLanes, ids, ahead.page - ids_first);
      if (lane == 0) {
        const int kv_head = ahead.unit / p.blocks;
        const std::uint32_t to = ring_address + stage * kConfig.stage_bytes(), barrier = barriers + 8 * stage;
        const std::byte* values = p.values + id * p.value_page_bytes;
        expect_bytes(barrier, kConfig.copy_bytes());
        copy_to_shared(to, p.keys + id * p.key_page_bytes + kv_head * kConfig.key_bytes(), kConfig.key_bytes(), barrier, policy);
        copy_to_shared(
            to + kConfig.key_bytes(), values + kv_head * kConfig.value_bytes(), kConfig.value_bytes(), barrier, policy);
        if constexpr (kConfig.parameter_bytes() > 0) {
          copy_to_shared(to + kConfig.key_bytes() + kConfig.value_bytes(),
                         values + p.units / p.blocks * kConfig.value_bytes() + kv_head * kConfig.parameter_bytes(),
                         kConfig.parameter_bytes(), barrier, policy);
        }
      }
      ++ahead.page;
    };
    // Pages that the kernel before this one may still be writing, those of the rows' own tokens, wait for it, and so do the
    // queries. In a launch that follows nothing all but the first page come after the queries, which would wait for them.
    const int written = (slice.context - p.rows) / kPageTokens;  // pages of the first sequence that were so before that kernel
    const int early = max(0, min(min(p.early ? kStages : 1, ahead.last - ahead.page), written - ahead.page));
#pragma unroll 1
    for (int stage = 0; stage <= kStages; ++stage) {
      if (stage == early) {
        wait_for_previous_kernel();
        allow_next_kernel();
        if (!kConfig.load_only && slice.pages > 0) load_query(p, slice.sequence, slice.unit, lane, query);
      }
      if (stage < kStages) copy_next(stage);
    }
    if constexpr (!kConfig.load_only) write_zeros(p, zero_context);

    const std::uint32_t key_offset = chunk_pair(kKeyRow, lane);
    const std::uint32_t value_offset =
        bits(kValue) == 16 ? chunk_pair_transposed(kValueRow, lane) : chunk_pair(kValueRow, lane);
    int stage = 0;
    std::uint32_t parity = 0;
    if (slice.pages > 0) {
      for (Walk walk(slice);;) {
        Part part{walk.sequence, walk.unit, walk.page, walk.last, pages_of(walk.context)};
        State state = {};
        if constexpr (!kConfig.load_only) finish_query(p, lane, query);
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile) state.top[tile][0] = state.top[tile][1] = kNoScore;

        for (; walk.page < walk.last; ++walk.page) {
          wait_barrier(barriers + 8 * stage, parity);
          if constexpr (!kConfig.load_only) {
            std::byte* const page = my_ring + stage * kConfig.stage_bytes();
            const std::uint32_t keys = ring_address + stage * kConfig.stage_bytes(), values = keys + kConfig.key_bytes();
            const int unused = walk.context - walk.page * kPageTokens;
            if (unused < kPageTokens) clear_slots(page + kConfig.key_bytes(), unused, lane);
            float s[kTiles][4];
            score(keys, key_offset, query, s);
            if (unused - p.rows + 1 < kPageTokens) mask(p, walk, lane, s);
            Parameters parameters = {};
            if constexpr (kValue == DType::u4) {
              parameters = load_parameters(page + kConfig.key_bytes() + kConfig.value_bytes(), lane);
            }
            add_values(values, value_offset, weigh(s, query, parameters, state), state);
          }
          __syncwarp();
          copy_next(stage);
          if (++stage == kStages) {
            stage = 0;
            parity ^= 1;
          }
        }

        const bool is_end = walk.left == 0;
        if constexpr (!kConfig.load_only) {
          finish(state);
          part.value_scale = query.value_scale;
          if (part.first == 0 && part.last == part.pages) {
#pragma unroll
            for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
              for (int i = 0; i < kSteps; ++i) {
                const float(&o)[4] = state.o[tile][i];
                write_out(p, part, item_index(tile, i, lane), {{o[0], o[1], o[2], o[3]}, {}, {state.l[tile][0], state.l[tile][1]}});
              }
            }
          } else {
            // The last part can lie in the ring; before it, copies for the next unit are on their way there.
            float* to = reinterpret_cast<float*>(my_ring);
            if (!is_end) {
              const int spare = __shfl_sync(kAllLanes, lane == 0 ? atomicAdd(&spares_used, 1) : 0, 0);
              to = spare < kConfig.spares() ? reinterpret_cast<float*>(ring + kConfig.ring_bytes()) + spare * kPartFloats
                                            : p.workspace.warp_parts + std::int64_t{global_warp} * kPartFloats;
            }
            store_part(to, state, columns_of(p, part.unit), lane);
            part.at = to;
            if (lane == 0) parts[warp][is_end] = part;
          }
        }
        if (is_end) break;
        walk.next_unit(p);
        if constexpr (!kConfig.load_only) load_query(p, walk.sequence, walk.unit, lane, query);
      }
    }
    if constexpr (kConfig.load_only) return;

    // The CTA's parts in the order of the pages, one a lane; a run of parts of one unit is merged.
    __syncthreads();
    const Part mine = lane < 2 * kWarps ? parts[lane / 2][lane % 2] : Part{};
    const unsigned present = __ballot_sync(kAllLanes, mine.pages > 0);
    const unsigned before = present & ((1u << lane) - 1);
    const int previous = before == 0 ? lane : 31 - __clz(before);
    const int previous_sequence = __shfl_sync(kAllLanes, mine.sequence, previous);
    const int previous_unit = __shfl_sync(kAllLanes, mine.unit, previous);
    const bool follows = before != 0 && previous_sequence == mine.sequence && previous_unit == mine.unit;
    unsigned starts = __ballot_sync(kAllLanes, mine.pages > 0 && !follows);
    Part head = {}, tail = {};
    while (starts != 0) {
      const int first = __ffs(starts) - 1;
      starts &= starts - 1;
      const unsigned members = present & ~((1u << first) - 1) & (starts == 0 ? kAllLanes : (starts & -starts) - 1);
      const Part run{__shfl_sync(kAllLanes, mine.sequence, first), __shfl_sync(kAllLanes, mine.unit, first),
                     __shfl_sync(kAllLanes, mine.first, first),    __shfl_sync(kAllLanes, mine.last, 31 - __clz(members)),
                     __shfl_sync(kAllLanes, mine.pages, first),    __shfl_sync(kAllLanes, mine.value_scale, first)};
      float* to = p.workspace.cta_parts + std::int64_t{blockIdx.x} * 2 * kPartFloats;
      if (run.first > 0) {
        head = run;
      } else if (run.last < run.pages) {
        tail = run;
        to += kPartFloats;
      } else {
        to = nullptr;
      }
      const int last = 31 - __clz(members);
      merge_warps(p, run, members, last % 2 == 0 ? parts[last / 2][0].at : nullptr, ring, to);
    }
    if (cuts.head_parts == 0 && cuts.tail_parts == 0) return;

    // The last CTA to arrive at a unit merges it.
    __syncthreads();
    if (threadIdx.x < 2) {
      const int parts = threadIdx.x == 0 ? cuts.head_parts : cuts.tail_parts;
      unsigned* const arrivals = p.workspace.arrivals + (threadIdx.x == 0 ? cuts.head_owner : static_cast<int>(blockIdx.x));
      const bool last = parts > 0 && add_acquire_release(arrivals, 1) == static_cast<unsigned>(parts - 1);
      if (last) *arrivals = 0;  // for the next launch
      is_last[threadIdx.x] = last;
    }
    __syncthreads();
    if (is_last[0]) merge_ctas(p, head, cuts.head_owner, cuts.head_parts);
    if (is_last[1]) merge_ctas(p, tail, static_cast<int>(blockIdx.x), cuts.tail_parts);
  }
};

// Plain parameters: nvcc's host stubs do not take a kernel whose template parameter is a class.
template <DType kKey, DType kValue, int kDim, int kTiles, int kWarps, int kStages, int kCtasPerSm, bool kLoadOnly>
__global__ void __launch_bounds__(kWarps * 32, kCtasPerSm) decode_attention_kernel(const __grid_constant__ DecodeParams p) {
  DecodeKernel<DecodeConfig{kKey, kValue, kDim, kTiles, {kWarps, kStages, kCtasPerSm}, kLoadOnly}>::run(p);
}

template <DecodeConfig kConfig>
void launch_decode(cudaStream_t stream, const DecodeParams& params, int ctas) {
  constexpr DecodeTuning kTuning = kConfig.tuning;
  constexpr auto kKernel = decode_attention_kernel<kConfig.key, kConfig.value, kConfig.dim, kConfig.tiles, kTuning.warps,
                                                   kTuning.stages, kTuning.ctas_per_sm, kConfig.load_only>;
  static const cudaError_t prepared =
      cudaFuncSetAttribute(kKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kConfig.shared_bytes());
  check(prepared, "shared memory of decode attention");
  launch("decode attention", kKernel, stream, ctas, kTuning.warps * 32, kConfig.shared_bytes(),
         params.early ? Start::early : Start::after_previous, params);
}

// The product's kernel for one key type and any value type that goes with it.
template <DType kKey, DType kValue>
void launch_decode_pair(cudaStream_t stream, const DecodeParams& params, int dim, int tiles, int ctas) {
  if (dim == 128) {
    tiles == 1 ? launch_decode<decode_config(kKey, kValue, 128, 1)>(stream, params, ctas)
               : launch_decode<decode_config(kKey, kValue, 128, 2)>(stream, params, ctas);
  } else {
    tiles == 1 ? launch_decode<decode_config(kKey, kValue, 64, 1)>(stream, params, ctas)
               : launch_decode<decode_config(kKey, kValue, 64, 2)>(stream, params, ctas);
  }
}

}  // namespace keel::cuda
