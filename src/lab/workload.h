// Requests to measure with: random prompts, and when each is sent. All of it follows from the seed.
#pragma once

#include <cstdint>
#include <vector>

#include "text/tokenizer.h"

namespace keel {

struct RandomWorkload {
  std::int64_t prompts, input_tokens, output_tokens;
  double range_ratio = 0;  // r: each length is uniform in [length · (1 − r), length · (1 + r)], at least 1
  std::int64_t vocabulary;

  std::int64_t longest_input() const;
  std::int64_t longest_output() const;
};

struct WorkItem {
  std::vector<TokenId> prompt;
  std::int64_t output_tokens;
};

// Different seeds share no prompt, so that no run finds another's prefixes in a cache.
std::vector<WorkItem> random_items(const RandomWorkload& workload, std::uint64_t seed);

// Seconds from the first request, which is sent at 0. Gaps are Gamma distributed with mean 1/rate and shape `burstiness`: 1 is a
// Poisson process, less comes in bursts, more is more even. An infinite rate sends all at 0.
std::vector<double> arrival_times(std::int64_t count, double rate_per_s, double burstiness, std::uint64_t seed);

}  // namespace keel
