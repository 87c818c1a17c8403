#include <cooperative_groups.h>

#include <bit>
#include <cfloat>
#include <climits>

#include "base/random.h"
#include "device/cuda.h"
#include "kernels/sample/sample_cuda.h"

// A cluster of blocks shares a row: each keeps its part of the logits in shared memory and reads the others' sums there.
// Nothing is sorted. The tokens that top_k and top_p keep are a prefix of the order (logit descending, id ascending), so a
// threshold names them; a histogram over the logits finds where the running count or weight crosses its target, and is
// repeated within the bin of the crossing until that holds one logit.
//
// Weights are integers, exp((logit - largest) / temperature) · 2^45 rounded: sums do not depend on the order of adding, so
// equal logits give equal tokens, and differ from exact ones by at most 2^-46 a token.

namespace keel::cuda {
namespace {

namespace cg = cooperative_groups;

constexpr int kBlocks = 8;  // of a cluster
constexpr int kThreads = 512;
constexpr int kWarp = 32;
constexpr int kWarps = kThreads / kWarp;
constexpr int kBins = 2048;
constexpr int kBinsAThread = kBins / kThreads;
constexpr double kUnitWeight = 0x1p45;
constexpr double kReach = 40;  // e^-40 < 2^-46: less likely tokens' weights round to 0

using Sum = unsigned long long;

struct Shared {
  Sum bins[kBins];
  Sum warp_sums[kWarps];
  Sum offers[2][kWarps];  // [parity of the exchange]; what this block offers the cluster, [0] after reduction
  Sum before;             // of the found bin
  int bin;
};

// Tokens likelier than `least`, and those as likely up to `last_id`.
struct Kept {
  float least;
  int last_id;
  __device__ bool has(float logit, int id) const { return logit > least || (logit == least && id <= last_id); }
};

// Orders like (logit, then the smaller id); NaN below everything; -0 as 0.
__device__ Sum rank(float logit, int id) {
  if (logit != logit) return 0;
  const auto raw = __float_as_uint(logit + 0.0f);
  const std::uint32_t ordered = raw & 0x80000000u ? ~raw : raw | 0x80000000u;
  return static_cast<Sum>(ordered) << 32 | (0xffffffffu - static_cast<std::uint32_t>(id));
}
__device__ float rank_logit(Sum rank) {
  const auto ordered = static_cast<std::uint32_t>(rank >> 32);
  return rank == 0 ? -INFINITY : __uint_as_float(ordered & 0x80000000u ? ordered & 0x7fffffffu : ~ordered);
}
__device__ int rank_id(Sum rank) { return static_cast<int>(0xffffffffu - static_cast<std::uint32_t>(rank)); }

// This block's part of a row, and what the cluster does together. Every thread of the cluster makes every call.
class RowPart {
 public:
  __device__ RowPart(Shared& shared, float* logits, int first_id, int count)
      : shared_(shared), logits_(logits), first_id_(first_id) {
    const int share = (count + kThreads - 1) / kThreads | 1;  // odd: neighbours' words are on different banks
    begin_ = min(static_cast<int>(threadIdx.x) * share, count);
    end_ = min(begin_ + share, count);
  }

  // Copies the part in; the rank of the row's largest logit.
  __device__ Sum load(const float* from, int count, bool aligned) {
    Sum best = 0;
    if (aligned) {
      for (int i = threadIdx.x * 4; i < count; i += kThreads * 4) {
        const float4 four = *reinterpret_cast<const float4*>(from + i);
        *reinterpret_cast<float4*>(logits_ + i) = four;
        best = max(max(best, rank(four.x, first_id_ + i)), rank(four.y, first_id_ + i + 1));
        best = max(max(best, rank(four.z, first_id_ + i + 2)), rank(four.w, first_id_ + i + 3));
      }
    } else {
      for (int i = threadIdx.x; i < count; i += kThreads) {
        logits_[i] = from[i];
        best = max(best, rank(from[i], first_id_ + i));
      }
    }
    return reduce(best, [](Sum a, Sum b) { return max(a, b); });
  }

  // use(logit, id) for this thread's tokens, in id order.
  template <class Use>
  __device__ void each(const Use& use) const {
#pragma unroll 1  // most uses hold an exponential: unrolled, they spill
    for (int i = begin_; i < end_; ++i) use(logits_[i], first_id_ + i);
  }

  // Over the cluster; `combine` is associative and commutative.
  template <class Combine>
  __device__ Sum reduce(Sum mine, const Combine& combine) {
    for (int offset = kWarp / 2; offset > 0; offset /= 2) mine = combine(mine, __shfl_xor_sync(~0u, mine, offset));
    Sum* offers = shared_.offers[parity_];
    if (threadIdx.x % kWarp == 0) offers[threadIdx.x / kWarp] = mine;
    __syncthreads();
    if (threadIdx.x < kWarp) {
      mine = offers[threadIdx.x % kWarps];
      for (int offset = kWarps / 2; offset > 0; offset /= 2) mine = combine(mine, __shfl_xor_sync(~0u, mine, offset));
      if (threadIdx.x == 0) offers[0] = mine;
    }
    Sum all = exchanged(0);
    for (int peer = 1; peer < kBlocks; ++peer) all = combine(all, peer_offer(peer));
    parity_ ^= 1;
    return all;
  }

  struct Place {
    Sum before;  // sum of the tokens before this thread's, in id order
    Sum total;   // of the row
  };
  __device__ Place place(Sum mine) {
    Sum block_total;
    Place found{.before = block_before(mine, block_total), .total = 0};
    if (threadIdx.x == 0) shared_.offers[parity_][0] = block_total;
    exchanged(0);
    const unsigned own = cg::this_cluster().block_rank();
    for (unsigned peer = 0; peer < kBlocks; ++peer) {
      const Sum offer = peer_offer(peer);
      if (peer < own) found.before += offer;
      found.total += offer;
    }
    parity_ ^= 1;
    return found;
  }

  // Shrinks `kept` to the fewest tokens, likeliest first, whose measures sum to `target(sum of all of them)` or more.
  template <class Measure, class Target>
  __device__ void shrink(Kept& kept, float largest, const Measure& measure, const Target& target) {
    double low = kept.least, high = largest;
    Sum wanted = 0, before = 0;  // before: of the tokens above `high`
    do {
      const double scale = low < high ? (kBins - 1) / (high - low) : 0;
      const auto in_play = [&](float logit, int id) { return logit >= low && logit <= high && kept.has(logit, id); };
      const auto bin_of = [&](float logit) { return static_cast<int>((high - logit) * scale); };
      for (int i = threadIdx.x; i < kBins; i += kThreads) shared_.bins[i] = 0;
      __syncthreads();
      each([&](float logit, int id) {
        if (in_play(logit, id)) atomicAdd(&shared_.bins[bin_of(logit)], measure(logit));
      });
      cg::this_cluster().sync();
      Sum sums[kBinsAThread] = {}, own = 0, total;
#pragma unroll 2  // registers
      for (int peer = 0; peer < kBlocks; ++peer) {
        const Sum* bins = cg::this_cluster().map_shared_rank(shared_.bins, peer) + threadIdx.x * kBinsAThread;
        for (int i = 0; i < kBinsAThread; ++i) sums[i] += bins[i];
      }
      for (const Sum sum : sums) own += sum;
      Sum running = block_before(own, total);
      if (wanted == 0) wanted = target(total);
      if (wanted > before + total) {  // all are kept
        cg::this_cluster().sync();    // the others have read the bins too
        return;
      }
      running += before;
      for (int i = 0; i < kBinsAThread; ++i) {
        if (running < wanted && wanted <= running + sums[i]) shared_.bin = threadIdx.x * kBinsAThread + i, shared_.before = running;
        running += sums[i];
      }
      __syncthreads();
      const int bin = shared_.bin;
      before = shared_.before;
      // The logits that the bin holds. Both ends as ranks of id 0; the lower one complemented, to be a maximum too.
      Sum top = 0, bottom = 0;
      each([&](float logit, int id) {
        if (!in_play(logit, id) || bin_of(logit) != bin) return;
        top = max(top, rank(logit, 0));
        bottom = max(bottom, ~rank(logit, 0));
      });
      const auto larger = [](Sum a, Sum b) { return max(a, b); };
      high = rank_logit(reduce(top, larger));
      low = rank_logit(~reduce(bottom, larger));
    } while (low < high);

    const auto tied = [&](float logit, int id) { return logit == high && kept.has(logit, id); };
    Sum mine = 0;
    each([&](float logit, int id) { mine += tied(logit, id); });
    const auto [ties_before, ties] = place(mine);
    const Sum each_tie = measure(static_cast<float>(high));
    const Sum share = (wanted - before + each_tie - 1) / each_tie;
    int last_id = high == kept.least ? kept.last_id : INT_MAX;
    if (share < ties) {
      Sum found = 0, seen = ties_before;
      each([&](float logit, int id) {
        if (tied(logit, id) && ++seen == share) found = static_cast<Sum>(id) + 1;
      });
      last_id = static_cast<int>(reduce(found, [](Sum a, Sum b) { return max(a, b); }) - 1);
    }
    kept = {static_cast<float>(high), last_id};
  }

 private:
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

  // Two alternating sets of offers: a set is written again only after the exchange between, which all join when they have read it.
  __device__ Sum exchanged(int peer) {
    cg::this_cluster().sync();
    return peer_offer(peer);
  }
  __device__ Sum peer_offer(int peer) { return *cg::this_cluster().map_shared_rank(shared_.offers[parity_], peer); }

  Shared& shared_;
  float* logits_;
  int first_id_;
  int begin_, end_;  // of this thread
  int parity_ = 0;
};

__global__ void __cluster_dims__(kBlocks, 1, 1) __launch_bounds__(kThreads, 2)
    sample_kernel(const float* logits, int vocabulary, int part, const RowSampling* rows_sampling, std::int32_t* tokens) {
  extern __shared__ __align__(16) std::byte memory[];
  Shared& shared = *reinterpret_cast<Shared*>(memory);
  const std::int64_t row = blockIdx.x / kBlocks;
  const int first_id = min(static_cast<int>(cg::this_cluster().block_rank()) * part, vocabulary);
  const int count = min(part, vocabulary - first_id);
  const RowSampling sampling = rows_sampling[row];

  RowPart tokens_here(shared, reinterpret_cast<float*>(memory + sizeof(Shared)), first_id, count);
  const Sum best = tokens_here.load(logits + row * vocabulary + first_id, count, vocabulary % 4 == 0);
  const float largest = rank_logit(best);
  int chosen = isfinite(largest) ? rank_id(best) : -1;
  if (chosen >= 0 && sampling.temperature > 0) {
    const double inverse_temperature = 1 / sampling.temperature;
    const auto exact_weight = [&](float logit) { return exp((logit - static_cast<double>(largest)) * inverse_temperature); };
    const auto weight = [&](float logit) { return static_cast<Sum>(__double2ull_rn(exact_weight(logit) * kUnitWeight)); };
    const double reach = largest - kReach * sampling.temperature;
    Kept kept{static_cast<float>(fmax(reach, -static_cast<double>(FLT_MAX))), INT_MAX};
    if (sampling.top_k > 0 && sampling.top_k < vocabulary) {
      tokens_here.shrink(kept, largest, [](float) { return Sum{1}; }, [&](Sum) { return static_cast<Sum>(sampling.top_k); });
    }
    if (sampling.top_p < 1) {
      tokens_here.shrink(kept, largest, weight, [&](Sum total) {
        return max(Sum{1}, static_cast<Sum>(ceil(sampling.top_p * static_cast<double>(total))));
      });
    }
    const auto drawn_weight = [&](float logit, int id) {
      if (!kept.has(logit, id)) return Sum{0};
      return sampling.min_p > 0 && exact_weight(logit) < sampling.min_p ? Sum{0} : weight(logit);
    };
    Sum mine = 0;
    tokens_here.each([&](float logit, int id) { mine += drawn_weight(logit, id); });
    const auto [before, total] = tokens_here.place(mine);
    // The first token whose running weight passes total · unit, unit the draw in [0, 1) with 53 bits.
    const Sum passed = __umul64hi(random_u64(sampling.seed, sampling.draw) >> 11 << 11, total);
    if (before <= passed && passed < before + mine) {
      Sum running = before;
      bool open = true;
      tokens_here.each([&](float logit, int id) {
        if (!open) return;
        running += drawn_weight(logit, id);
        if (running > passed) tokens[row] = id, open = false;
      });
    }
  } else if (cg::this_cluster().block_rank() == 0 && threadIdx.x == 0) {
    tokens[row] = chosen;
  }
  cg::this_cluster().sync();  // others may still read this block's memory
}

// Tokens of a block, a multiple of 4 so that aligned rows have aligned parts.
int part_of(std::int64_t vocabulary) { return static_cast<int>((vocabulary + 4 * kBlocks - 1) / (4 * kBlocks) * 4); }

}  // namespace

std::int64_t sample_workspace(std::int64_t, std::int64_t) { return 0; }

void sample(cudaStream_t stream, const SampleArgs& args) {
  if (args.rows == 0) return;
  constexpr std::int64_t kMostShared = 227 << 10;
  constexpr std::int64_t kMostVocabulary = (kMostShared - static_cast<std::int64_t>(sizeof(Shared))) / 4 * kBlocks / 32 * 32;
  static_assert(kMostVocabulary < (1 << 19), "the sum of all weights fits 64 bits");
  if (args.vocabulary > kMostVocabulary) {
    throw Error("sampling on CUDA takes vocabularies of at most " + std::to_string(kMostVocabulary) + " tokens, found " +
                std::to_string(args.vocabulary));
  }
  const int part = part_of(args.vocabulary);
  const std::size_t shared_bytes = sizeof(Shared) + part * sizeof(float);
  check(cudaFuncSetAttribute(sample_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared_bytes)), "sample's shared memory");
  sample_kernel<<<static_cast<unsigned>(args.rows * kBlocks), kThreads, shared_bytes, stream>>>(
      args.logits, static_cast<int>(args.vocabulary), part, args.rows_sampling, args.tokens);
  check_launch("sample");
}

}  // namespace keel::cuda
