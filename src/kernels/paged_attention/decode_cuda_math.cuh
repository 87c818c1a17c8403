// What a warp does with a page: S^T = K·Q^T, weights of the softmax, O^T += V^T·P^T, by mma.m16n8k16 with tokens and
// dimensions on M = 16 and query columns on N = 8. One template for every pair of key and value types.
//
// Fragment layouts use PTX's names: lane = 4·g + q; columns 2q, 2q+1 of accumulators, column g of B operands.
#pragma once

#include <cuda_bf16.h>

#include "kernels/paged_attention/decode_cuda_plan.cuh"
#include "kernels/paged_attention/decode_cuda_ptx.cuh"
#include "kv/cuda_page.h"

namespace keel::cuda {

inline constexpr unsigned kAllLanes = 0xffffffffu;
// Before any score is seen; finite, so that a fully masked page gives exp2(-inf) and not NaN.
inline constexpr float kNoScore = -1.5e38f;

template <DecodeConfig kConfig>
struct DecodeMath {
  static constexpr DType kKey = kConfig.key, kValue = kConfig.value;
  static constexpr int kDim = kConfig.dim, kTiles = kConfig.tiles;
  static constexpr int kColumns = 8 * kTiles;
  // With at most four columns in use the other four of the tile repeat them: there the low parts of the weights are multiplied
  // by the same MMA that multiplies the high ones, and finish() adds the two.
  static constexpr bool kFold = kConfig.fold;
  static_assert(!kFold || kTiles == 1);
  static constexpr int kSteps = kDim / 16;  // k steps of S, m tiles of O
  static constexpr bool kBf16Keys = kKey == DType::bf16;
  static constexpr bool kBf16Values = kValue == DType::bf16;  // any other value is multiplied as f16, exactly
  static constexpr int kKeyRow = kDim * bits(kKey) / 8, kValueRow = kDim * bits(kValue) / 8;
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

  // What is left of it when the unit is done: with kFold of half of the tiles, as lanes 2 apart have the same columns.
  static constexpr int kOutTiles = kFold ? kSteps / 2 : kSteps;
  struct Sums {
    float o[kTiles][kOutTiles][4];
    float top[kTiles][2];
    float l[kTiles][2];
  };
  static __device__ int out_tile(int i, int lane) { return kFold ? i + lane % 4 / 2 * kOutTiles : i; }
  static __device__ int out_column(int tile, int lane) { return kFold ? lane % 2 * 2 : tile * 8 + lane % 4 * 2; }

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
      const int column = kFold ? g % 4 : (unit % p.blocks) * kColumns + tile * 8 + g;
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
  // it (lanes 16-31); pair_at() gives later pairs.
  static __device__ std::uint32_t chunk_pair(int row_bytes, int lane) {
    const int slot = lane % 16;
    return slot * row_bytes + swizzled_chunk(row_bytes, slot, lane / 16) * kCudaChunkBytes;
  }
  // The same with the chunk's second half of the pair before the tokens': a transposed 16-bit A operand.
  static __device__ std::uint32_t chunk_pair_transposed(int row_bytes, int lane) {
    const int slot = lane % 8 + lane / 16 * 8;
    return slot * row_bytes + swizzled_chunk(row_bytes, slot, lane / 8 % 2) * kCudaChunkBytes;
  }

  // The pair `bytes` further on in the row: chunks are exchanged within 128 bytes, so that only below the offset must be xored.
  static __device__ std::uint32_t pair_at(std::uint32_t lane_offset, int bytes) {
    return (lane_offset ^ (bytes % 128)) + bytes / 128 * 128;
  }

  // s[tile]: tokens g (0, 1) and g + 8 (2, 3), columns 2q and 2q+1.
  static __device__ void score(std::uint32_t keys, std::uint32_t lane_offset, const Query& query, float (&s)[kTiles][4]) {
    float even[kTiles][4] = {}, odd[kTiles][4] = {};  // two chains, for latency
    if constexpr (bits(kKey) == 16) {
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        std::uint32_t a[4];
        load_matrices(a, keys + pair_at(lane_offset, 32 * step));
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile) {
          multiply_add<kBf16Keys>(step % 2 ? odd[tile] : even[tile], a, query.b[tile][step][0], query.b[tile][step][1]);
        }
      }
    } else {
#pragma unroll
      for (int step = 0; step < kSteps; step += 2) {
        std::uint32_t r[4];
        load_matrices(r, keys + pair_at(lane_offset, 16 * step));
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

  // Weights of a page as B operands, each the sum of a high and a low 16-bit part. kFold: both in `high`.
  struct Weights {
    std::uint32_t high[kTiles][2], low[kTiles][2];
  };

  static __device__ Weights weigh(
      const float (&s)[kTiles][4], const Query& query, const Parameters& parameters, int lane, State& state) {
    const bool is_low = lane % 4 >= 2;  // kFold: this lane's columns
    float x[kTiles][4];
    bool raise = false;
    const auto exponents = [&] {
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          x[tile][j] = fmaf(s[tile][j], query.scale[tile][j % 2], -state.top[tile][j % 2]);
          raise |= (kValue == DType::u4 ? x[tile][j] + parameters.above[j / 2] : x[tile][j]) > kCeiling;
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
        weights.high[tile][half] = transposed(kFold && is_low ? low : high);
        if constexpr (!kFold) weights.low[tile][half] = transposed(low);
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
      if constexpr (!kFold) multiply_add<kBf16Values>(product, a, weights.low[tile][0], weights.low[tile][1]);
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
        load_matrices_transposed(a, values + pair_at(lane_offset, 32 * i));
        add_product(a, weights, i, state);
      }
    } else if constexpr (bits(kValue) == 8) {
      // A 16-bit unit is dimensions 2g, 2g+1 of a token; a register holds tokens 2q, 2q+1 of it.
#pragma unroll
      for (int i = 0; i < kSteps; i += 2) {
        std::uint32_t r[4];
        load_matrices_transposed(r, values + pair_at(lane_offset, 16 * i));
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
        load_matrices_transposed(r, values + pair_at(lane_offset, 32 * pair));
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
  static __device__ Sums finish(const State& state, int lane) {
    Sums sums;
    const bool is_upper = lane % 4 >= 2;
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
      for (int i = 0; i < kOutTiles; ++i) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          sums.o[tile][i][j] = state.o[tile][i][j];
          if constexpr (kFold) {  // the products of the other parts of the weights are in the other lane
            const float lower = state.o[tile][i][j], upper = state.o[tile][i + kOutTiles][j];
            sums.o[tile][i][j] = (is_upper ? upper : lower) + __shfl_xor_sync(kAllLanes, is_upper ? lower : upper, 2);
          }
        }
      }
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        float l = state.l[tile][e], z = state.z[tile][e];
#pragma unroll
        for (int step = 4; step < 32; step *= 2) {
          l += __shfl_xor_sync(kAllLanes, l, step);
          if constexpr (kValue == DType::u4) z += __shfl_xor_sync(kAllLanes, z, step);
        }
        sums.top[tile][e] = state.top[tile][e];
        sums.l[tile][e] = l;
        if constexpr (kValue == DType::u4) {
#pragma unroll
          for (int i = 0; i < kOutTiles; ++i) {
            sums.o[tile][i][e] = fmaf(sums.o[tile][i][e], 0x1p24f, z);
            sums.o[tile][i][2 + e] = fmaf(sums.o[tile][i][2 + e], 0x1p20f, z);
          }
        }
      }
    }
    return sums;
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

  static __device__ void mask(const DecodeParams& p, int unit, int context, int page, int lane, float (&s)[kTiles][4]) {
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int column = kFold ? 2 * (lane % 2) + j % 2 : unit % p.blocks * kColumns + tile * 8 + 2 * (lane % 4) + j % 2;
        const int token = page * kPageTokens + lane / 4 + 8 * (j / 2);
        if (token > context - p.rows + column / p.group || token >= context) s[tile][j] = -INFINITY;
      }
    }
  }
};

}  // namespace keel::cuda
