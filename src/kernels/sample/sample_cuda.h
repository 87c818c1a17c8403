// One token a row from logits on CUDA: greedy, or temperature with top_k, top_p and min_p in the order and with the draws
// of engine/sampler.h: the same seed and draw give the CPU's token wherever the two devices' logits are equal.
// (Weights are integers of 2^-45 of the largest: a running sum within 2^-46 a token of its target may fall on the other side.)
// Requests that want penalties, biases or log-probabilities take the host's sampler instead.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "base/dtype.h"

namespace keel::cuda {

struct RowSampling {
  double temperature;   // 0 = greedy
  double top_p;         // 1 = all
  double min_p;         // 0 = all
  std::int32_t top_k;   // 0 = all
  std::uint64_t seed;
  std::uint64_t draw;   // index of the draw: output tokens so far
};

struct SampleArgs {
  const float* logits;        // [rows, vocabulary], f32, 16-byte aligned; at most some 360,000 tokens
  std::int64_t rows;
  std::int64_t vocabulary;
  const RowSampling* rows_sampling;  // device, [rows]
  std::int32_t* tokens;       // device, [rows]; -1 where the logits hold no finite maximum
};

void sample(cudaStream_t stream, const SampleArgs& args);

}  // namespace keel::cuda
