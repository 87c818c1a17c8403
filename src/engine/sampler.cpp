#include "engine/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "base/random.h"

namespace keel {
namespace {

constexpr float kNever = -std::numeric_limits<float>::infinity();

bool has_penalties(const SamplingParams& params) {
  return params.repetition_penalty != 1 || params.presence_penalty != 0 || params.frequency_penalty != 0;
}

// Repetition: CTRL (Keskar et al. 2019), over prompt and output. Presence and frequency: OpenAI's, over output.
void apply_penalties(const SamplerInput& input, std::vector<float>& logits) {
  thread_local std::vector<std::int32_t> output_counts;  // all -1 (unseen) between calls
  if (output_counts.size() < logits.size()) output_counts.assign(logits.size(), -1);
  for (std::size_t i = 0; i < input.tokens.size(); ++i) {
    std::int32_t& count = output_counts[input.tokens[i]];
    count = std::max(count, 0) + (static_cast<std::int64_t>(i) >= input.prompt_tokens ? 1 : 0);
  }
  const auto repetition = static_cast<float>(input.params.repetition_penalty);
  for (TokenId token : input.tokens) {
    const std::int32_t count = std::exchange(output_counts[token], -1);
    if (count < 0) continue;  // done at its first occurrence
    float& logit = logits[token];
    logit = logit > 0 ? logit / repetition : logit * repetition;
    if (count > 0) logit -= static_cast<float>(input.params.presence_penalty + count * input.params.frequency_penalty);
  }
}

TokenId argmax(std::span<const float> logits) {
  // A block's maximum comes from independent lanes, which the compiler makes vectors of; then only the first block that
  // holds the largest is searched for it.
  constexpr std::size_t kLanes = 16, kBlock = 1024;
  float largest = kNever;
  std::size_t from = 0;
  for (std::size_t block = 0; block < logits.size(); block += kBlock) {
    const std::size_t count = std::min(kBlock, logits.size() - block);
    const float* values = logits.data() + block;
    float lanes[kLanes];
    std::fill_n(lanes, kLanes, kNever);
    std::size_t i = 0;
    for (; i + kLanes <= count; i += kLanes) {
      for (std::size_t lane = 0; lane < kLanes; ++lane) {
        lanes[lane] = values[i + lane] > lanes[lane] ? values[i + lane] : lanes[lane];
      }
    }
    for (; i < count; ++i) lanes[0] = values[i] > lanes[0] ? values[i] : lanes[0];
    const float block_largest = *std::max_element(lanes, lanes + kLanes);
    if (block_largest > largest) largest = block_largest, from = block;
  }
  if (!std::isfinite(largest)) return -1;
  return static_cast<TokenId>(std::find(logits.begin() + from, logits.end(), largest) - logits.begin());
}

struct Candidate {
  TokenId token;
  double weight;  // exp((logit - max) / temperature)
};

bool likelier(const Candidate& a, const Candidate& b) {
  return a.weight != b.weight ? a.weight > b.weight : a.token < b.token;
}

// Keeps the likeliest tokens that top_k, top_p and min_p allow; min_p and top_p are of the distribution that is left.
void filter(std::vector<Candidate>& candidates, const SamplingParams& params) {
  const auto limit = static_cast<std::size_t>(params.top_k);
  if (params.top_k > 0 && limit < candidates.size()) {
    std::nth_element(candidates.begin(), candidates.begin() + limit, candidates.end(), likelier);
    candidates.resize(limit);
  }
  if (params.top_p < 1) {
    double total = 0;
    for (const Candidate& candidate : candidates) total += candidate.weight;
    const auto less_likely = [](const Candidate& a, const Candidate& b) { return likelier(b, a); };
    std::make_heap(candidates.begin(), candidates.end(), less_likely);
    auto end = candidates.end();  // [end, candidates.end()) are the kept ones, likeliest last
    double kept = 0;
    while (end != candidates.begin() && kept < params.top_p * total) {
      std::pop_heap(candidates.begin(), end, less_likely);
      kept += (--end)->weight;
    }
    candidates.erase(candidates.begin(), end);
  }
  if (params.min_p > 0) {
    double largest = 0;
    for (const Candidate& candidate : candidates) largest = std::max(largest, candidate.weight);
    std::erase_if(candidates, [&](const Candidate& c) { return c.weight < params.min_p * largest; });
  }
}

TokenId draw(std::vector<Candidate>& candidates, double unit) {
  // In id order, so that the same draw gives the same token however the candidates were found.
  std::sort(candidates.begin(), candidates.end(), [](const Candidate& a, const Candidate& b) { return a.token < b.token; });
  double total = 0;
  for (const Candidate& candidate : candidates) total += candidate.weight;
  double rest = unit * total;
  for (const Candidate& candidate : candidates) {
    rest -= candidate.weight;
    if (rest < 0) return candidate.token;
  }
  return candidates.back().token;
}

TokenId choose(const SamplerInput& input, std::span<const float> logits) {
  const TokenId best = argmax(logits);
  if (best < 0 || input.params.temperature == 0) return best;
  const double largest = logits[best];
  thread_local std::vector<Candidate> candidates;
  candidates.clear();
  for (std::size_t i = 0; i < logits.size(); ++i) {
    const double weight = std::exp((logits[i] - largest) / input.params.temperature);
    if (weight > 0) candidates.push_back({static_cast<TokenId>(i), weight});
  }
  filter(candidates, input.params);
  const std::uint64_t step = input.tokens.size() - input.prompt_tokens;
  return draw(candidates, random_unit(input.seed, step));
}

}  // namespace

Sampled sample(const SamplerInput& input) {
  thread_local std::vector<float> changed;
  std::span<const float> logits = input.logits;
  if (has_penalties(input.params) || !input.params.logit_bias.empty() || !input.forbidden.empty()) {
    changed.assign(logits.begin(), logits.end());
    for (auto [token, bias] : input.params.logit_bias) changed[token] += bias;
    for (TokenId token : input.forbidden) changed[token] = kNever;
    if (has_penalties(input.params)) apply_penalties(input, changed);
    logits = changed;
  }
  Sampled sampled{.token = choose(input, logits)};
  if (sampled.token >= 0 && input.params.logprobs) {
    sampled.report = report_token(input.logits, sampled.token, *input.params.logprobs);
  }
  return sampled;
}

TokenReport report_token(std::span<const float> logits, TokenId token, int alternatives) {
  const double largest = *std::max_element(logits.begin(), logits.end());
  double total = 0;
  std::int64_t rank = 1;
  for (std::size_t i = 0; i < logits.size(); ++i) {
    total += std::exp(logits[i] - largest);
    rank += logits[i] > logits[token];
  }
  const double log_total = largest + std::log(total);
  const auto logprob = [&](TokenId id) { return static_cast<float>(logits[id] - log_total); };
  TokenReport report{.chosen = {token, logprob(token), rank}, .top = {}};

  std::vector<TokenId> ids(logits.size());
  for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<TokenId>(i);
  const auto count = std::min<std::size_t>(alternatives, ids.size());
  std::partial_sort(ids.begin(), ids.begin() + count, ids.end(), [&](TokenId a, TokenId b) {
    return logits[a] != logits[b] ? logits[a] > logits[b] : a < b;
  });
  for (std::size_t i = 0; i < count; ++i) report.top.push_back({ids[i], logprob(ids[i]), static_cast<std::int64_t>(i + 1)});
  return report;
}

}  // namespace keel
