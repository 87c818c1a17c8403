// One token from one row of logits.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "engine/request.h"

namespace keel {

struct SamplerInput {
  std::span<const float> logits;          // [vocabulary]
  const SamplingParams& params;
  std::span<const TokenId> tokens;        // prompt, then output
  std::int64_t prompt_tokens;
  std::span<const TokenId> forbidden;     // never chosen: eos and stop ids before min_tokens
  std::uint64_t seed;                     // the draw depends on it and on the number of output tokens alone
};

struct Sampled {
  TokenId token = -1;                     // -1: the logits held no finite maximum
  std::optional<TokenReport> report;      // when params.logprobs
};

// Order: bias, forbidden, penalties; greedy stops here; then temperature, top_k, top_p, min_p. Ties go to the smaller id.
Sampled sample(const SamplerInput& input);

// Log-probability and rank of `token` and the `alternatives` likeliest tokens, of softmax(logits).
TokenReport report_token(std::span<const float> logits, TokenId token, int alternatives);

}  // namespace keel
