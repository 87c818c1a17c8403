// What top_k, top_p and the draw ask of a row.
#pragma once

#include "kernels/sample/sample_cuda_cluster.cuh"

namespace keel::cuda {

class RowPart : public RowCluster {
 public:
  using RowCluster::RowCluster;

  // Shrinks `kept` to its `count` likeliest tokens.
  __device__ void keep_count(Kept& kept, float largest, const Weight& weight, Sum count) {
    shrink<false>(kept, kept.least, largest, weight, [&](Sum) { return count; });
  }

  // Shrinks `kept`, of at most `most` tokens, to the fewest, likeliest first, that have `share` of the weight of all of them.
  __device__ void keep_share(Kept& kept, float largest, const Weight& weight, double share, int most) {
    const auto target = [&](Sum all) { return max(Sum{1}, static_cast<Sum>(ceil(share * static_cast<double>(all)))); };
    if (most <= kMostListed) {  // so few that they are listed at once
      if (threadIdx.x == 0) shared_.own_count = 0;
      cg::this_cluster().sync();  // the others have read the last lists
      list_all([&](float logit, int id) { return kept.has(logit, id); });
      all_listed();
      kept = listed_threshold(0, weight, target);
      return;
    }
    // Tokens of less than an even part of what may go have, all together, no more than that: they count in the sum alone.
    float rough = 0;
    each([&](float logit, int id) { rough += kept.has(logit, id) ? weight.rough(logit) : 0; });
    constexpr float kUnit = 1 << 24;
    const Sum total = reduce(static_cast<Sum>(rough * kUnit), [](Sum a, Sum b) { return a + b; });
    const float even = weight.logit_of((1 - share) * 0.98 * static_cast<double>(total) / kUnit / most);
    shrink<true>(kept, fmaxf(kept.least, even), largest, weight, target);
  }

  // Stores the id at which the running weight of the kept tokens, in id order, passes total · unit, unit the draw in [0, 1) of
  // 64 bits. weight(logits): of several tokens together, NaN for none.
  template <class DrawnWeight>
  __device__ void draw(const Kept& kept, const DrawnWeight& weight, std::uint64_t unit, std::int32_t* token) {
    // A warp sums a run of ids; the kept ones, often few, are packed, so that all lanes have weights to compute.
    constexpr int kStep = kBatch * kWarp;
    const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
    const int run = (count_ + kThreads * kBatch - 1) / (kThreads * kBatch) * kStep;
    const int begin = warp * run, end = min(begin + run, count_);
    float* const pending = shared_.pending[warp];
    int waiting = 0;
    Sum mine = 0;
    const auto add_pending = [&] {
      float logits[kBatch];
#pragma unroll
      for (int k = 0; k < kBatch; ++k) logits[k] = k * kWarp + lane < waiting ? pending[k * kWarp + lane] : NAN;
      mine += weight(logits);
    };
#pragma unroll 1
    for (int base = begin; base < end; base += kStep) {
      float logits[kBatch];
      bool has[kBatch];
#pragma unroll
      for (int k = 0; k < kBatch; ++k) {
        const int i = base + k * kWarp + lane;
        logits[k] = i < end ? logits_[i] : NAN;
        has[k] = kept.has(logits[k], first_id_ + i);
      }
#pragma unroll
      for (int k = 0; k < kBatch; ++k) {
        const unsigned having = __ballot_sync(~0u, has[k]);
        if (has[k]) pending[waiting + __popc(having & ((1u << lane) - 1))] = logits[k];
        waiting += __popc(having);
      }
      if (waiting < kStep) continue;
      __syncwarp();
      add_pending();
      waiting -= kStep;
      float next[kBatch];
#pragma unroll
      for (int k = 0; k < kBatch; ++k) next[k] = pending[kStep + k * kWarp + lane];
      __syncwarp();
#pragma unroll
      for (int k = 0; k < kBatch; ++k) {
        if (k * kWarp + lane < waiting) pending[k * kWarp + lane] = next[k];
      }
    }
    __syncwarp();
    if (waiting > 0) add_pending();
    for (int offset = kWarp / 2; offset > 0; offset /= 2) mine += __shfl_xor_sync(~0u, mine, offset);
    if (lane == 0) shared_.warp_sums[warp] = mine;
    __syncthreads();
    Sum block_total = 0;
    for (int i = 0; i < kWarps; ++i) block_total += shared_.warp_sums[i];
    const Place place = exchange_sums(block_total);
    const Sum passed = __umul64hi(unit, place.total);
    if (passed < place.before || passed >= place.before + block_total) return;

    // This block has the id, in the run of some warp, which its threads share, then one thread's share, until that is one token.
    Sum running = place.before;
    int found = 0;
    while (running + shared_.warp_sums[found] <= passed) running += shared_.warp_sums[found++];
    int from = found * run, to = min(from + run, count_);
#pragma unroll 1
    while (to - from > 1) {
      const int share = (to - from + kThreads - 1) / kThreads;
      const int first = min(from + static_cast<int>(threadIdx.x) * share, to), last = min(first + share, to);
      Sum own = 0, all;
#pragma unroll 1
      for (int i = first; i < last; i += kBatch) {
        float logits[kBatch];
#pragma unroll
        for (int k = 0; k < kBatch; ++k) {
          logits[k] = i + k < last ? logits_[i + k] : NAN;
          if (!kept.has(logits[k], first_id_ + i + k)) logits[k] = NAN;
        }
        own += weight(logits);
      }
      const Sum before = running + block_before(own, all);
      if (before <= passed && passed < before + own) {
        shared_.found = first;
        shared_.before = before;
      }
      __syncthreads();
      from = shared_.found;
      to = min(from + share, to);
      running = shared_.before;
    }
    if (threadIdx.x == 0) *token = first_id_ + from;
  }

 private:
  // Shrinks `kept` to the fewest tokens, likeliest first, whose measures sum to `target(sum of all of them)` or more: their
  // weights, or 1 each. They are known to be no less likely than `low`.
  template <bool kWeighted, class Target>
  __device__ void shrink(Kept& kept, float low, float largest, const Weight& weight, const Target& target) {
    const auto measure = [&](float logit) {
      if constexpr (kWeighted) return weight(logit);
      return Sum{1};
    };
    float high = largest;
    Sum wanted = 0, before = 0;  // before: of the tokens above `high`
    do {
      const float scale = (kBins - 1) / (high - low);
      const auto in_play = [&](float logit, int id) { return (logit >= low) & (logit <= high) & kept.has(logit, id); };
      // Infinite scales (neighbours among the smallest numbers) and 0 · infinity = NaN, which converts to 0, are in order.
      const auto bin_of = [&](float logit) { return max(0, min(static_cast<int>((high - logit) * scale), kBins - 1)); };
      for (int i = threadIdx.x; i < kLimbs * kBins; i += kThreads) (&shared_.bins[0][0])[i] = 0;
      if (threadIdx.x == 0) shared_.own_count = 0;
      __syncthreads();
      if constexpr (kWeighted) {
        const Sum below = add_weights(
            weight, in_play, [&](float logit, int id) { return (logit < low) & kept.has(logit, id) & (wanted == 0); }, bin_of);
        if (wanted == 0) add_weight_of_warp(kBins - 1, below);
      } else {
        each([&](float logit, int id) { add_where(in_play(logit, id), &shared_.bins[0][bin_of(logit)], 1); });
      }
      __syncthreads();
      offer_groups<kWeighted>();
      if (threadIdx.x < kWarp) find_bin<kWeighted>(wanted, before, target);
      __syncthreads();
      const int bin = shared_.bin;
      if (bin < 0) {                // all are kept
        cg::this_cluster().sync();  // the others have read the groups too
        return;
      }
      wanted = shared_.wanted;
      before = shared_.before;

      const auto in_bin = [&](float logit, int id) { return in_play(logit, id) & (bin_of(logit) == bin); };
      list_all(in_bin);
      if (all_listed()) {
        kept = listed_threshold(wanted - before, measure, target);
        return;
      }
      float top = -INFINITY, bottom = INFINITY;  // of this thread's tokens in the bin
      each([&](float logit, int id) {
        if (!in_bin(logit, id)) return;
        top = fmaxf(top, logit);
        bottom = fminf(bottom, logit);
      });
      high = rank_logit(reduce(rank(top, 0), larger));
      low = rank_logit(~reduce(~rank(bottom, 0), larger));
    } while (low < high);
    keep_ties(kept, high, wanted - before, measure(high));
  }

  // ---- histogram ----

  // Without a branch, which would keep a thread's tokens apart.
  __device__ static void add_where(bool condition, unsigned* to, unsigned x) {
    asm volatile("{ .reg .pred p; setp.ne.s32 p, %2, 0; @p red.shared.add.u32 [%0], %1; }"
                 ::"r"(static_cast<unsigned>(__cvta_generic_to_shared(to))), "r"(x), "r"(static_cast<int>(condition)) : "memory");
  }
  __device__ void add_weight(int bin, Sum weight) {
    const unsigned limbs[kLimbs] = {static_cast<unsigned>(weight) & 0xffff, static_cast<unsigned>(weight) >> 16, static_cast<unsigned>(weight >> 32)};
#pragma unroll
    for (int i = 0; i < kLimbs; ++i) add_where(limbs[i] != 0, &shared_.bins[i][bin], limbs[i]);
  }
  // Adds the weights of tokens in play to their bins; returns the sum of those of this thread below.
  template <class InPlay, class Below, class BinOf>
  __device__ Sum add_weights(const Weight& weight, const InPlay& in_play, const Below& below, const BinOf& bin_of) {
    Sum sum_below = 0;
    each_batch([&](const float(&logits)[kBatch], int id) {
      bool in[kBatch], under[kBatch], any = false;
#pragma unroll
      for (int k = 0; k < kBatch; ++k) {
        in[k] = in_play(logits[k], id + k);
        under[k] = below(logits[k], id + k);
        any |= in[k] | under[k];
      }
      if (!any) return;
      Sum weights[kBatch];
      weight.many(logits, weights);
#pragma unroll
      for (int k = 0; k < kBatch; ++k) {
        add_weight(bin_of(logits[k]), in[k] ? weights[k] : 0);
        sum_below += under[k] ? weights[k] : 0;
      }
    });
    return sum_below;
  }
  __device__ void add_weight_of_warp(int bin, Sum weight) {
    for (int offset = kWarp / 2; offset > 0; offset /= 2) weight += __shfl_xor_sync(~0u, weight, offset);
    if (threadIdx.x % kWarp == 0) add_weight(bin, weight);
  }
  template <bool kWeighted>
  __device__ Sum bin_sum(const unsigned (&bins)[kLimbs][kBins], int bin) const {
    Sum sum = bins[0][bin];
    if constexpr (kWeighted) sum += (static_cast<Sum>(bins[1][bin]) << kLimbBits) + (static_cast<Sum>(bins[2][bin]) << 2 * kLimbBits);
    return sum;
  }

  // Tells all blocks this one's groups of bins; all have told theirs when it returns.
  template <bool kWeighted>
  __device__ void offer_groups() {
    constexpr int kThreadBins = kBins / kThreads, kThreadsAGroup = kGroupBins / kThreadBins;
    static_assert(kThreadBins == 4);
    Sum sum = 0;
#pragma unroll
    for (int limb = 0; limb < (kWeighted ? kLimbs : 1); ++limb) {
      const uint4 four = reinterpret_cast<const uint4*>(shared_.bins[limb])[threadIdx.x];
      sum += (Sum{four.x} + four.y + four.z + four.w) << limb * kLimbBits;
    }
    for (int offset = kThreadsAGroup / 2; offset > 0; offset /= 2) sum += __shfl_xor_sync(~0u, sum, offset);
    for (int block = threadIdx.x % kThreadsAGroup; block < kBlocks; block += kThreadsAGroup) {
      of_block(shared_.groups[own_][threadIdx.x / kThreadsAGroup], block) = sum;
    }
    cg::this_cluster().sync();
  }

  // By one warp: the bin in which `before` and the running sum of the bins reach `wanted`, and the sum before it; -1 if they
  // do not. A `wanted` of 0 asks `target` first.
  template <bool kWeighted, class Target>
  __device__ void find_bin(Sum wanted, Sum before, const Target& target) {
    static_assert(kGroups == 2 * kWarp);
    const int lane = threadIdx.x;
    Sum two[2] = {};
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
      two[0] += shared_.groups[block][2 * lane];
      two[1] += shared_.groups[block][2 * lane + 1];
    }
    Sum running = before + two[0] + two[1];
    for (int offset = 1; offset < kWarp; offset *= 2) {
      const Sum lower = __shfl_up_sync(~0u, running - before, offset);
      if (lane >= offset) running += lower;
    }
    const Sum total = __shfl_sync(~0u, running, kWarp - 1) - before;
    if (wanted == 0) wanted = target(total);
    const Sum first = running - two[1];  // before the lane's second group
    const bool crosses = first - two[0] < wanted && wanted <= running;
    const unsigned crossing = __ballot_sync(~0u, crosses);
    if (crossing == 0) {
      if (lane == 0) shared_.bin = -1;
      return;
    }
    const bool is_second = wanted > first;
    const int group = __shfl_sync(~0u, 2 * lane + is_second, __ffs(crossing) - 1);
    running = __shfl_sync(~0u, is_second ? first : first - two[0], __ffs(crossing) - 1);

    // The group's bins, from all blocks: every second block in each half of the warp.
    const int bin = group * kGroupBins + lane % kGroupBins;
    Sum sum = 0;
#pragma unroll
    for (int pair = 0; pair < kBlocks; pair += 2) {
      const int block = pair + lane / kGroupBins;
      if (block < kBlocks) sum += bin_sum<kWeighted>(of_block(shared_.bins, block), bin);
    }
    sum += __shfl_xor_sync(~0u, sum, kGroupBins);
    Sum up_to = sum;
    for (int offset = 1; offset < kGroupBins; offset *= 2) {
      const Sum lower = __shfl_up_sync(~0u, up_to, offset, kGroupBins);
      if (lane % kGroupBins >= offset) up_to += lower;
    }
    up_to += running;
    if (lane < kGroupBins && up_to - sum < wanted && wanted <= up_to) {
      shared_.bin = bin;
      shared_.before = up_to - sum;
      shared_.wanted = wanted;
    }
  }

  // ---- the crossing's bin ----

  template <class IsListed>
  __device__ void list_all(const IsListed& is_listed) {
    each_batch([&](const float(&logits)[kBatch], int id) {
      unsigned listed = 0;
#pragma unroll
      for (int k = 0; k < kBatch; ++k) listed |= static_cast<unsigned>(is_listed(logits[k], id + k)) << k;
      if (listed == 0) return;
#pragma unroll
      for (int k = 0; k < kBatch; ++k) {
        if (listed >> k & 1) list(rank(logits[k], id + k));
      }
    });
  }
  __device__ void list(Sum rank) {
    if (*static_cast<volatile int*>(&shared_.own_count) > kMostListed) return;
    const int at = atomicAdd(&shared_.own_count, 1);
    if (at >= kMostListed) return;
#pragma unroll 1
    for (int block = 0; block < kBlocks; ++block) of_block(shared_.listed[own_][at], block) = rank;
  }
  // Whether every block's tokens fitted its list; all lists are here when it returns.
  __device__ bool all_listed() {
    __syncthreads();
    if (threadIdx.x < kBlocks) of_block(shared_.listed_count[own_], threadIdx.x) = shared_.own_count;
    cg::this_cluster().sync();
    bool fit = true;
    for (const int count : shared_.listed_count) fit = fit && count <= kMostListed;
    return fit;
  }
  // Which of the listed tokens' measures, likeliest first, bring the sum to `wanted`, or, if that is 0, to `target(sum of all)`;
  // all blocks find the same.
  template <class Measure, class Target>
  __device__ Kept listed_threshold(Sum wanted, const Measure& measure, const Target& target) {
    int count = 0;
    for (int block = 0; block < kBlocks; ++block) {
      const int listed = shared_.listed_count[block];
      if (threadIdx.x < listed) {
        const Sum rank = shared_.listed[block][threadIdx.x];
        shared_.ranked[count + threadIdx.x] = {rank, measure(rank_logit(rank))};
      }
      count += listed;
    }
    __syncthreads();
    for (int at = threadIdx.x; at < count; at += kThreads) {
      const ulonglong2 own = shared_.ranked[at];
      Sum likelier = 0, all = 0;
#pragma unroll 8
      for (int i = 0; i < count; ++i) {
        const ulonglong2 other = shared_.ranked[i];
        likelier += other.x > own.x ? other.y : 0;
        all += other.y;
      }
      const Sum target_sum = wanted == 0 ? target(all) : wanted;
      if (likelier < target_sum && target_sum <= likelier + own.y) shared_.threshold = own.x;
    }
    __syncthreads();
    return {rank_logit(shared_.threshold), rank_id(shared_.threshold)};
  }

  // More tokens than can be listed have the threshold's logit, `measure` each: the smaller ids among them are kept.
  __device__ void keep_ties(Kept& kept, float logit, Sum wanted, Sum measure) {
    const auto tied = [&](float other, int id) { return other == logit && kept.has(other, id); };
    Sum mine = 0, block_total;
    each([&](float other, int id) { mine += tied(other, id); });
    const Sum before = block_before(mine, block_total);
    const Place place = exchange_sums(block_total);
    const Sum share = (wanted + measure - 1) / measure;
    int last_id = logit == kept.least ? kept.last_id : INT_MAX;
    if (share < place.total) {
      Sum found = 0, seen = place.before + before;
      each([&](float other, int id) {
        if (tied(other, id) && ++seen == share) found = static_cast<Sum>(id) + 1;
      });
      last_id = static_cast<int>(reduce(found, larger) - 1);
    }
    kept = {logit, last_id};
  }

};

}  // namespace keel::cuda
