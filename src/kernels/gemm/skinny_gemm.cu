// One producer thread streams the weights of a block's slice of K through a ring in shared memory by bulk copies; the slice of x stays there.
// Warpgroups multiply 64 rows of W each (wgmma, W on the wide side); the cluster's blocks copy their f32 sums to the
// block that owns the rows, which adds them in order of rank: the same bits every run. Work on weights begins before the
// previous kernel ends (device/launch.cuh); x is awaited. The next kernel may start once the last weights have been asked for: where
// it finds room beside this one, the memory does not rest between the two.
#include "kernels/gemm/skinny_gemm.h"

#include <cudaTypedefs.h>

#include <algorithm>

#include "device/launch.cuh"
#include "kernels/gemm/hopper_ptx.h"
#include "kernels/gemm/skinny_parts.cuh"

namespace keel::cuda {

namespace {

using ptx::u32;
using ptx::u64;

// Sums on their way to the block that owns the row: [source block][owned row][token] floats, a row's 32-byte pieces of eight tokens
// exchanged by the row's low bits, so that neither side meets the same banks.
template <int kTokens>
__device__ inline int piece_of(int token, int owned_row) {
  return ((token / 8) ^ (owned_row & (kTokens / 8 - 1))) * 32 + token % 8 * 4;
}

// Warps: 4 · warpgroups multiply, one asks for copies, three add up; a block's last sums all but that one.
template <class T, int kTokens, bool kAwq>
__global__ void __launch_bounds__((kMaxWarpgroups + 1) * 128, !kAwq && kTokens <= kMostSharingTokens ? 2 : 1)
    skinny_kernel(const __grid_constant__ CUtensorMap weights_map, const __grid_constant__ CUtensorMap x_map, const SkinnyShape p) {
  extern __shared__ std::byte raw_shared[];
  const u32 raw = ptx::shared_address(raw_shared);
  const u32 shared = (raw + 1023) & ~1023u;
  std::byte* const shared_pointer = raw_shared + (shared - raw);
  const u32 stages = shared + p.stages_at;
  const u32 full = shared + p.barriers_at, empty = full + p.stages * 8;
  const u32 x_ready = empty + p.stages * 8, sums_ready = x_ready + 8, sums_free = x_ready + 16;

  const int split = static_cast<int>(ptx::cluster_rank()), first_tile = static_cast<int>(ptx::cluster_index());
  const int tile_step = static_cast<int>(ptx::cluster_count()), turns = (p.tiles - first_tile + tile_step - 1) / tile_step;
  const int warps = 4 * p.warpgroups, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int first_block = static_cast<int>(static_cast<std::int64_t>(split) * p.blocks / p.splits);
  const int blocks = static_cast<int>(static_cast<std::int64_t>(split + 1) * p.blocks / p.splits) - first_block;
  const int owned_rows = p.warpgroups * 64 / p.splits;
  constexpr int kAdders = 3;
  constexpr int kChunks = kAwq ? 2 : 1;  // 64 columns of x in a block of K
  constexpr int kChunkBytes = kTokens * kRowBytes;
  constexpr int kStep = kAwq ? kAwqStep : 1;  // blocks of K in a stage of the ring
  const int owned_bytes = owned_rows * kTokens * 4;
  // Names of barriers: between the threads that multiply; between them and those that add, for the sums that stay in the block.
  constexpr u32 kMultiplied = 1, kOwnReady = 2, kOwnFree = 3;
  const u32 both = (warps + kAdders) * 32;

  // What this block owns of the tile, eight rows of eight tokens for a warp at a time: the `first` and every `step`th.
  const auto add_up = [&](int tile, int first, int step) {
    const auto total_of = [&](int row, int token) {
      const std::byte* from = shared_pointer + p.sums_at + row * kTokens * 4 + piece_of<kTokens>(token, row);
      float2 total = {0, 0};
#pragma unroll 2
      for (int source = 0; source < p.splits; ++source) {
        const float2 sum = *reinterpret_cast<const float2*>(from + source * owned_bytes);
        total.x += sum.x;
        total.y += sum.y;
      }
      return total;
    };
    const int pieces = (p.is_gated ? owned_rows / 2 : owned_rows) / 8 * (kTokens / 8);
#pragma unroll 1
    for (int piece = first; piece < pieces; piece += step) {
      const int token = piece % (kTokens / 8) * 8 + lane / 8 * 2, row = piece / (kTokens / 8) * (p.is_gated ? 16 : 8) + lane % 8;
      const float2 total = total_of(row, token);
      const std::int64_t n = static_cast<std::int64_t>(tile) * p.warpgroups * 64 + split * owned_rows + row;
      if (p.is_gated) {
        const float2 up = total_of(row + 8, token);
        store_gated<T>(p, token, n, total.x, up.x);
        store_gated<T>(p, token + 1, n, total.y, up.y);
      } else {
        store_out<T>(p, token, n, total.x);
        store_out<T>(p, token + 1, n, total.y);
      }
    }
  };

  if (warp == warps) {
    const u64 once = ptx::evict_first_policy(), keep = ptx::evict_last_policy();
    const int steps_of_tile = (blocks + kStep - 1) / kStep;
    const int steps = turns * steps_of_tile, ring = min(steps, p.stages);
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
        next.tile += tile_step;
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
      ptx::barrier_init(sums_free, max(p.splits - 1, 1) * kAdders);
      ptx::barrier_init_done();
      for (int step = 0; step < ring; ++step) ask_weights();
    }
    __syncwarp();
    ptx::cluster_sync();
    if (lane == 0) {
      if (steps - ring <= p.lead_steps) allow_next_kernel();  // before the wait: what follows reads only weights and tables ahead
      wait_for_previous_kernel();
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
        if (step + 1 + p.lead_steps == steps) allow_next_kernel();
      }
    }
    __syncwarp();
  } else if (warp > warps) {
    ptx::cluster_sync();
    if (p.splits > 1) {
      const u32 free_of_peer = ptx::remote_address(sums_free, lane % p.splits);
      int tile = first_tile;
      for (int turn = 0; turn < turns; ++turn, tile += tile_step) {
        if (warp == warps + 1 && lane == 0) ptx::barrier_arrive_expect(sums_ready, (p.splits - 1) * owned_bytes);
        ptx::sync_threads_of(both, kOwnReady);
        ptx::barrier_wait_cluster(sums_ready, turn & 1);
        if (turn + 1 == turns) {
          add_up(tile, warp - 1, warps + kAdders);
          break;
        }
        add_up(tile, warp - warps - 1, kAdders);
        ptx::arrive_threads_of(both, kOwnFree);
        __syncwarp();  // a lane tells a peer what all of them have read
        if (lane < p.splits && lane != split) ptx::barrier_arrive_remote(free_of_peer);
      }
    }
  } else {
    ptx::cluster_sync();
    const int warpgroup = warp / 4, group = lane / 4, pair = lane % 4;
    const int row = warp * 16 + group;  // in the tile; and row + 8
    std::byte* own_sums[2];             // of those rows
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row_of_half = row + half * 8;  // this block's own share goes to where the peers' arrive
      own_sums[half] = shared_pointer + (row_of_half / owned_rows == split ? p.sums_at + split * owned_bytes + row_of_half % owned_rows * kTokens * 4
                                                                           : p.own_sums_at + row_of_half * kTokens * 4);
    }
    int stage = 0;
    u32 parity = 0;
    const auto next_stage = [&] {
      if (++stage == p.stages) {
        stage = 0;
        parity ^= 1;
      }
    };
    const auto release = [&](int of_stage) {  // once the warp has read it
      if (lane == 0) ptx::barrier_arrive(empty + of_stage * 8);
    };
    int tile = first_tile;
    for (int turn = 0; turn < turns; ++turn, tile += tile_step) {
      float sum[kTokens / 2];
      if (turn == 0 && !p.streams_x) ptx::barrier_wait(x_ready, 0);
      if constexpr (kAwq) {
#pragma unroll
        for (float& s : sum) s = 0;
        // A group is summed by itself, then scaled. With two such sums the tensor cores go on with one while the other is added;
        // a stage ends with none under way, or the compiler lets each wait for the one before.
        constexpr int kSums = kTokens <= 32 ? 2 : 1;
        float group_sum[kSums][kTokens / 2];
        const auto add = [&](float(&sums)[kTokens / 2], const float(&scale)[2]) {
          ptx::pin(sums);
#pragma unroll
          for (int i = 0; i < kTokens / 2; ++i) sum[i] = fmaf(scale[i >> 1 & 1], sums[i], sum[i]);
        };
        const auto multiply = [&](auto count, int block) {  // as many groups of a stage
          constexpr int kGroups = decltype(count)::value;
          const std::byte* const tile_codes = shared_pointer + p.stages_at + stage * p.stage_bytes +
                                              (p.streams_x ? kStep * kChunks * kChunkBytes : 0) + warpgroup * kStep * kAwqTileBytes;
          const u64 x_of_stage = ptx::matrix_descriptor(p.streams_x ? stages + stage * p.stage_bytes : shared + block * kChunks * kChunkBytes);
          u32 a[2][2][4];  // of two words, twice: the next are unpacked while the last are multiplied
          float scales[kGroups][2];
#pragma unroll
          for (int group = 0; group < kGroups; ++group) {
            const int now_sum = group % kSums;
            const u64 x = x_of_stage + group * (kChunks * kChunkBytes / 16);
            const std::byte* const from = tile_codes + group * kAwqCodeBytes;
            const u32* rows = reinterpret_cast<const u32*>(tile_codes + kStep * kAwqCodeBytes + group * kAwqScaleBytes) + row % 64;
            const u32 row_g = rows[0], row_g8 = rows[8];
            const Zeros<T> zeros(row_g >> 16, row_g8 >> 16);
            scales[group][0] = __half2float(__ushort_as_half(static_cast<unsigned short>(row_g & 0xffff)));
            scales[group][1] = __half2float(__ushort_as_half(static_cast<unsigned short>(row_g8 & 0xffff)));
#pragma unroll
            for (int quarter = 0; quarter < 4; ++quarter) {
              const uint2 codes = reinterpret_cast<const uint2*>(from)[quarter * 128 + threadIdx.x % 128];
              if (quarter == 3 && !p.streams_x && group + 1 == kGroups) {  // all of the stage is in registers
                __syncwarp();
                release(stage);
              }
              if (kSums == 1 ? quarter > 1 : quarter > 1 || group > 0) ptx::wgmma_wait<1>();
              if (kSums == 2 && quarter == 1 && group > 0) add(group_sum[(group - 1) % kSums], scales[group - 1]);
              u32(&now)[2][4] = a[quarter % 2];
              zeros.subtract(codes.x, now[0]);
              zeros.subtract(codes.y, now[1]);
              ptx::pin(now[0]);
              ptx::pin(now[1]);
              ptx::wgmma_fence();
#pragma unroll
              for (int i = 0; i < 2; ++i) {
                ptx::wgmma<T, kTokens>(group_sum[now_sum], now[i], x + (quarter / 2 * kChunkBytes + (quarter % 2 * 2 + i) * 32) / 16, quarter > 0 || i > 0);
              }
              ptx::wgmma_commit();
            }
            if (kSums == 1 || group + 1 == kGroups) {
              ptx::wgmma_wait<0>();
              add(group_sum[now_sum], scales[group]);
            }
          }
          if (p.streams_x) release(stage);
        };
        for (int block = 0; block < blocks; block += kStep, next_stage()) {
          ptx::barrier_wait(full + stage * 8, parity);
          if (block + kStep <= blocks) {
            multiply(std::integral_constant<int, kStep>(), block);
          } else {
            multiply(std::integral_constant<int, 1>(), block);
          }
        }
      } else {
        int last_stage = 0;
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
          if (block > 0) release(last_stage);
          last_stage = stage;
        }
        ptx::wgmma_wait<0>();
        ptx::pin(sum);
        release(last_stage);
      }

      if (p.splits == 1) {
        const std::int64_t n = static_cast<std::int64_t>(tile) * p.warpgroups * 64 + row;
#pragma unroll
        for (int i = 0; i < kTokens / 2; ++i) {
          const int token = i / 4 * 8 + pair * 2 + i % 2;
          if (!p.is_gated) {
            store_out<T>(p, token, n + (i & 2) * 4, sum[i]);
          } else if ((i & 2) == 0) {
            store_gated<T>(p, token, n, sum[i], sum[i + 2]);
          }
        }
        continue;
      }
      if (turn > 0) {
        ptx::barrier_wait_cluster(sums_free, (turn - 1) & 1);
        ptx::sync_threads_of(both, kOwnFree);
      }
#pragma unroll
      for (int i = 0; i < kTokens / 4; ++i) {
        const int half = i % 2, piece = piece_of<kTokens>(i / 2 * 8 + pair * 2, (row + half * 8) % owned_rows);
        *reinterpret_cast<float2*>(own_sums[half] + piece) = {sum[2 * i], sum[2 * i + 1]};
      }
      ptx::written_for_copies();
      ptx::sync_threads_of(warps * 32, kMultiplied);
      if (warp == 0 && lane < p.splits && lane != split) {
        ptx::copy_to_block(ptx::remote_address(shared + p.sums_at, lane) + split * owned_bytes, shared + p.own_sums_at + lane * owned_bytes,
                           owned_bytes, ptx::remote_address(sums_ready, lane));
      }
      __syncwarp();
      if (turn + 1 < turns) {
        ptx::arrive_threads_of(both, kOwnReady);
      } else {  // nothing is left to multiply: all add
        ptx::sync_threads_of(both, kOwnReady);
        ptx::barrier_wait_cluster(sums_ready, turn & 1);
        add_up(tile, warp, warps + kAdders);
      }
    }
  }
  ptx::cluster_sync();  // no block leaves while others write to its shared memory
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

template <class T, int kTokens, bool kAwq>
void launch(cudaStream_t stream, const GemmArgs& args, const SkinnyShape& p, SkinnyPlan plan) {
  constexpr auto* kernel = &skinny_kernel<T, kTokens, kAwq>;
  const unsigned threads = static_cast<unsigned>((plan.warpgroups + 1) * 128), cluster = static_cast<unsigned>(plan.splits);
  cudaLaunchAttribute attributes[2];
  attributes[0].id = cudaLaunchAttributeClusterDimension;
  attributes[0].val.clusterDim.x = cluster;
  attributes[0].val.clusterDim.y = attributes[0].val.clusterDim.z = 1;
  attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[1].val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{.gridDim = {cluster}, .blockDim = {threads}, .stream = stream, .attrs = attributes, .numAttrs = 1};
  static int most_clusters[3][kMaxCluster + 1] = {};  // at once, with all the shared memory that a block may have
  int& at_once = most_clusters[static_cast<int>(plan.share)][cluster];
  if (at_once == 0) {
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes_of(SkinnyShare::whole)), "shared memory of skinny_gemm");
    config.dynamicSmemBytes = shared_bytes_of(plan.share);
    check(cudaOccupancyMaxActiveClusters(&at_once, kernel, &config), "clusters of skinny_gemm");
    keel::check(at_once > 0, "a cluster of skinny_gemm fits the device");
  }
  config.dynamicSmemBytes = static_cast<std::size_t>(p.shared_bytes);
  config.gridDim = {static_cast<unsigned>(std::min(p.tiles, at_once)) * cluster};
  config.numAttrs = 2;
  const GemmWeights& w = args.weights;
  const CUtensorMap x_map = tensor_map(w.dtype, args.x, args.tokens, w.columns, kTokens);
  const CUtensorMap weights_map = kAwq ? x_map : tensor_map(w.dtype, w.dense, w.rows, w.columns, 64 * plan.warpgroups);
  check(cudaLaunchKernelEx(&config, kernel, weights_map, x_map, p), "skinny_gemm");
}

template <class T, bool kAwq>
void launch_padded(cudaStream_t stream, const GemmArgs& args, const SkinnyShape& p, SkinnyPlan plan) {
  const auto with = [&](auto tokens) { launch<T, decltype(tokens)::value, kAwq>(stream, args, p, plan); };
  switch (padded_tokens(args.tokens)) {
    case 8: return with(std::integral_constant<int, 8>());
    case 16: return with(std::integral_constant<int, 16>());
    case 32: return with(std::integral_constant<int, 32>());
    default: return with(std::integral_constant<int, 64>());
  }
}

}  // namespace

void skinny_gemm(cudaStream_t stream, const GemmArgs& args, SkinnyPlan plan) {
  const SkinnyShape p = skinny_shape(args, plan);
  keel::check(p.stages > 0 && args.tokens <= kSkinnyTokens, "skinny_gemm's plan fits the product");
  const bool is_awq = args.weights.packed != nullptr, is_f16 = args.weights.dtype == DType::f16;
  if (is_awq) {
    is_f16 ? launch_padded<__half, true>(stream, args, p, plan) : launch_padded<__nv_bfloat16, true>(stream, args, p, plan);
  } else {
    is_f16 ? launch_padded<__half, false>(stream, args, p, plan) : launch_padded<__nv_bfloat16, false>(stream, args, p, plan);
  }
}

}  // namespace keel::cuda
