// One producer thread streams the weights of a block's slice of K through a ring in shared memory by bulk copies; the slice of x stays there.
// Warpgroups multiply 64 rows of W each (wgmma, W on the wide side); the cluster's blocks copy their f32 sums to the
// block that owns the rows, whose adding warps add them in order of rank: the same bits every run. Work on weights begins before the
// previous kernel ends (programmatic dependent launch); x is awaited.
#include "kernels/gemm/skinny_gemm.h"

#include <cudaTypedefs.h>

#include <algorithm>

#include "device/cuda.h"
#include "kernels/gemm/hopper_ptx.h"

namespace keel::cuda {
namespace {

using ptx::u32;
using ptx::u64;

// The sums of 64 tokens want 128 registers: 16 warps, not 20. Two blocks share a multiprocessor with 12 warps each, of 80 registers.
constexpr int max_warpgroups(int tokens, bool shares) { return shares ? 2 : tokens > 32 ? 3 : 4; }
constexpr int kMaxCluster = 8;
constexpr int kMostSharingTokens = 32;
constexpr int kMinStages = 3, kMaxStages = 24;
constexpr int shared_bytes_of(bool shares) { return (shares ? 113 : 227) * 1024; }
constexpr int kRowBytes = 128;                   // of a tile of x or dense W: 64 elements
constexpr int kDenseTileBytes = 64 * kRowBytes;  // 64 rows × 64 columns
constexpr int kAwqScaleBytes = 64 * 4;           // f16 scale and 16-bit zero of each row of a tile
constexpr int kAwqCodeBytes = 64 * 128 / 2;      // 64 rows × one group
constexpr int kAwqTileBytes = kAwqCodeBytes + kAwqScaleBytes;
constexpr int kAwqStep = 2;  // groups in a stage

struct SkinnyShape {
  const std::byte* packed;
  const std::byte* group_scales;
  const void* bias;
  void* out;
  bool is_f32_out;
  std::int64_t rows;
  int tokens;
  int blocks;        // of K: 64 columns, AWQ 128
  int slice_blocks;  // most that one block of the cluster has
  int tiles;
  int warpgroups, stages;
  bool streams_x;
  int stage_bytes;
  int stages_at, sums_at, own_sums_at, barriers_at, shared_bytes;
};

__device__ inline u32 and_or(u32 value, u32 mask, u32 bits) {  // one LOP3
  u32 out;
  asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(out) : "r"(value), "r"(mask), "r"(bits));
  return out;
}

// (code - zero) of the eight nibbles of a word, exact: rows g and g + 8 of the m16n8k16 fragment have each their zero. A nibble under the
// exponent of 2^10 is 1024 + code in f16 (1024 + 16 · code four bits higher); 128 + code under 2^7 in bf16.
template <class T>
struct Zeros;
template <>
struct Zeros<__half> {
  __half2 low, high;  // 1024 + zero of row g; -(64 + zero) of row g + 8
  __device__ Zeros(u32 zero_g, u32 zero_g8) {
    const u32 low_bits = 0x64006400u | zero_g * 0x10001u, high_bits = 0xd400d400u | zero_g8 * 0x100010u;
    low = reinterpret_cast<const __half2&>(low_bits);
    high = reinterpret_cast<const __half2&>(high_bits);
  }
  __device__ void subtract(u32 word, u32 (&a)[4]) const {
    const __half2 sixteenth = __float2half2_rn(0.0625f);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const u32 g = and_or(word >> (8 * half), 0x000f000fu, 0x64006400u);
      const u32 g8 = and_or(word >> (8 * half), 0x00f000f0u, 0x64006400u);
      const __half2 value_g = __hsub2(reinterpret_cast<const __half2&>(g), low);
      const __half2 value_g8 = __hfma2(reinterpret_cast<const __half2&>(g8), sixteenth, high);
      a[2 * half] = reinterpret_cast<const u32&>(value_g);
      a[2 * half + 1] = reinterpret_cast<const u32&>(value_g8);
    }
  }
};
template <>
struct Zeros<__nv_bfloat16> {
  __nv_bfloat162 zero[2];  // 128 + zero
  __device__ Zeros(u32 zero_g, u32 zero_g8) {
    const u32 g = 0x43004300u | zero_g * 0x10001u, g8 = 0x43004300u | zero_g8 * 0x10001u;
    zero[0] = reinterpret_cast<const __nv_bfloat162&>(g);
    zero[1] = reinterpret_cast<const __nv_bfloat162&>(g8);
  }
  __device__ void subtract(u32 word, u32 (&a)[4]) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const u32 bits = and_or(word >> (4 * i), 0x000f000fu, 0x43004300u);
      const __nv_bfloat162 value = __hsub2(reinterpret_cast<const __nv_bfloat162&>(bits), zero[i & 1]);
      a[i] = reinterpret_cast<const u32&>(value);
    }
  }
};

template <class T>
__device__ void store_out(const SkinnyShape& p, int token, std::int64_t n, float value) {
  if (n >= p.rows || token >= p.tokens) return;
  if (p.bias != nullptr) value += static_cast<float>(static_cast<const T*>(p.bias)[n]);
  const std::int64_t at = token * p.rows + n;
  if (p.is_f32_out) {
    static_cast<float*>(p.out)[at] = value;
  } else {
    static_cast<T*>(p.out)[at] = static_cast<T>(value);
  }
}

// Sums on their way to the block that owns the row: [source block][owned row][token] floats, a row's 32-byte pieces of eight tokens
// exchanged by the row's low bits, so that neither side meets the same banks.
template <int kTokens>
__device__ inline int piece_of(int token, int owned_row) {
  return ((token / 8) ^ (owned_row & (kTokens / 8 - 1))) * 32 + token % 8 * 4;
}

// Warps: 4 · warpgroups multiply, one asks for copies, three add up.
template <class T, int kTokens, bool kAwq, bool kShares>
__global__ void __launch_bounds__((max_warpgroups(kTokens, kShares) + 1) * 128, kShares ? 2 : 1)
    skinny_kernel(const __grid_constant__ CUtensorMap weights_map, const __grid_constant__ CUtensorMap x_map, const SkinnyShape p) {
  extern __shared__ std::byte raw_shared[];
  const u32 raw = ptx::shared_address(raw_shared);
  const u32 shared = (raw + 1023) & ~1023u;
  std::byte* const shared_pointer = raw_shared + (shared - raw);
  const u32 stages = shared + p.stages_at;
  const u32 full = shared + p.barriers_at, empty = full + p.stages * 8;
  const u32 x_ready = empty + p.stages * 8, sums_ready = x_ready + 8, sums_free = x_ready + 16;

  const int rank = static_cast<int>(ptx::cluster_rank()), clusters = static_cast<int>(ptx::cluster_count());
  const int cluster = static_cast<int>(gridDim.x) / clusters, first_tile = static_cast<int>(ptx::cluster_index());
  const int warps = 4 * p.warpgroups, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int first_block = static_cast<int>(static_cast<std::int64_t>(rank) * p.blocks / cluster);
  const int blocks = static_cast<int>(static_cast<std::int64_t>(rank + 1) * p.blocks / cluster) - first_block;
  const int owned_rows = p.warpgroups * 64 / cluster;
  constexpr int kAdders = 3;
  constexpr int kChunks = kAwq ? 2 : 1;  // 64 columns of x in a block of K
  constexpr int kChunkBytes = kTokens * kRowBytes;
  constexpr int kStep = kAwq ? kAwqStep : 1;  // blocks of K in a stage of the ring
  const int owned_bytes = owned_rows * kTokens * 4;

  if (warp == warps) {
    const u64 once = ptx::evict_first_policy(), keep = ptx::evict_last_policy();
    const int steps_of_tile = (blocks + kStep - 1) / kStep;
    const int steps = (p.tiles - first_tile + clusters - 1) / clusters * steps_of_tile, ring = min(steps, p.stages);
    const int x_bytes = p.streams_x ? kChunks * kChunkBytes : 0;  // of a block of K
    struct {  // of the next weights
      int tile, block, stage;
    } next = {first_tile, 0, 0};
    const std::byte *codes = nullptr, *scales = nullptr;
    int present = p.warpgroups;  // row tiles of AWQ that there are
    const auto ask_weights = [&] {
      const u32 to = stages + next.stage * p.stage_bytes + kStep * x_bytes, barrier = full + next.stage * 8;
      if constexpr (kAwq) {
        if (next.block == 0) {
          const std::int64_t row_tile = static_cast<std::int64_t>(next.tile) * p.warpgroups, at = row_tile * p.blocks + first_block;
          present = static_cast<int>(min(static_cast<std::int64_t>(p.warpgroups), (p.rows + 63) / 64 - row_tile));
          codes = p.packed + at * kAwqCodeBytes;
          scales = p.group_scales + at * kAwqScaleBytes;
        }
        const int groups = min(kStep, blocks - next.block);
        ptx::barrier_arrive_expect(barrier, groups * (x_bytes + present * kAwqTileBytes));
        const std::byte *from = codes, *scales_from = scales;
        for (int i = 0; i < present; ++i) {
          ptx::copy_bytes(to + i * kStep * kAwqTileBytes, from, groups * kAwqCodeBytes, barrier, once);
          ptx::copy_bytes(to + i * kStep * kAwqTileBytes + kStep * kAwqCodeBytes, scales_from, groups * kAwqScaleBytes, barrier, once);
          from += static_cast<std::int64_t>(p.blocks) * kAwqCodeBytes;
          scales_from += static_cast<std::int64_t>(p.blocks) * kAwqScaleBytes;
        }
        codes += kStep * kAwqCodeBytes;
        scales += kStep * kAwqScaleBytes;
      } else {
        ptx::barrier_arrive_expect(barrier, x_bytes + p.warpgroups * kDenseTileBytes);
        ptx::copy_box(to, &weights_map, (first_block + next.block) * 64, next.tile * p.warpgroups * 64, barrier, once);
      }
      next.block += kStep;
      if (next.block >= blocks) {
        next.block = 0;
        next.tile += clusters;
      }
      if (++next.stage == p.stages) next.stage = 0;
    };
    const auto ask_x = [&](u32 to, int block, int count, u32 barrier) {
      for (int chunk = 0; chunk < count * kChunks; ++chunk) {
        ptx::copy_box(to + chunk * kChunkBytes, &x_map, ((first_block + block) * kChunks + chunk) * 64, 0, barrier, keep);
      }
    };
    const auto ask_x_of_stage = [&](int stage, int block) {
      ask_x(stages + stage * p.stage_bytes, block, min(kStep, blocks - block), full + stage * 8);
    };

    if (lane == 0) {
      ptx::prefetch_map(&x_map);
      if (!kAwq) ptx::prefetch_map(&weights_map);
      for (int stage = 0; stage < p.stages; ++stage) {
        ptx::barrier_init(full + stage * 8, 1);
        ptx::barrier_init(empty + stage * 8, warps);
      }
      ptx::barrier_init(x_ready, 1);
      ptx::barrier_init(sums_ready, 1);
      ptx::barrier_init(sums_free, cluster * kAdders);
      ptx::barrier_init_done();
      for (int step = 0; step < ring; ++step) ask_weights();
    }
    __syncwarp();
    ptx::cluster_sync();
    ptx::allow_next_kernel();
    if (lane == 0) {
      ptx::wait_for_previous_kernel();
      if (p.streams_x) {
        for (int step = 0; step < ring; ++step) ask_x_of_stage(step, step % steps_of_tile * kStep);
      } else {
        ptx::barrier_arrive_expect(x_ready, blocks * kChunks * kChunkBytes);
        ask_x(shared, 0, blocks, x_ready);
      }
      u32 parity = 1;
      for (int step = ring; step < steps; ++step) {
        if (next.stage == 0) parity ^= 1;
        ptx::barrier_wait(empty + next.stage * 8, parity);
        if (p.streams_x) ask_x_of_stage(next.stage, next.block);
        ask_weights();
      }
    }
    __syncwarp();
  } else if (warp > warps) {
    ptx::cluster_sync();
    ptx::allow_next_kernel();
    if (cluster > 1) {
      const u32 free_of_peer = ptx::remote_address(sums_free, lane % cluster);
      const int token_pairs = (p.tokens + 1) / 2;
      int turn = 0;
      for (int tile = first_tile; tile < p.tiles; tile += clusters, ++turn) {
        if (warp == warps + 1 && lane == 0) ptx::barrier_arrive_expect(sums_ready, cluster * owned_bytes);
        ptx::barrier_wait_cluster(sums_ready, turn & 1);
        for (int i = threadIdx.x - (warps + 1) * 32; i < owned_rows * token_pairs; i += kAdders * 32) {
          const int row = i % owned_rows, token = i / owned_rows * 2;
          const std::byte* from = shared_pointer + p.sums_at + row * kTokens * 4 + piece_of<kTokens>(token, row);
          float2 total = {0, 0};
          for (int source = 0; source < cluster; ++source) {
            const float2 sum = *reinterpret_cast<const float2*>(from + source * owned_bytes);
            total.x += sum.x;
            total.y += sum.y;
          }
          const std::int64_t n = static_cast<std::int64_t>(tile) * p.warpgroups * 64 + rank * owned_rows + row;
          store_out<T>(p, token, n, total.x);
          store_out<T>(p, token + 1, n, total.y);
        }
        __syncwarp();
        if (lane < cluster) ptx::barrier_arrive_remote(free_of_peer);
      }
    }
  } else {
    ptx::cluster_sync();
    ptx::allow_next_kernel();
    const int warpgroup = warp / 4, group = lane / 4, pair = lane % 4;
    const int row = warp * 16 + group;  // in the tile; and row + 8
    std::byte* own_sums[2];             // of those rows
#pragma unroll
    for (int half = 0; half < 2; ++half) own_sums[half] = shared_pointer + p.own_sums_at + (row + half * 8) * kTokens * 4;
    int stage = 0;
    u32 parity = 0;
    const auto next_stage = [&] {
      if (++stage == p.stages) {
        stage = 0;
        parity ^= 1;
      }
    };
    int turn = 0;
    for (int tile = first_tile; tile < p.tiles; tile += clusters, ++turn) {
      float sum[kTokens / 2];
      if (turn == 0 && !p.streams_x) ptx::barrier_wait(x_ready, 0);
      if constexpr (kAwq) {
#pragma unroll
        for (float& s : sum) s = 0;
        for (int block = 0; block < blocks; block += kStep, next_stage()) {
          ptx::barrier_wait(full + stage * 8, parity);
          const int groups = min(kStep, blocks - block);
          const std::byte* const tile_codes = shared_pointer + p.stages_at + stage * p.stage_bytes +
                                              (p.streams_x ? kStep * kChunks * kChunkBytes : 0) + warpgroup * kStep * kAwqTileBytes;
          u64 x = ptx::matrix_descriptor(p.streams_x ? stages + stage * p.stage_bytes : shared + block * kChunks * kChunkBytes);
#pragma unroll 1
          for (int step_group = 0; step_group < groups; ++step_group, x += kChunks * kChunkBytes / 16) {
            const std::byte* const from = tile_codes + step_group * kAwqCodeBytes;
            const u32* rows = reinterpret_cast<const u32*>(tile_codes + kStep * kAwqCodeBytes + step_group * kAwqScaleBytes) + row % 64;
            const u32 row_g = rows[0], row_g8 = rows[8];
            const Zeros<T> zeros(row_g >> 16, row_g8 >> 16);
            float group_sum[kTokens / 2];
            u32 a[2][2][4];  // of two words, twice: the next are unpacked while the last are multiplied
#pragma unroll
            for (int quarter = 0; quarter < 4; ++quarter) {
              const uint2 codes = reinterpret_cast<const uint2*>(from)[quarter * 128 + threadIdx.x % 128];
              if (quarter == 3 && !p.streams_x && step_group + 1 == groups) {  // all of the stage is in registers
                __syncwarp();
                if (lane == 0) ptx::barrier_arrive(empty + stage * 8);
              }
              if (quarter > 1) ptx::wgmma_wait<1>();
              u32(&now)[2][4] = a[quarter % 2];
              zeros.subtract(codes.x, now[0]);
              zeros.subtract(codes.y, now[1]);
              ptx::pin(now[0]);
              ptx::pin(now[1]);
              ptx::wgmma_fence();
#pragma unroll
              for (int i = 0; i < 2; ++i) {
                ptx::wgmma<T, kTokens>(group_sum, now[i], x + (quarter / 2 * kChunkBytes + (quarter % 2 * 2 + i) * 32) / 16, quarter > 0 || i > 0);
              }
              ptx::wgmma_commit();
            }
            ptx::wgmma_wait<0>();
            ptx::pin(group_sum);
            const float scale_g = __half2float(__ushort_as_half(static_cast<unsigned short>(row_g & 0xffff)));
            const float scale_g8 = __half2float(__ushort_as_half(static_cast<unsigned short>(row_g8 & 0xffff)));
#pragma unroll
            for (int i = 0; i < kTokens / 2; ++i) sum[i] = fmaf(i & 2 ? scale_g8 : scale_g, group_sum[i], sum[i]);
          }
          if (p.streams_x && lane == 0) ptx::barrier_arrive(empty + stage * 8);
        }
      } else {
        u32 last_empty = 0;
        for (int block = 0; block < blocks; ++block, next_stage()) {
          ptx::barrier_wait(full + stage * 8, parity);
          const u32 at = stages + stage * p.stage_bytes;
          const u64 weights = ptx::matrix_descriptor(at + (p.streams_x ? kChunkBytes : 0) + warpgroup * kDenseTileBytes);
          const u64 x = ptx::matrix_descriptor(p.streams_x ? at : shared + block * kChunkBytes);
          ptx::wgmma_fence();
#pragma unroll
          for (int i = 0; i < 4; ++i) ptx::wgmma<T, kTokens>(sum, weights + 2 * i, x + 2 * i, block > 0 || i > 0);
          ptx::wgmma_commit();
          ptx::wgmma_wait<1>();
          if (block > 0 && lane == 0) ptx::barrier_arrive(last_empty);
          last_empty = empty + stage * 8;
        }
        ptx::wgmma_wait<0>();
        ptx::pin(sum);
        if (lane == 0) ptx::barrier_arrive(last_empty);
      }

      if (cluster == 1) {
        const std::int64_t n = static_cast<std::int64_t>(tile) * p.warpgroups * 64 + row;
#pragma unroll
        for (int i = 0; i < kTokens / 2; ++i) store_out<T>(p, i / 4 * 8 + pair * 2 + i % 2, n + (i & 2) * 4, sum[i]);
        continue;
      }
      if (turn > 0) ptx::barrier_wait_cluster(sums_free, (turn - 1) & 1);
#pragma unroll
      for (int i = 0; i < kTokens / 4; ++i) {
        const int half = i % 2, piece = piece_of<kTokens>(i / 2 * 8 + pair * 2, (row + half * 8) % owned_rows);
        *reinterpret_cast<float2*>(own_sums[half] + piece) = {sum[2 * i], sum[2 * i + 1]};
      }
      ptx::written_for_copies();
      ptx::sync_threads_of(warps * 32);
      if (warp == 0 && lane < cluster) {
        ptx::copy_to_block(ptx::remote_address(shared + p.sums_at, lane) + rank * owned_bytes, shared + p.own_sums_at + lane * owned_bytes, owned_bytes,
                           ptx::remote_address(sums_ready, lane));
      }
      __syncwarp();
    }
  }
  ptx::cluster_sync();  // no block leaves while others write to its shared memory
}

int padded_tokens(std::int64_t tokens) { return tokens <= 8 ? 8 : tokens <= 16 ? 16 : tokens <= 32 ? 32 : 64; }

// stages = 0 where it does not fit.
SkinnyShape shape_of(const GemmArgs& args, SkinnyPlan plan) {
  const GemmWeights& w = args.weights;
  const bool is_awq = w.packed != nullptr;
  const int padded = padded_tokens(args.tokens);
  SkinnyShape p{.packed = static_cast<const std::byte*>(w.packed),
                .group_scales = static_cast<const std::byte*>(w.group_scales),
                .bias = w.bias,
                .out = args.out,
                .is_f32_out = args.out_type == DType::f32,
                .rows = w.rows,
                .tokens = static_cast<int>(args.tokens)};
  const int block_columns = is_awq ? 128 : 64, tile_rows = 64 * plan.warpgroups;
  p.blocks = static_cast<int>((w.columns + block_columns - 1) / block_columns);
  p.slice_blocks = (p.blocks + plan.cluster - 1) / plan.cluster;
  p.tiles = static_cast<int>((w.rows + tile_rows - 1) / tile_rows);
  p.warpgroups = plan.warpgroups;
  p.streams_x = plan.streams_x;
  const int x_block_bytes = block_columns / 64 * padded * kRowBytes, step = is_awq ? kAwqStep : 1;
  const int weights_bytes = plan.warpgroups * (is_awq ? kAwqTileBytes : kDenseTileBytes);
  p.stage_bytes = (step * (weights_bytes + (plan.streams_x ? x_block_bytes : 0)) + 1023) / 1024 * 1024;
  p.stages_at = plan.streams_x ? 0 : p.slice_blocks * x_block_bytes;
  const int sums_bytes = plan.cluster > 1 ? tile_rows * padded * 4 : 0;
  const int left = shared_bytes_of(plan.shares) - 1024 - p.stages_at - 2 * sums_bytes - (2 * kMaxStages + 3) * 8;
  const int most_steps = p.tiles * p.slice_blocks;
  p.stages = left < 0 ? 0 : std::min({left / p.stage_bytes, kMaxStages, std::max(most_steps, kMinStages)});
  if (p.blocks < plan.cluster || p.stages < kMinStages) p.stages = 0;
  p.sums_at = p.stages_at + p.stages * p.stage_bytes;
  p.own_sums_at = p.sums_at + sums_bytes;
  p.barriers_at = p.own_sums_at + sums_bytes;
  p.shared_bytes = 1024 + p.barriers_at + (2 * p.stages + 3) * 8;
  return p;
}

CUtensorMap tensor_map(DType dtype, const void* matrix, std::int64_t rows, std::int64_t columns, int box_rows) {
  static const auto encode = [] {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult found;
    check(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &found), "cuTensorMapEncodeTiled");
    keel::check(found == cudaDriverEntryPointSuccess, "the driver has cuTensorMapEncodeTiled");
    return reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(function);
  }();
  CUtensorMap map;
  const cuuint64_t sizes[2] = {static_cast<cuuint64_t>(columns), static_cast<cuuint64_t>(rows)};
  const cuuint64_t strides[1] = {static_cast<cuuint64_t>(columns) * 2};
  const cuuint32_t box[2] = {64, static_cast<cuuint32_t>(box_rows)}, steps[2] = {1, 1};
  const CUresult result = encode(&map, dtype == DType::f16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2,
                                 const_cast<void*>(matrix), sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                                 CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  keel::check(result == CUDA_SUCCESS, "a tensor map of a matrix");
  return map;
}

template <class T, int kTokens, bool kAwq, bool kShares>
void launch(cudaStream_t stream, const GemmArgs& args, const SkinnyShape& p, SkinnyPlan plan) {
  constexpr auto* kernel = &skinny_kernel<T, kTokens, kAwq, kShares>;
  constexpr int kSharedBytes = shared_bytes_of(kShares);
  const unsigned threads = static_cast<unsigned>((plan.warpgroups + 1) * 128), cluster = static_cast<unsigned>(plan.cluster);
  cudaLaunchAttribute attributes[2];
  attributes[0].id = cudaLaunchAttributeClusterDimension;
  attributes[0].val.clusterDim.x = cluster;
  attributes[0].val.clusterDim.y = attributes[0].val.clusterDim.z = 1;
  attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[1].val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{.gridDim = {cluster}, .blockDim = {threads}, .stream = stream, .attrs = attributes, .numAttrs = 1};
  static int most_clusters[kMaxCluster + 1] = {};  // at once, with all the shared memory that a block may have
  if (most_clusters[cluster] == 0) {
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes), "shared memory of skinny_gemm");
    config.dynamicSmemBytes = kSharedBytes;
    check(cudaOccupancyMaxActiveClusters(&most_clusters[cluster], kernel, &config), "clusters of skinny_gemm");
    keel::check(most_clusters[cluster] > 0, "a cluster of skinny_gemm fits the device");
  }
  config.dynamicSmemBytes = static_cast<std::size_t>(p.shared_bytes);
  config.gridDim = {static_cast<unsigned>(std::min(p.tiles, most_clusters[cluster])) * cluster};
  config.numAttrs = 2;
  const GemmWeights& w = args.weights;
  const CUtensorMap x_map = tensor_map(w.dtype, args.x, args.tokens, w.columns, kTokens);
  const CUtensorMap weights_map = kAwq ? x_map : tensor_map(w.dtype, w.dense, w.rows, w.columns, 64 * plan.warpgroups);
  check(cudaLaunchKernelEx(&config, kernel, weights_map, x_map, p), "skinny_gemm");
}

template <class T, bool kAwq>
void launch(cudaStream_t stream, const GemmArgs& args, const SkinnyShape& p, SkinnyPlan plan) {
  const auto with = [&](auto tokens) {
    constexpr int kTokens = decltype(tokens)::value;
    if constexpr (kTokens <= kMostSharingTokens) {
      if (plan.shares) return launch<T, kTokens, kAwq, true>(stream, args, p, plan);
    }
    launch<T, kTokens, kAwq, false>(stream, args, p, plan);
  };
  switch (padded_tokens(args.tokens)) {
    case 8: return with(std::integral_constant<int, 8>());
    case 16: return with(std::integral_constant<int, 16>());
    case 32: return with(std::integral_constant<int, 32>());
    default: return with(std::integral_constant<int, 64>());
  }
}

bool is_aligned(const void* pointer) { return reinterpret_cast<std::uintptr_t>(pointer) % 16 == 0; }

}  // namespace

std::vector<SkinnyPlan> skinny_plans(const GemmArgs& args) {
  const GemmWeights& w = args.weights;
  std::vector<SkinnyPlan> plans;
  if (args.tokens < 1 || args.tokens > kSkinnyTokens || w.columns % 8 != 0 || w.columns < 64 || !is_aligned(args.x) || !is_aligned(w.dense)) return plans;
  if (w.rows >= std::int64_t{1} << 30 || w.columns >= std::int64_t{1} << 30) return plans;  // 32-bit coordinates
  struct Ranked {
    SkinnyPlan plan;
    double cost;
  };
  std::vector<Ranked> ranked;
  for (const bool shares : {false, true}) {
    if (shares && args.tokens > kMostSharingTokens) continue;
    for (const bool streams_x : {false, true}) {
      for (int cluster = 1; cluster <= kMaxCluster; cluster *= 2) {
        for (int warpgroups = 1; warpgroups <= max_warpgroups(static_cast<int>(args.tokens), shares); ++warpgroups) {
          const SkinnyPlan plan{warpgroups, cluster, shares, streams_x};
          const SkinnyShape p = shape_of(args, plan);
          if (p.stages == 0) continue;
          // Nanoseconds, roughly: bytes that a multiprocessor takes in, and what each turn of a cluster costs.
          const int at_once = shares ? 2 : 1, clusters = 132 * at_once / cluster, turns = (p.tiles + clusters - 1) / clusters;
          const double tile_rows = 64.0 * warpgroups, step_bytes = static_cast<double>(p.stage_bytes) / (w.packed != nullptr ? kAwqStep : 1);
          const double streamed = turns * p.slice_blocks * step_bytes * at_once, kept = static_cast<double>(p.stages_at) * at_once;
          const double exchanged = cluster > 1 ? turns * tile_rows * padded_tokens(args.tokens) * 4 * at_once : 0;
          const double ring = static_cast<double>(p.stages) * p.stage_bytes * at_once;
          const double cost = streamed / 32 + kept / 40 + exchanged / 40 + (cluster > 1 ? 800 : 0) + std::max(96e3 - ring, 0.0) / 20;
          ranked.push_back({plan, cost});
        }
      }
    }
  }
  std::stable_sort(ranked.begin(), ranked.end(), [](const Ranked& a, const Ranked& b) { return a.cost < b.cost; });
  for (const Ranked& r : ranked) plans.push_back(r.plan);
  return plans;
}

void skinny_gemm(cudaStream_t stream, const GemmArgs& args, SkinnyPlan plan) {
  const SkinnyShape p = shape_of(args, plan);
  keel::check(p.stages > 0 && args.tokens <= kSkinnyTokens, "skinny_gemm's plan fits the product");
  const bool is_awq = args.weights.packed != nullptr, is_f16 = args.weights.dtype == DType::f16;
  if (is_awq) {
    is_f16 ? launch<__half, true>(stream, args, p, plan) : launch<__nv_bfloat16, true>(stream, args, p, plan);
  } else {
    is_f16 ? launch<__half, false>(stream, args, p, plan) : launch<__nv_bfloat16, false>(stream, args, p, plan);
  }
}

}  // namespace keel::cuda
