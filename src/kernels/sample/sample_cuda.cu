#include <cooperative_groups.h>

#include <bit>
#include <cfloat>
#include <climits>

#include "base/random.h"
#include "device/launch.cuh"
#include "kernels/sample/sample_cuda.h"

// A cluster of blocks shares a row: each keeps its part of the logits in shared memory and reads the others' sums there.
// Nothing is sorted. The tokens that top_k and top_p keep are a prefix of the order (logit descending, id ascending), so a
// threshold names them: a histogram over the logits finds the bin in which the running count or weight crosses its target, and
// that bin's few tokens are ranked against each other; where they are many, a finer histogram over the bin comes first.
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
constexpr int kBins = 1024;
constexpr int kBinsAThread = kBins / kThreads;
constexpr int kUnitBits = 45;  // the likeliest token's weight is 2^45
constexpr double kReach = 40;  // e^-40 < 2^-46: less likely tokens' weights round to 0

using Sum = unsigned long long;

constexpr int kLimbs = 3;
constexpr int kLimbBits = 15;       // the shared memory adds 32 bits at a time: a weight is three numbers of 15 bits (the last of 16)
constexpr int kMostRanked = kThreads;

constexpr int kPowers = 64;

struct Shared {
  double powers[kPowers];        // 2^45 · 2^(i / 64)
  unsigned bins[kLimbs][kBins];  // counts (the first alone), or weights
  Sum list[kMostRanked];         // ranks of this block's tokens in the crossing's bin
  unsigned listed;               // past kMostRanked: more than fit
  Sum ranked[kMostRanked];       // all blocks' lists, and their measures
  Sum measures[kMostRanked];
  Sum warp_sums[kWarps];
  Sum offers[2][kWarps];  // [parity of the exchange]; what this block offers the cluster, [0] after reduction
  Sum before;             // of the found bin
  int bin;
  Sum threshold;          // rank of the last token kept
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
__device__ Sum larger(Sum a, Sum b) { return max(a, b); }
__device__ int rank_id(Sum rank) { return static_cast<int>(0xffffffffu - static_cast<std::uint32_t>(rank)); }

// exp((logit - largest) / temperature) · 2^45, to an integer. With y = the exponent in 64ths of a power of two, k its nearest
// integer: 2^(k / 64) from the table and k's upper bits, the rest e^(r · ln 2 / 64), |r| <= 1/2, by its series: r^6's term is
// below 2^-54. About half the double operations of exp(), which bound the sampler's time.
class Weight {
 public:
  __device__ Weight(const double* powers, float largest, double temperature)
      : powers_(powers), largest_(largest), scale_(kPowers * 1.4426950408889634 / temperature) {}

  __device__ Sum operator()(float logit) const {
    constexpr double kRounding = 0x1.8p52;  // added, it leaves the nearest integer in the low bits
    constexpr double c = 0.693147180559945309 / kPowers;
    const double y = fmax((logit - largest_) * scale_, -64.0 * kPowers);
    const double biased = y + kRounding;
    const double r = y - (biased - kRounding);
    const int k = __double2loint(biased);
    double series = fma(r, c * c * c * c * c / 120, c * c * c * c / 24);
    series = fma(series, r, c * c * c / 6);
    series = fma(series, r, c * c / 2);
    series = fma(series, r, c);
    series = fma(series, r, 1.0);
    const double product = series * powers_[k & (kPowers - 1)];
    const double weight = __hiloint2double(__double2hiint(product) + (k >> 6) * (1 << 20), __double2loint(product));
    return static_cast<Sum>(__double_as_longlong(weight + 0x1p52)) & ((Sum{1} << 52) - 1);
  }

 private:
  const double* powers_;
  double largest_, scale_;
};

// This block's part of a row, and what the cluster does together. Every thread of the cluster makes every call.
class RowPart {
 public:
  __device__ RowPart(Shared& shared, float* logits, int first_id, int count)
      : shared_(shared), logits_(logits), first_id_(first_id) {
    const int share = (count + kThreads - 1) / kThreads | 1;  // odd: neighbours' words are on different banks
    begin_ = min(static_cast<int>(threadIdx.x) * share, count);
    end_ = min(begin_ + share, count);
  }

  // Copies the part in; the rank of the row's largest logit, 0 where all are NaN or -infinity.
  __device__ Sum load(const float* from, int count, bool aligned) {
    float largest = -INFINITY;
    int largest_id = -1;
    const auto consider = [&](float logit, int i) {
      if (logit > largest) largest = logit, largest_id = first_id_ + i;
    };
    if (aligned) {
      constexpr int kBatch = 4;  // loads in flight
      for (int start = threadIdx.x * 4; start < count; start += kBatch * kThreads * 4) {
        float4 batch[kBatch];
#pragma unroll
        for (int k = 0; k < kBatch; ++k) {
          const int i = start + k * kThreads * 4;
          if (i < count) batch[k] = *reinterpret_cast<const float4*>(from + i);
        }
#pragma unroll
        for (int k = 0; k < kBatch; ++k) {
          const int i = start + k * kThreads * 4;
          if (i >= count) continue;
          *reinterpret_cast<float4*>(logits_ + i) = batch[k];
          consider(batch[k].x, i), consider(batch[k].y, i + 1), consider(batch[k].z, i + 2), consider(batch[k].w, i + 3);
        }
      }
    } else {
      for (int i = threadIdx.x; i < count; i += kThreads) {
        logits_[i] = from[i];
        consider(from[i], i);
      }
    }
    return reduce(largest_id < 0 ? 0 : rank(largest, largest_id), larger);
  }

  // use(logit, id) for this thread's tokens, in id order.
  template <int kUnroll = 1, class Use>  // 1 where `use` holds an exponential: unrolled, it spills
  __device__ void each(const Use& use) const {
#pragma unroll kUnroll
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
      __syncwarp();  // every lane has read its offer
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

  // Shrinks `kept` to the fewest tokens, likeliest first, whose measures sum to `target(sum of all of them)` or more: their
  // weights, or 1 each.
  template <bool kWeighted, class Target>
  __device__ void shrink(Kept& kept, float largest, const Weight& weight, const Target& target) {
    const auto measure = [&](float logit) {
      if constexpr (kWeighted) return weight(logit);
      return Sum{1};
    };
    float low = kept.least, high = largest;
    Sum wanted = 0, before = 0;  // before: of the tokens above `high`
    do {
      const float scale = (kBins - 1) / (high - low);
      const auto in_play = [&](float logit, int id) { return logit >= low && logit <= high && kept.has(logit, id); };
      // Infinite scales (neighbours among the smallest numbers) and 0 · infinity = NaN, which converts to 0, are in order.
      const auto bin_of = [&](float logit) { return min(static_cast<int>((high - logit) * scale), kBins - 1); };
      for (int i = threadIdx.x; i < kLimbs * kBins; i += kThreads) (&shared_.bins[0][0])[i] = 0;
      __syncthreads();
      each<kWeighted ? 1 : 4>([&](float logit, int id) {
        if (!in_play(logit, id)) return;
        const int bin = bin_of(logit);
        if constexpr (kWeighted) {
          const Sum full = weight(logit);
          const auto upper = static_cast<unsigned>(full >> kLimbBits);
          atomicAdd(&shared_.bins[0][bin], static_cast<unsigned>(full) & ((1u << kLimbBits) - 1));
          if (upper != 0) atomicAdd(&shared_.bins[1][bin], upper & ((1u << kLimbBits) - 1));
          if (upper >> kLimbBits != 0) atomicAdd(&shared_.bins[2][bin], upper >> kLimbBits);
        } else {
          atomicAdd(&shared_.bins[0][bin], 1u);
        }
      });
      cg::this_cluster().sync();
      if (threadIdx.x == 0) shared_.listed = 0;  // not before: the others may have been reading the last list

      Sum sums[kBinsAThread] = {}, own = 0, total;
#pragma unroll 2  // more would spill
      for (int peer = 0; peer < kBlocks; ++peer) {
        for (int limb = 0; limb < (kWeighted ? kLimbs : 1); ++limb) {
          const unsigned* bins = cg::this_cluster().map_shared_rank(shared_.bins[limb], peer) + threadIdx.x * kBinsAThread;
          for (int i = 0; i < kBinsAThread; ++i) sums[i] += static_cast<Sum>(bins[i]) << (limb * kLimbBits);
        }
      }
      for (const Sum sum : sums) own += sum;
      Sum running = before + block_before(own, total);
      if (wanted == 0) wanted = target(total);
      if (wanted > before + total) {  // all are kept
        cg::this_cluster().sync();    // the others have read the bins too
        return;
      }
      for (int i = 0; i < kBinsAThread; ++i) {
        if (running < wanted && wanted <= running + sums[i]) shared_.bin = threadIdx.x * kBinsAThread + i, shared_.before = running;
        running += sums[i];
      }
      __syncthreads();
      const int bin = shared_.bin;
      before = shared_.before;

      float top = -INFINITY, bottom = INFINITY;  // of this thread's tokens in the bin
      each<4>([&](float logit, int id) {
        if (!in_play(logit, id) || bin_of(logit) != bin) return;
        top = fmaxf(top, logit);
        bottom = fminf(bottom, logit);
        if (*static_cast<volatile unsigned*>(&shared_.listed) > kMostRanked) return;
        const unsigned at = atomicAdd(&shared_.listed, 1u);
        if (at < kMostRanked) shared_.list[at] = rank(logit, id);
      });
      cg::this_cluster().sync();
      if (gather_lists()) {
        kept = ranked_threshold(wanted - before, measure);
        return;
      }
      high = rank_logit(reduce(rank(top, 0), larger));
      low = rank_logit(~reduce(~rank(bottom, 0), larger));
    } while (low < high);

    // More tokens than can be ranked have the threshold's logit: the smaller ids among them are kept.
    const auto tied = [&](float logit, int id) { return logit == high && kept.has(logit, id); };
    Sum mine = 0;
    each([&](float logit, int id) { mine += tied(logit, id); });
    const auto [ties_before, ties] = place(mine);
    const Sum each_tie = measure(high);
    const Sum share = (wanted - before + each_tie - 1) / each_tie;
    int last_id = high == kept.least ? kept.last_id : INT_MAX;
    if (share < ties) {
      Sum found = 0, seen = ties_before;
      each([&](float logit, int id) {
        if (tied(logit, id) && ++seen == share) found = static_cast<Sum>(id) + 1;
      });
      last_id = static_cast<int>(reduce(found, larger) - 1);
    }
    kept = {high, last_id};
  }

 private:
  // Collects all blocks' lists in shared_.ranked, unless they hold more than fit; as far as ranked_ goes.
  __device__ bool gather_lists() {
    ranked_ = 0;
#pragma unroll 1
    for (int peer = 0; peer < kBlocks; ++peer) {
      const unsigned listed = *cg::this_cluster().map_shared_rank(&shared_.listed, peer);
      if (ranked_ + listed > kMostRanked) return false;
      if (threadIdx.x < listed) shared_.ranked[ranked_ + threadIdx.x] = cg::this_cluster().map_shared_rank(shared_.list, peer)[threadIdx.x];
      ranked_ += listed;
    }
    __syncthreads();
    return true;
  }

  // Which of the ranked tokens' measures, likeliest first, bring the sum to `wanted`; all blocks find the same.
  template <class Measure>
  __device__ Kept ranked_threshold(Sum wanted, const Measure& measure) {
    const bool active = threadIdx.x < ranked_;
    const Sum mine = active ? shared_.ranked[threadIdx.x] : 0;
    const Sum own = active ? measure(rank_logit(mine)) : 0;
    shared_.measures[threadIdx.x] = own;
    __syncthreads();
    Sum likelier = 0;
    for (unsigned i = 0; active && i < ranked_; ++i) likelier += shared_.ranked[i] > mine ? shared_.measures[i] : 0;
    if (active && likelier < wanted && wanted <= likelier + own) shared_.threshold = mine;
    __syncthreads();
    return {rank_logit(shared_.threshold), rank_id(shared_.threshold)};
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
  unsigned ranked_ = 0;
};

__global__ void __cluster_dims__(kBlocks, 1, 1) __launch_bounds__(kThreads, 2)
    sample_kernel(const float* logits, int vocabulary, int part, const RowSampling* rows_sampling, std::int32_t* tokens) {
  extern __shared__ __align__(16) std::byte memory[];
  Shared& shared = *reinterpret_cast<Shared*>(memory);
  const std::int64_t row = blockIdx.x / kBlocks;
  const int first_id = min(static_cast<int>(cg::this_cluster().block_rank()) * part, vocabulary);
  const int count = min(part, vocabulary - first_id);
  const RowSampling sampling = rows_sampling[row];

  allow_next_kernel();  // before the wait: what follows reads only weights and tables ahead
  if (threadIdx.x < kPowers) shared.powers[threadIdx.x] = ldexp(exp2(threadIdx.x / static_cast<double>(kPowers)), kUnitBits);
  RowPart tokens_here(shared, reinterpret_cast<float*>(memory + sizeof(Shared)), first_id, count);
  wait_for_previous_kernel();
  const Sum best = tokens_here.load(logits + row * vocabulary + first_id, count, vocabulary % 4 == 0);
  const float largest = rank_logit(best);
  int chosen = isfinite(largest) ? rank_id(best) : -1;
  if (chosen >= 0 && sampling.temperature > 0) {
    const double temperature = fmin(fmax(sampling.temperature, 1e-30), 1e30);  // so that no product below overflows
    const Weight weight(shared.powers, largest, temperature);
    const double reach = largest - kReach * temperature;
    Kept kept{static_cast<float>(fmax(reach, -static_cast<double>(FLT_MAX))), INT_MAX};
    if (sampling.top_k > 0 && sampling.top_k < vocabulary) {
      tokens_here.shrink<false>(kept, largest, weight, [&](Sum) { return static_cast<Sum>(sampling.top_k); });
    }
    if (sampling.top_p < 1) {
      tokens_here.shrink<true>(kept, largest, weight, [&](Sum total) {
        return max(Sum{1}, static_cast<Sum>(ceil(sampling.top_p * static_cast<double>(total))));
      });
    }
    const auto least = static_cast<Sum>(ceil(ldexp(sampling.min_p, kUnitBits)));
    const auto drawn_weight = [&](float logit, int id) {
      if (!kept.has(logit, id)) return Sum{0};
      const Sum whole = weight(logit);
      return whole < least ? Sum{0} : whole;
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
  launch("sample", sample_kernel, stream, static_cast<unsigned>(args.rows * kBlocks), kThreads, shared_bytes, Start::early,
         args.logits, static_cast<int>(args.vocabulary), part, args.rows_sampling, args.tokens);
}

}  // namespace keel::cuda
