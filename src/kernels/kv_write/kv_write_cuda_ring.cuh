// The cache write of many tokens: a block stays and takes token after token. One warp asks for whole tokens ahead (bulk copies into a ring
// in shared memory, the table's row with them), the others work on what has landed. A token at a time by ordinary loads spends half its
// life waiting.
#pragma once

#include <bit>

#include "device/launch.cuh"
#include "kernels/gemm/hopper_ptx.h"
#include "kernels/kv_write/kv_write_cuda_rows.cuh"

namespace keel::cuda::rope {

constexpr int kMostRingStages = 3;
constexpr int kRingThreads = kThreads + kWarp;

struct RingShape {
  std::int64_t tokens;
  int q_bytes, kv_bytes, turns_bytes;  // of a token
  int stage_bytes, stages;
};

__device__ inline void copy_in(std::uint32_t shared, const void* global, std::uint32_t bytes, std::uint32_t barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(shared), "l"(global), "r"(bytes), "r"(barrier)
               : "memory");
}

// kGroup: lanes a row where that is known, as for heads of 128; else 0.
template <class T, bool kAligned, int kGroup>
__global__ void __launch_bounds__(kRingThreads) rope_write_ring_kernel(const __grid_constant__ Job given, const RingShape shape) {
  Job job = given;
  if constexpr (kGroup > 0) {
    job.group = kGroup;
    job.group_shift = std::countr_zero(static_cast<unsigned>(kGroup));
  }
  extern __shared__ __align__(128) std::byte stages[];
  __shared__ std::uint64_t barriers[2 * kMostRingStages];
  const std::uint32_t full = ptx::shared_address(barriers), empty = full + kMostRingStages * 8;
  const int lane = threadIdx.x % kWarp;
  if (threadIdx.x == 0) {
    for (int i = 0; i < shape.stages; ++i) {
      ptx::barrier_init(full + i * 8, 1);
      ptx::barrier_init(empty + i * 8, kThreads / kWarp);
    }
    ptx::barrier_init_done();
  }
  __syncthreads();
  wait_for_previous_kernel();
  allow_next_kernel();  // decode attention relies on its place: behind the wait
  int stage = 0;
  std::uint32_t phase = 0;
  const auto advance = [&] {
    if (++stage == shape.stages) stage = 0, phase ^= 1;
  };

  if (threadIdx.x >= kThreads) {
    if (lane != 0) return;
    for (std::int64_t token = blockIdx.x; token < shape.tokens; token += gridDim.x, advance()) {
      const std::uint32_t barrier = full + stage * 8;
      std::uint32_t to = ptx::shared_address(stages) + stage * shape.stage_bytes;
      ptx::barrier_wait(empty + stage * 8, phase ^ 1);
      ptx::barrier_arrive_expect(barrier, shape.q_bytes + 2 * shape.kv_bytes + shape.turns_bytes);
      copy_in(to, static_cast<const T*>(job.q) + token * job.stride, shape.q_bytes, barrier);
      copy_in(to += shape.q_bytes, static_cast<const T*>(job.k) + token * job.stride, shape.kv_bytes, barrier);
      copy_in(to += shape.kv_bytes, static_cast<const T*>(job.v) + token * job.stride, shape.kv_bytes, barrier);
      if (shape.turns_bytes > 0) copy_in(to + shape.kv_bytes, job.turns_of(token), shape.turns_bytes, barrier);
    }
    return;
  }

  const int groups = kThreads >> job.group_shift, group = threadIdx.x >> job.group_shift;
  const int dim = (threadIdx.x & (job.group - 1)) * kVector;
  const bool active = dim < job.head_dim;
  float q_weights[kVector] = {}, k_weights[kVector] = {};
  if (active && job.q_norm != nullptr) load_weights(job.q_norm + dim, q_weights);
  if (active && job.k_norm != nullptr) load_weights(job.k_norm + dim, k_weights);
  std::int64_t slot = blockIdx.x < shape.tokens ? job.slots[blockIdx.x] : -1;
  for (std::int64_t token = blockIdx.x; token < shape.tokens; token += gridDim.x, advance()) {
    const std::int64_t next = token + gridDim.x, next_slot = next < shape.tokens ? job.slots[next] : -1;
    const Target keys = target(job.keys, slot, dim), values = target(job.values, slot, dim);
    const std::byte* from = stages + stage * shape.stage_bytes;
    const auto load = [&](int head, bool is_mine) { return is_mine ? *reinterpret_cast<const uint4*>(from + (head * job.head_dim + dim) * sizeof(T)) : uint4{}; };
    const auto row_of = [&](void* rows, int head) { return reinterpret_cast<uint4*>(static_cast<T*>(rows) + token * job.stride + head * job.head_dim + dim); };
    ptx::barrier_wait(full + stage * 8, phase);
    float2 turns[kVector];
    if (job.rotary_dim > 0) load_turns<kAligned>(job, reinterpret_cast<const float2*>(from + shape.q_bytes + 2 * shape.kv_bytes), dim, turns);
    const auto turned = [&](const uint4& loaded, bool has_weight, const float(&weights)[kVector]) {
      float x[kVector];
      unpack<T>(loaded, x);
      if (has_weight) scale(x, inverse_rms(job, x), weights);
      if (job.rotary_dim > 0) rotate<kAligned>(job, dim, turns, x);
      return pack<T>(x);
    };
    // Each loop's bound is the warp's: its lanes shuffle.
#pragma unroll 2
    for (int first = 0; first < job.heads; first += groups) {
      const int head = first + group;
      const bool is_mine = active && head < job.heads;
      const uint4 rotated = turned(load(head, is_mine), job.q_norm != nullptr, q_weights);
      if (is_mine) __stwb(row_of(job.q, head), rotated);
    }
    from += shape.q_bytes;
    for (int first = 0; first < job.kv_heads; first += groups) {
      const int head = first + group;
      const bool is_mine = active && head < job.kv_heads;
      const uint4 rotated = turned(load(head, is_mine), job.k_norm != nullptr, k_weights);
      if (!is_mine) continue;
      const uint4 rounded = store<T>(job.keys, keys, rotated, head);
      __stwb(row_of(job.k, head), job.round ? rounded : rotated);
    }
    from += shape.kv_bytes;
    for (int first = 0; first < job.kv_heads; first += groups) {
      const int head = first + group;
      const bool is_mine = active && head < job.kv_heads;
      const uint4 loaded = load(head, is_mine);
      uint4 rounded = loaded;
      if (job.values.type == DType::u4) {
        rounded = store_u4<T>(job, values, job.parameters_of(slot), loaded, head, is_mine);
      } else if (is_mine) {
        rounded = store<T>(job.values, values, loaded, head);
      }
      if (is_mine && job.round) __stwb(row_of(job.v, head), rounded);
    }
    __syncwarp();
    if (lane == 0) ptx::barrier_arrive(empty + stage * 8);
    slot = next_slot;
  }
}

}  // namespace keel::cuda::rope
