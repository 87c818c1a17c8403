// The decode attention kernel. A warp works alone: its lane 0 keeps `stages` pages in flight with bulk copies into the warp's
// ring of shared memory, all lanes multiply what has landed, and nothing but its own mbarriers is waited for. Parts of units
// that several warps or CTAs share are merged by whichever warp leaves the last one.
#pragma once

#include "device/launch.cuh"
#include "kernels/paged_attention/decode_cuda_merge.cuh"

namespace keel::cuda {

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

template <DecodeConfig kConfig>
struct DecodeKernel {
  using Math = DecodeMath<kConfig>;
  using Merge = DecodeMerge<kConfig>;
  static constexpr int kTiles = kConfig.tiles, kWarps = kConfig.tuning.warps, kStages = kConfig.tuning.stages;
  static constexpr int kPartFloats = Merge::kPartFloats;

  static __device__ void run(const DecodeParams& p) {
    extern __shared__ __align__(128) std::byte ring[];
    __shared__ __align__(8) std::uint64_t landed[kWarps][kStages];
    // Of the unit that a warp owns in this CTA: its parts, and how many warps have left one.
    __shared__ const float* parts[kWarps][kWarps];
    __shared__ int arrived[kWarps];
    static_assert(kWarps < 16, "a barrier of the CTA each");
    __shared__ int spares_used;
    __shared__ CtaCuts cuts;  // not in registers, which the loop over the pages wants

    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int global_warp = blockIdx.x * kWarps + warp;
    const WarpSlice slice = load_past_l1(p.workspace.slices + global_warp);
    if (threadIdx.x == 0) cuts = load_past_l1(p.workspace.cuts + blockIdx.x);
    std::byte* const my_ring = ring + warp * kStages * kConfig.stage_bytes();
    const std::uint32_t ring_address = shared_address(my_ring), barriers = shared_address(landed[warp]);
    if (lane < kStages) init_barrier(barriers + 8 * lane);
    if (lane == 0) arrived[warp] = 0;
    if (threadIdx.x == 0) spares_used = 0;
    fence_copy_engine();
    __syncthreads();

    // Copies: lane 0 issues; the 64 page ids ahead lie two a lane, so that new ones are asked for long before their turn.
    const std::uint64_t policy = p.blocks == 1 ? evict_first_policy() : evict_normal_policy();
    Walk ahead(slice);
    int ids = 0, next_ids = 0, ids_first = 0;
    const auto id_at = [&](int page) { return page < ahead.last ? __ldcg(p.page_table + ahead.sequence * p.page_table_stride + page) : 0; };
    const auto fetch_ids = [&] {
      ids_first = ahead.page;
      ids = id_at(ahead.page + lane);
      next_ids = id_at(ahead.page + 32 + lane);
    };
    const int zero_context = blockIdx.x < p.sequences ? __ldcg(p.contexts + blockIdx.x) : 1;
    typename Math::Query query;
    if (slice.pages > 0) fetch_ids();
    const auto copy_page = [&](int stage) {
      const std::int64_t id = __shfl_sync(kAllLanes, ids, ahead.page - ids_first);
      if (lane == 0) {
        const int kv_head = ahead.unit / p.blocks;
        const std::uint32_t to = ring_address + stage * kConfig.stage_bytes(), barrier = barriers + 8 * stage;
        const std::byte* const values = p.values + id * p.value_page_bytes;
        expect_bytes(barrier, kConfig.copy_bytes());
        copy_to_shared(to, p.keys + id * p.key_page_bytes + kv_head * kConfig.key_bytes(), kConfig.key_bytes(), barrier, policy);
        copy_to_shared(to + kConfig.key_bytes(), values + kv_head * kConfig.value_bytes(), kConfig.value_bytes(), barrier, policy);
        if constexpr (kConfig.parameter_bytes() > 0) {
          copy_to_shared(to + kConfig.key_bytes() + kConfig.value_bytes(),
                         values + p.units / p.blocks * kConfig.value_bytes() + kv_head * kConfig.parameter_bytes(),
                         kConfig.parameter_bytes(), barrier, policy);
        }
      }
      ++ahead.page;
    };
    const auto copy_next = [&](int stage) {
      if (ahead.page == ahead.last) {
        if (ahead.left == 0) return;
        ahead.next_unit(p);
        fetch_ids();
        if constexpr (!kConfig.load_only) Math::prefetch_query(p, ahead.sequence, ahead.unit, lane);
      } else if (ahead.page - ids_first == 32) {
        ids_first += 32;
        ids = next_ids;
        next_ids = id_at(ahead.page + 32 + lane);
      }
      copy_page(stage);
    };
    // Pages that the kernel before this one may still be writing, those of the rows' own tokens, wait for it, and so do the
    // queries. In a launch that follows nothing all but the first page come after the queries, which would wait for them.
    const int written = (slice.context - p.rows) / kPageTokens;  // pages of the first sequence that were so before that kernel
    const int early = max(0, min(min(p.early ? kStages : 1, ahead.last - ahead.page), written - ahead.page));
#pragma unroll 1
    for (int stage = 0; stage < early; ++stage) copy_page(stage);
    wait_for_previous_kernel();
    allow_next_kernel();
    if (!kConfig.load_only && slice.pages > 0) Math::load_query(p, slice.sequence, slice.unit, lane, query);
#pragma unroll 1
    for (int stage = early; stage < kStages; ++stage) copy_next(stage);
    if constexpr (!kConfig.load_only) Merge::write_zeros(p, zero_context);

    const std::uint32_t key_offset = Math::chunk_pair(Math::kKeyRow, lane);
    const std::uint32_t value_offset =
        bits(kConfig.value) == 16 ? Math::chunk_pair_transposed(Math::kValueRow, lane) : Math::chunk_pair(Math::kValueRow, lane);
    int stage = 0;
    std::uint32_t parity = 0;
    if (slice.pages > 0) {
      for (Walk walk(slice);;) {
        const bool is_whole = walk.page == 0 && walk.last == pages_of(walk.context);
        typename Math::State state = {};
        if constexpr (!kConfig.load_only) Math::finish_query(p, lane, query);
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile) state.top[tile][0] = state.top[tile][1] = kNoScore;

        for (; walk.page < walk.last; ++walk.page) {
          wait_barrier(barriers + 8 * stage, parity);
          if constexpr (!kConfig.load_only) {
            std::byte* const page = my_ring + stage * kConfig.stage_bytes();
            const std::uint32_t keys = ring_address + stage * kConfig.stage_bytes(), values = keys + kConfig.key_bytes();
            const int unused = walk.context - walk.page * kPageTokens;
            if (unused < kPageTokens) Math::clear_slots(page + kConfig.key_bytes(), unused, lane);
            float s[kTiles][4];
            Math::score(keys, key_offset, query, s);
            if (unused - p.rows + 1 < kPageTokens) Math::mask(p, walk.unit, walk.context, walk.page, lane, s);
            typename Math::Parameters parameters = {};
            if constexpr (kConfig.value == DType::u4) {
              parameters = Math::load_parameters(page + kConfig.key_bytes() + kConfig.value_bytes(), lane);
            }
            Math::add_values(values, value_offset, Math::weigh(s, query, parameters, lane, state), state);
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
          typename Math::Sums sums = Math::finish(state, lane);
          const UnitRun run = is_end ? slice.last : slice.first;
          bool is_mine = true;  // the sums are the CTA's, then the unit's
          if (!is_whole && run.parts > 1) {
            // The last part can lie in the ring; before it, copies for the next unit are on their way there.
            float* to = reinterpret_cast<float*>(my_ring);
            if (!is_end) {
              const int spare = __shfl_sync(kAllLanes, lane == 0 ? atomicAdd(&spares_used, 1) : 0, 0);
              to = spare < kConfig.spares() ? reinterpret_cast<float*>(ring + kConfig.ring_bytes()) + spare * kPartFloats
                                            : p.workspace.warp_parts + std::int64_t{global_warp} * kPartFloats;
            }
            Merge::store(to, sums, lane);
            int before = 0;
            if (lane == 0) {
              parts[run.owner][warp - run.owner] = to;
              before = atomicAdd(arrived + run.owner, 1);
            }
            is_mine = __shfl_sync(kAllLanes, before, 0) == run.parts - 1;
            if (!is_mine) {
              arrive_at(1 + run.owner, run.parts * 32);
            } else {
              sync_at(1 + run.owner, run.parts * 32);
              sums = Merge::template merged<4>(run.parts, lane, [&](int n, int at) { return reinterpret_cast<const float4*>(parts[run.owner][n])[at]; });
            }
          }
          if (is_mine && !is_whole && run.cut != UnitCut::none) {
            const bool is_head = run.cut == UnitCut::head;
            is_mine = Merge::merge_ctas(p, is_head ? cuts.head_owner : static_cast<int>(blockIdx.x), is_head ? cuts.head_parts : cuts.tail_parts, lane, sums);
          }
          if (is_mine) Merge::write_out(p, walk.sequence, walk.unit, query.value_scale, sums, lane);
        }
        if (is_end) break;
        walk.next_unit(p);
        if constexpr (!kConfig.load_only) Math::load_query(p, walk.sequence, walk.unit, lane, query);
      }
    }
  }
};

// Plain parameters: nvcc's host stubs do not take a kernel whose template parameter is a class.
template <DType kKey, DType kValue, int kDim, int kTiles, bool kFold, int kWarps, int kStages, int kCtasPerSm, bool kLoadOnly>
__global__ void __launch_bounds__(kWarps * 32, kCtasPerSm) decode_attention_kernel(const __grid_constant__ DecodeParams p) {
  DecodeKernel<DecodeConfig{kKey, kValue, kDim, kTiles, kFold, {kWarps, kStages, kCtasPerSm}, kLoadOnly}>::run(p);
}

template <DecodeConfig kConfig>
void launch_decode(cudaStream_t stream, const DecodeParams& params, int ctas) {
  constexpr DecodeTuning kTuning = kConfig.tuning;
  constexpr auto kKernel = decode_attention_kernel<kConfig.key, kConfig.value, kConfig.dim, kConfig.tiles, kConfig.fold, kTuning.warps,
                                                   kTuning.stages, kTuning.ctas_per_sm, kConfig.load_only>;
  static const cudaError_t prepared =
      cudaFuncSetAttribute(kKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kConfig.shared_bytes());
  check(prepared, "shared memory of decode attention");
  launch("decode attention", kKernel, stream, ctas, kTuning.warps * 32, kConfig.shared_bytes(),
         params.early ? Start::early : Start::after_previous, params);
}

// The product's kernel for one key type and any value type that goes with it.
template <DType kKey, DType kValue, int kDim>
void launch_decode_dim(cudaStream_t stream, const DecodeParams& params, int ctas) {
  const int columns = params.rows * params.group.by;
  if (columns <= 4) return launch_decode<decode_config(kKey, kValue, kDim, 4)>(stream, params, ctas);
  if (columns <= 8) return launch_decode<decode_config(kKey, kValue, kDim, 8)>(stream, params, ctas);
  launch_decode<decode_config(kKey, kValue, kDim, 16)>(stream, params, ctas);
}
template <DType kKey, DType kValue>
void launch_decode_pair(cudaStream_t stream, const DecodeParams& params, int dim, int ctas) {
  dim == 128 ? launch_decode_dim<kKey, kValue, 128>(stream, params, ctas) : launch_decode_dim<kKey, kValue, 64>(stream, params, ctas);
}

}  // namespace keel::cuda
