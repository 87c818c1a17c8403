// A row of logits in the shared memory of a cluster of blocks, and how the blocks tell each other of it.
//
// They store into each other's shared memory before a barrier of the cluster, after which each reads its own: a load from there
// would take longer than the barrier.
#pragma once

#include <cooperative_groups.h>

#include <climits>

#include "kernels/sample/sample_cuda_weight.cuh"

namespace keel::cuda {

namespace cg = cooperative_groups;

// Of a cluster. With eight, two a multiprocessor, an H200 has 30 rows in work together, as clusters do not cross its groups of
// multiprocessors; with seven 32.
inline constexpr int kBlocks = 7;
inline constexpr int kThreads = 256;  // few, with registers for several chains of double operations each
inline constexpr int kWarp = 32;
inline constexpr int kWarps = kThreads / kWarp;
inline constexpr int kBatch = 4;  // tokens of a thread in work together
inline constexpr int kBins = 1024;
inline constexpr int kGroupBins = 16;
inline constexpr int kGroups = kBins / kGroupBins;
inline constexpr int kLimbs = 3;  // the shared memory adds 32 bits at a time: a weight is three numbers of 16 bits
inline constexpr int kLimbBits = 16;
inline constexpr int kMostListed = 64;       // of a block
inline constexpr int kMostTokens = 1 << 16;  // of a block: a bin's sum of a limb fits 32 bits

struct alignas(16) RowShared {  // the logits follow
  double powers[Weight::kPowers];
  union {
    unsigned bins[kLimbs][kBins];  // counts (the first alone), or weights
    float pending[kWarps][2 * kBatch * kWarp];
  };
  // [block]: of each block of the cluster
  Sum groups[kBlocks][kGroups];      // sums of sixteen bins
  Sum listed[kBlocks][kMostListed];  // ranks of tokens in the crossing's bin
  int listed_count[kBlocks];         // past kMostListed: more than fit
  Sum offers[2][kBlocks];            // [parity of the exchange]
  int own_count;                     // of this block's listed tokens
  ulonglong2 ranked[kBlocks * kMostListed];  // all listed tokens' ranks and measures
  Sum warp_sums[kWarps];
  Sum wanted, before;  // what find_bin found
  int bin;
  Sum threshold;  // rank of the last token kept
  int found;      // of the row's ids, where the draw falls
};

__device__ inline Sum larger(Sum a, Sum b) { return max(a, b); }

// This block's part of a row. Every thread of the cluster makes every call.
class RowCluster {
 public:
  __device__ RowCluster(RowShared& shared, float* logits, int first_id, int count)
      : shared_(shared), logits_(logits), first_id_(first_id), count_(count) {
    const int share = (count + kThreads - 1) / kThreads | 1;  // odd: neighbours' words are on different banks
    begin_ = min(static_cast<int>(threadIdx.x) * share, count);
    end_ = min(begin_ + share, count);
    cg::cluster_group::barrier_arrive();  // all blocks must run before one stores into another; load() waits
  }

  // Copies the part in; the rank of the row's largest logit, 0 where all are NaN or -infinity.
  __device__ Sum load(const float* from, bool aligned) {
    float largest = -INFINITY;
    int largest_id = -1;
    const auto consider = [&](float logit, int i) {
      if (logit > largest) largest = logit, largest_id = first_id_ + i;
    };
    if (aligned) {
      constexpr int kBatch = 4;  // loads in flight
      for (int start = threadIdx.x * 4; start < count_; start += kBatch * kThreads * 4) {
        float4 batch[kBatch];
#pragma unroll
        for (int k = 0; k < kBatch; ++k) {
          const int i = start + k * kThreads * 4;
          if (i < count_) batch[k] = *reinterpret_cast<const float4*>(from + i);
        }
#pragma unroll
        for (int k = 0; k < kBatch; ++k) {
          const int i = start + k * kThreads * 4;
          if (i >= count_) continue;
          *reinterpret_cast<float4*>(logits_ + i) = batch[k];
          consider(batch[k].x, i), consider(batch[k].y, i + 1), consider(batch[k].z, i + 2), consider(batch[k].w, i + 3);
        }
      }
    } else {
      for (int i = threadIdx.x; i < count_; i += kThreads) {
        logits_[i] = from[i];
        consider(from[i], i);
      }
    }
    cg::cluster_group::barrier_wait();
    return reduce(largest_id < 0 ? 0 : rank(largest, largest_id), larger);
  }

 protected:
  struct Place {
    Sum before, total;  // of the blocks before this one, of all
  };

  // use(logits, id of the first) for this thread's tokens, in id order, kBatch a time; NaN past the last.
  template <class Use>
  __device__ void each_batch(const Use& use) const {
#pragma unroll 1
    for (int first = begin_; first < end_; first += kBatch) {
      float logits[kBatch];
#pragma unroll
      for (int k = 0; k < kBatch; ++k) logits[k] = first + k < end_ ? logits_[first + k] : NAN;
      use(logits, first_id_ + first);
    }
  }
  template <class Use>
  __device__ void each(const Use& use) const {
    each_batch([&](const float(&logits)[kBatch], int id) {
#pragma unroll
      for (int k = 0; k < kBatch; ++k) use(logits[k], id + k);
    });
  }

  template <class T>
  __device__ static T& of_block(T& mine, int block) {
    return *cg::this_cluster().map_shared_rank(&mine, block);
  }

  // Every block's offer; the first threads' `mine` is this block's. Two alternating sets: a set is written again only after the
  // exchange between, which all join when they have read it.
  __device__ const Sum* exchange(Sum mine) {
    Sum(&offers)[kBlocks] = shared_.offers[parity_];
    parity_ ^= 1;
    if (threadIdx.x < kBlocks) of_block(offers[own_], threadIdx.x) = mine;
    cg::this_cluster().sync();
    return offers;
  }
  __device__ Place exchange_sums(Sum mine) {
    const Sum* const offers = exchange(mine);
    Place place = {};
    for (int block = 0; block < kBlocks; ++block) {
      if (block < own_) place.before += offers[block];
      place.total += offers[block];
    }
    return place;
  }

  // Over the cluster; `combine` is associative and commutative.
  template <class Combine>
  __device__ Sum reduce(Sum mine, const Combine& combine) {
    for (int offset = kWarp / 2; offset > 0; offset /= 2) mine = combine(mine, __shfl_xor_sync(~0u, mine, offset));
    if (threadIdx.x % kWarp == 0) shared_.warp_sums[threadIdx.x / kWarp] = mine;
    __syncthreads();
    if (threadIdx.x < kWarp) {
      mine = shared_.warp_sums[threadIdx.x % kWarps];
      for (int offset = kWarps / 2; offset > 0; offset /= 2) mine = combine(mine, __shfl_xor_sync(~0u, mine, offset));
    }
    const Sum* const offers = exchange(mine);
    Sum all = offers[0];
    for (int block = 1; block < kBlocks; ++block) all = combine(all, offers[block]);
    return all;
  }

  // Sum of `mine` of the block's threads before this one, and of all.
  __device__ Sum block_before(Sum mine, Sum& total) {
    const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
    Sum running = mine;
    for (int offset = 1; offset < kWarp; offset *= 2) {
      const Sum lower = __shfl_up_sync(~0u, running, offset);
      if (lane >= offset) running += lower;
    }
    __syncthreads();  // the last call's sums have been read
    if (lane == kWarp - 1) shared_.warp_sums[warp] = running;
    __syncthreads();
    Sum before = running - mine;
    total = 0;
#pragma unroll 4  // registers
    for (int i = 0; i < kWarps; ++i) {
      if (i < warp) before += shared_.warp_sums[i];
      total += shared_.warp_sums[i];
    }
    return before;
  }

  RowShared& shared_;
  float* logits_;
  int first_id_, count_;
  int begin_, end_;  // of this thread
  int own_ = static_cast<int>(cg::this_cluster().block_rank());
  int parity_ = 0;
};

}  // namespace keel::cuda
