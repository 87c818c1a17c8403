// Hopper's instructions that CUDA C++ has no words for: barriers in shared memory, bulk copies, wgmma, clusters.
#pragma once

#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstddef>
#include <cstdint>

namespace keel::cuda::ptx {

using u32 = std::uint32_t;
using u64 = std::uint64_t;

__device__ inline u32 shared_address(const void* pointer) { return static_cast<u32>(__cvta_generic_to_shared(pointer)); }

__device__ inline u32 cluster_rank() {
  u32 rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
__device__ inline u32 cluster_index() {
  u32 index;
  asm volatile("mov.u32 %0, %%clusterid.x;" : "=r"(index));
  return index;
}
__device__ inline u32 cluster_count() {
  u32 count;
  asm volatile("mov.u32 %0, %%nclusterid.x;" : "=r"(count));
  return count;
}
// Every thread of every block of the cluster. Orders no memory but initialised barriers: what blocks give each other goes by barriers, and a
// release would wait for all that a block has stored.
__device__ inline void cluster_sync() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}
// The same shared variable in block `rank` of the cluster.
__device__ inline u32 remote_address(u32 address, u32 rank) {
  u32 remote;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(address), "r"(rank));
  return remote;
}
// Shared memory of this block into that of a block of the cluster, whose barrier counts the bytes.
__device__ inline void copy_to_block(u32 remote, u32 shared, u32 bytes, u32 remote_barrier) {
  asm volatile("cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(remote), "r"(shared), "r"(bytes),
               "r"(remote_barrier)
               : "memory");
}
// What this thread wrote to shared memory is there for copies.
__device__ inline void written_for_copies() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
// Barriers by name between as many threads of the block; 0 is __syncthreads().
__device__ inline void sync_threads_of(u32 threads, u32 name) { asm volatile("bar.sync %0, %1;" ::"r"(name), "r"(threads) : "memory"); }
__device__ inline void arrive_threads_of(u32 threads, u32 name) { asm volatile("bar.arrive %0, %1;" ::"r"(name), "r"(threads) : "memory"); }

__device__ inline void barrier_init(u32 barrier, u32 arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
// For the cluster and for copies.
__device__ inline void barrier_init_done() {
  asm volatile("fence.mbarrier_init.release.cluster;\nfence.proxy.async.shared::cta;" ::: "memory");
}
__device__ inline void barrier_arrive(u32 barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
__device__ inline void barrier_arrive_expect(u32 barrier, u32 bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
__device__ inline void barrier_arrive_remote(u32 remote) {
  asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(remote) : "memory");
}
// Waits until the phase of this parity has ended. Acquiring from the cluster empties the L1 cache: not for every step.
#define KEEL_BARRIER_WAIT(scope)                                                                       \
  asm volatile(                                                                                       \
      "{\n.reg .pred done;\n"                                                                         \
      "again:\nmbarrier.try_wait.parity.acquire." scope ".shared::cta.b64 done, [%0], %1;\n"          \
      "@!done bra again;\n}" ::"r"(barrier),                                                          \
      "r"(parity)                                                                                     \
      : "memory")
__device__ inline void barrier_wait(u32 barrier, u32 parity) { KEEL_BARRIER_WAIT("cta"); }
__device__ inline void barrier_wait_cluster(u32 barrier, u32 parity) { KEEL_BARRIER_WAIT("cluster"); }

__device__ inline void prefetch_map(const CUtensorMap* map) { asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory"); }
__device__ inline u64 evict_first_policy() {
  u64 policy;
  asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}
__device__ inline u64 evict_last_policy() {
  u64 policy;
  asm volatile("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}
// A box of a row-major matrix at (column, row); outside the matrix it is zero.
__device__ inline void copy_box(u32 shared, const CUtensorMap* map, int column, int row, u32 barrier, u64 policy) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(
          shared),
      "l"(map), "r"(column), "r"(row), "r"(barrier), "l"(policy)
      : "memory");
}
// 16-byte aligned, a multiple of 16 bytes.
__device__ inline void copy_bytes(u32 shared, const void* global, u32 bytes, u32 barrier, u64 policy) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::"r"(shared),
      "l"(global), "r"(bytes), "r"(barrier), "l"(policy)
      : "memory");
}

// Rows of 128 bytes (64 elements of K) in the 128-byte swizzle, 8-row groups 1,024 bytes apart; the tile's address is a multiple of 1,024.
__device__ inline u64 matrix_descriptor(u32 address) {
  return static_cast<u64>((address & 0x3ffff) >> 4) | (u64{1} << 16) | (u64{1024 >> 4} << 32) | (u64{1} << 62);
}

__device__ inline void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int kPending>
__device__ inline void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// The compiler may not move the use of registers that wgmma reads or writes across this.
template <std::size_t kCount>
__device__ inline void pin(float (&registers)[kCount]) {
#pragma unroll
  for (float& r : registers) asm volatile("" : "+f"(r)::"memory");
}
template <std::size_t kCount>
__device__ inline void pin(u32 (&registers)[kCount]) {
#pragma unroll
  for (u32& r : registers) asm volatile("" : "+r"(r)::"memory");
}

// d[64 rows of W][kTokens] (+)= W tile · x tile of 16 columns; W in shared memory, or in registers (the m16n8k16 fragment of each warp's 16 rows).
#define KEEL_D4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define KEEL_D8(i) KEEL_D4(i), KEEL_D4(i + 4)
#define KEEL_D16(i) KEEL_D8(i), KEEL_D8(i + 8)
#define KEEL_D32(i) KEEL_D16(i), KEEL_D16(i + 16)
#define KEEL_N4 "{%0,%1,%2,%3}"
#define KEEL_N8 "{%0,%1,%2,%3,%4,%5,%6,%7}"
#define KEEL_N16 "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15}"
#define KEEL_N32                                                                                                      \
  "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30," \
  "%31}"
#define KEEL_WGMMA_SHARED(n, type, names, outs, a, b, s)                                                            \
  asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, %" #s ", 0;\nwgmma.mma_async.sync.aligned.m64n" #n "k16.f32." type \
               "." type " " names ", %" #a ", %" #b ", add, 1, 1, 0, 0;\n}"                                         \
               : outs                                                                                               \
               : "l"(weights), "l"(x), "r"(static_cast<int>(add)))
#define KEEL_WGMMA_REGISTERS(n, type, names, outs, a0, a1, a2, a3, b, s)                                              \
  asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, %" #s ", 0;\nwgmma.mma_async.sync.aligned.m64n" #n "k16.f32." type \
               "." type " " names ", {%" #a0 ",%" #a1 ",%" #a2 ",%" #a3 "}, %" #b ", add, 1, 1, 0;\n}"                \
               : outs                                                                                                 \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(x), "r"(static_cast<int>(add)))
#define KEEL_WGMMA_OF(type)                                                                          \
  if constexpr (kTokens == 8) KEEL_WGMMA_SHARED(8, type, KEEL_N4, KEEL_D4(0), 4, 5, 6);              \
  if constexpr (kTokens == 16) KEEL_WGMMA_SHARED(16, type, KEEL_N8, KEEL_D8(0), 8, 9, 10);           \
  if constexpr (kTokens == 32) KEEL_WGMMA_SHARED(32, type, KEEL_N16, KEEL_D16(0), 16, 17, 18);       \
  if constexpr (kTokens == 64) KEEL_WGMMA_SHARED(64, type, KEEL_N32, KEEL_D32(0), 32, 33, 34)
#define KEEL_WGMMA_REGISTERS_OF(type)                                                                              \
  if constexpr (kTokens == 8) KEEL_WGMMA_REGISTERS(8, type, KEEL_N4, KEEL_D4(0), 4, 5, 6, 7, 8, 9);                \
  if constexpr (kTokens == 16) KEEL_WGMMA_REGISTERS(16, type, KEEL_N8, KEEL_D8(0), 8, 9, 10, 11, 12, 13);          \
  if constexpr (kTokens == 32) KEEL_WGMMA_REGISTERS(32, type, KEEL_N16, KEEL_D16(0), 16, 17, 18, 19, 20, 21);      \
  if constexpr (kTokens == 64) KEEL_WGMMA_REGISTERS(64, type, KEEL_N32, KEEL_D32(0), 32, 33, 34, 35, 36, 37)

template <class T, int kTokens>
__device__ inline void wgmma(float (&d)[kTokens / 2], u64 weights, u64 x, bool add) {
  if constexpr (sizeof(T) == 2 && __is_same(T, __half)) {
    KEEL_WGMMA_OF("f16");
  } else {
    KEEL_WGMMA_OF("bf16");
  }
}
template <class T, int kTokens>
__device__ inline void wgmma(float (&d)[kTokens / 2], const u32 (&a)[4], u64 x, bool add) {
  if constexpr (__is_same(T, __half)) {
    KEEL_WGMMA_REGISTERS_OF("f16");
  } else {
    KEEL_WGMMA_REGISTERS_OF("bf16");
  }
}

}  // namespace keel::cuda::ptx
