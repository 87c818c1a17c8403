#include "base/random.h"
#include "device/launch.cuh"
#include "kernels/sample/sample_cuda.h"
#include "kernels/sample/sample_cuda_row.cuh"

// A cluster of blocks shares a row, whose logits lie in its shared memory. Nothing is sorted. The tokens that top_k and top_p
// keep are a prefix of the order (logit descending, id ascending), so a threshold names them: a histogram over the logits finds
// the bin in which the running count or weight crosses its target, and that bin's few tokens are ranked against each other;
// where they are many, a finer histogram over the bin comes first.
//
// Weights are integers, exp((logit - largest) / temperature) · 2^45 rounded: sums do not depend on the order of adding, so
// equal logits give equal tokens, and differ from exact ones by little more than 2^-46 a token.

namespace keel::cuda {
namespace {

__global__ void __cluster_dims__(kBlocks, 1, 1) __launch_bounds__(kThreads, 2)
    sample_kernel(const float* logits, int vocabulary, int part, const RowSampling* rows_sampling, std::int32_t* tokens) {
  extern __shared__ __align__(16) std::byte memory[];
  const std::int64_t row = blockIdx.x / kBlocks;
  const int first_id = min(static_cast<int>(cg::this_cluster().block_rank()) * part, vocabulary);
  const int count = min(part, vocabulary - first_id);

  allow_next_kernel();  // before the wait: what follows reads only weights and tables ahead
  RowShared& shared = *reinterpret_cast<RowShared*>(memory);
  Weight::fill(shared.powers);
  RowPart tokens_here(shared, reinterpret_cast<float*>(memory + sizeof(RowShared)), first_id, count);
  wait_for_previous_kernel();
  const RowSampling sampling = rows_sampling[row];
  const Sum best = tokens_here.load(logits + row * vocabulary + first_id, vocabulary % 4 == 0);
  const float largest = rank_logit(best);
  const bool is_greedy = !(sampling.temperature > 0);
  if (!isfinite(largest) || is_greedy) {
    if (cg::this_cluster().block_rank() == 0 && threadIdx.x == 0) tokens[row] = isfinite(largest) ? rank_id(best) : -1;
    return;
  }
  const double temperature = fmin(fmax(sampling.temperature, 1e-30), 1e30);  // so that no product below overflows
  const Weight weight(shared.powers, largest, temperature);
  Kept kept{weight.logit_of(kLeastPart), INT_MAX};
  int most = vocabulary;
  if (sampling.top_k > 0 && sampling.top_k < vocabulary) {
    most = sampling.top_k;
    tokens_here.keep_count(kept, largest, weight, most);
  }
  if (sampling.top_p < 1) tokens_here.keep_share(kept, largest, weight, sampling.top_p, most);
  const auto least = static_cast<Sum>(ceil(ldexp(sampling.min_p, kUnitBits)));
  if (least > 2) {  // spares most tokens their weights: those below weigh less, whatever the rounding
    const float floor = weight.logit_of(ldexp(static_cast<double>(least - 2), -kUnitBits));
    if (floor > kept.least) kept = {floor, INT_MAX};
  }
  const auto drawn_weight = [&]<int kCount>(const float(&logits)[kCount]) {
    Sum weights[kCount], sum = 0;
    weight.many(logits, weights);
    for (int k = 0; k < kCount; ++k) sum += logits[k] == logits[k] && weights[k] >= least ? weights[k] : 0;
    return sum;
  };
  tokens_here.draw(kept, drawn_weight, random_u64(sampling.seed, sampling.draw) >> 11 << 11, tokens + row);
}

// Tokens of a block, a multiple of 4 so that aligned rows have aligned parts.
int part_of(std::int64_t vocabulary) { return static_cast<int>((vocabulary + 4 * kBlocks - 1) / (4 * kBlocks) * 4); }

}  // namespace

void sample(cudaStream_t stream, const SampleArgs& args) {
  if (args.rows == 0) return;
  constexpr std::int64_t kMostShared = 227 << 10;
  constexpr std::int64_t kMostVocabulary = (kMostShared - static_cast<std::int64_t>(sizeof(RowShared))) / 4 * kBlocks / 32 * 32;
  static_assert(kMostVocabulary < (1 << 19), "the sum of all weights fits 64 bits");
  static_assert(kMostVocabulary <= std::int64_t{kMostTokens} * kBlocks);
  if (args.vocabulary > kMostVocabulary) {
    throw Error("sampling on CUDA takes vocabularies of at most " + std::to_string(kMostVocabulary) + " tokens, found " +
                std::to_string(args.vocabulary));
  }
  const int part = part_of(args.vocabulary);
  const std::size_t shared_bytes = sizeof(RowShared) + part * sizeof(float);
  check(cudaFuncSetAttribute(sample_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared_bytes)), "sample's shared memory");
  launch("sample", sample_kernel, stream, static_cast<unsigned>(args.rows * kBlocks), kThreads, shared_bytes, Start::early,
         args.logits, static_cast<int>(args.vocabulary), part, args.rows_sampling, args.tokens);
}

}  // namespace keel::cuda
