#include "kernels/kv_write/kv_write_cuda.h"

#include <algorithm>
#include <cmath>

#include "device/launch.cuh"
#include "kernels/kv_write/kv_write_cuda_ring.cuh"
#include "kernels/kv_write/kv_write_cuda_rows.cuh"

namespace keel::cuda {
namespace {

using namespace rope;

// Few tokens: blockIdx.x is the token, a group of lanes has one row.
template <class T, bool kAligned>
__global__ void __launch_bounds__(kThreads) rope_write_kernel(const __grid_constant__ Job job) {
  const std::int64_t token = blockIdx.x;
  const int q_rows = job.heads, qk_rows = q_rows + job.kv_heads;
  const int row = blockIdx.y * (kThreads >> job.group_shift) + (threadIdx.x >> job.group_shift);
  const int dim = (threadIdx.x & (job.group - 1)) * kVector;
  const bool is_mine = dim < job.head_dim && row < qk_rows + job.kv_heads, is_v = row >= qk_rows;
  void* const rows = row < q_rows ? job.q : is_v ? job.v : job.k;
  const int head = row < q_rows ? row : is_v ? row - qk_rows : row - q_rows;
  uint4* const data = reinterpret_cast<uint4*>(static_cast<T*>(rows) + token * job.stride + head * job.head_dim + dim);

  float2 turns[kVector];  // nothing else hides their loads; no kernel of a step writes what they read
  if (job.rotary_dim > 0) load_turns<kAligned>(job, job.turns_of(token), dim, turns);
  wait_for_previous_kernel();
  allow_next_kernel();  // decode attention relies on its place: behind the wait
  const uint4 loaded = is_mine ? *data : uint4{};
  const std::int64_t slot = job.slots[token];
  const Target keys = target(job.keys, slot, dim), values = target(job.values, slot, dim);

  if (__any_sync(~0u, is_mine && !is_v)) {
    float x[kVector];
    unpack<T>(loaded, x);
    if (job.q_norm != nullptr || job.k_norm != nullptr) norm(job, row < q_rows ? job.q_norm : is_v ? nullptr : job.k_norm, dim, x);
    if (job.rotary_dim > 0) rotate<kAligned>(job, dim, turns, x);
    if (is_mine && !is_v) {
      const uint4 rotated = pack<T>(x), rounded = row < q_rows ? rotated : store<T>(job.keys, keys, rotated, head);
      __stwb(data, job.round ? rounded : rotated);
    }
  }
  if (__any_sync(~0u, is_mine && is_v)) {
    uint4 rounded = loaded;
    if (job.values.type == DType::u4) {
      rounded = store_u4<T>(job, values, job.parameters_of(slot), loaded, head, is_mine && is_v);
    } else if (is_mine && is_v) {
      rounded = store<T>(job.values, values, loaded, head);
    }
    if (is_mine && is_v && job.round) __stwb(data, rounded);
  }
}

constexpr std::int64_t kManyTokens = 512;  // from here on the ring is faster
constexpr int kMostSharedBytes = 226 * 1024;

RingShape ring_shape(const Job& job, std::int64_t tokens) {
  RingShape shape{.tokens = tokens, .q_bytes = job.heads * job.head_dim * 2, .kv_bytes = job.kv_heads * job.head_dim * 2, .turns_bytes = job.rotary_dim * 4};
  shape.stage_bytes = (shape.q_bytes + 2 * shape.kv_bytes + shape.turns_bytes + 127) / 128 * 128;
  shape.stages = std::min(kMostRingStages, kMostSharedBytes / shape.stage_bytes);
  return shape;
}

template <class T, bool kAligned, int kGroup>
void launch_ring(cudaStream_t stream, const Job& job, const RingShape& shape) {
  constexpr auto* kernel = &rope_write_ring_kernel<T, kAligned, kGroup>;
  const int shared_bytes = shape.stages * shape.stage_bytes;
  int blocks = 0;
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes), "shared memory of rope_write");
  check(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, kRingThreads, static_cast<std::size_t>(shared_bytes)), "blocks of rope_write");
  keel::check(blocks > 0, "a block of rope_write fits a multiprocessor");
  static const int multiprocessors = find_device().info.multiprocessors;
  const auto grid = static_cast<unsigned>(std::min<std::int64_t>(shape.tokens, static_cast<std::int64_t>(blocks) * multiprocessors));
  launch("rope_write", kernel, stream, grid, kRingThreads, static_cast<std::size_t>(shared_bytes), Start::early, job, shape);
}

}  // namespace

void rope_write(cudaStream_t stream, const RopeWriteArgs& args) {
  if (args.tokens == 0) return;
  const KvLayout& layout = *args.kv.layout;
  const auto [key, value] = layout.format();
  const std::int64_t head_dim = layout.geometry().head_dim;
  const std::int64_t kv_heads = layout.geometry().kv_heads;
  keel::check(layout.order() == PageOrder::cuda, "pages in CUDA's order");
  keel::check(args.stride % kVector == 0, "rows of q, k and v are 16-byte aligned");
  if (head_dim % kVector != 0 || head_dim > kMostHeadDim) {
    throw Error("rope_write on CUDA wants a head dim that is a multiple of " + std::to_string(kVector) + " up to " +
                std::to_string(kMostHeadDim) + ", found " + std::to_string(head_dim));
  }
  if (args.rotary_dim % kVector != 0 || args.rotary_dim > head_dim) {
    throw Error("rope_write on CUDA wants a rotary dim that is a multiple of " + std::to_string(kVector) + " up to the head dim " +
                std::to_string(head_dim) + ", found " + std::to_string(args.rotary_dim));
  }
  if ((key != args.dtype && key != DType::e4m3) || (value != args.dtype && value != DType::e4m3 && value != DType::u4)) {
    throw Error("rope_write on CUDA stores keys as the model's type or fp8_e4m3, and values as those or u4; the model is " +
                std::string(name(args.dtype)) + ", the cache " + to_string(layout.format()));
  }
  int group_shift = 0;
  while ((kVector << group_shift) < head_dim) ++group_shift;
  const int group = 1 << group_shift;
  const auto side = [&](std::byte* pages, std::int64_t page_bytes, DType type, const float* scales) {
    const int row_bytes = static_cast<int>(head_dim * bits(type) / 8);
    return Side{.pages = pages, .page_bytes = page_bytes, .row_bytes = row_bytes, .swizzle = swizzle_of(row_bytes), .type = type, .element_bits = bits(type), .scales = scales};
  };
  const Job job{.q = args.q,
                .k = args.k,
                .v = args.v,
                .stride = args.stride,
                .heads = static_cast<int>(args.heads),
                .kv_heads = static_cast<int>(kv_heads),
                .head_dim = static_cast<int>(head_dim),
                .group = group,
                .group_shift = group_shift,
                .q_norm = args.q_norm,
                .k_norm = args.k_norm,
                .epsilon = args.norm_epsilon,
                .inverse_head_dim = 1.0f / static_cast<float>(head_dim),
                .rotary_dim = static_cast<int>(args.rotary_dim),
                .interleaved = args.pairs == RopePairs::interleaved,
                .rope_table = reinterpret_cast<const float2*>(args.rope_table),
                .positions = args.positions,
                .slots = args.slots,
                .keys = side(args.kv.keys, layout.key_page_bytes(), key, args.kv.key_scales),
                .values = side(args.kv.values, layout.value_page_bytes(), value, args.kv.value_scales),
                .round = args.round};
  const std::int64_t rows = args.heads + 2 * kv_heads;
  with_model_type(args.dtype, "rope_write", [&]<class T>(T) {
    const bool aligned = args.pairs == RopePairs::half && args.rotary_dim % (2 * kVector) == 0;
    if (const RingShape ring = ring_shape(job, args.tokens); args.tokens >= kManyTokens && ring.stages > 0) {
      if (!aligned) return launch_ring<T, false, 0>(stream, job, ring);
      return group == 16 ? launch_ring<T, true, 16>(stream, job, ring) : launch_ring<T, true, 0>(stream, job, ring);
    }
    const std::int64_t rows_a_block = kThreads / group;
    const dim3 grid(static_cast<unsigned>(args.tokens), static_cast<unsigned>((rows + rows_a_block - 1) / rows_a_block));
    launch("rope_write", aligned ? rope_write_kernel<T, true> : rope_write_kernel<T, false>, stream, grid, kThreads, 0, Start::early, job);
  });
}

void fill_rope_table(float* table, std::int64_t positions, std::int64_t rotary_dim, const double* inverse_frequencies, float magnitude) {
  const std::int64_t pairs = rotary_dim / 2;
  for (std::int64_t position = 0; position < positions; ++position) {
    for (std::int64_t pair = 0; pair < pairs; ++pair) {
      const double angle = static_cast<double>(position) * inverse_frequencies[pair];
      float* turn = table + (position * pairs + pair) * 2;
      turn[0] = static_cast<float>(std::cos(angle) * magnitude);
      turn[1] = static_cast<float>(std::sin(angle) * magnitude);
    }
  }
}

}  // namespace keel::cuda
