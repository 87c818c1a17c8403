#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "base/random.h"
#include "engine/sampler.h"
#include "engine/token_stream.h"

namespace keel {
namespace {

const std::vector<float> kLogits = {1.0f, 3.0f, 2.0f, 3.0f, -1.0f, 0.5f};

Sampled sample_with(const SamplingParams& params, std::uint64_t seed = 1, std::vector<TokenId> tokens = {0},
                    std::vector<TokenId> forbidden = {}) {
  return sample({.logits = kLogits, .params = params, .tokens = tokens, .prompt_tokens = 1, .forbidden = forbidden, .seed = seed});
}

std::map<TokenId, double> shares(const SamplingParams& params) {
  std::map<TokenId, double> found;
  constexpr int kDraws = 40'000;
  for (int seed = 0; seed < kDraws; ++seed) found[sample_with(params, seed).token] += 1.0 / kDraws;
  return found;
}

TEST(Sampler, GreedyTakesTheLargestAndTheSmallerIdOfATie) {
  EXPECT_EQ(sample_with({.temperature = 0}).token, 1);
  EXPECT_EQ(sample_with({.temperature = 0}, 1, {0}, {1}).token, 3);
}

TEST(Sampler, FindsTheFirstLargestOfAnyVocabulary) {
  const SamplingParams params{.temperature = 0};
  const auto choose = [&](const std::vector<float>& logits) {
    return sample({.logits = logits, .params = params, .tokens = {}, .prompt_tokens = 0, .forbidden = {}, .seed = 1}).token;
  };
  for (std::size_t size : {1, 15, 16, 17, 1023, 1024, 1025, 3000}) {
    for (std::size_t largest = 0; largest < size; largest += 1 + size / 97) {
      std::vector<float> logits(size);
      for (std::size_t i = 0; i < size; ++i) logits[i] = static_cast<float>(random_unit(size, i)) - 2.0f;
      logits[size - 1] = logits[largest] = -0.5f;  // the same again at the end: the first counts
      ASSERT_EQ(choose(logits), static_cast<TokenId>(largest)) << "of " << size;
      if (largest > 0) logits[largest / 2] = NAN;
      ASSERT_EQ(choose(logits), static_cast<TokenId>(largest)) << "of " << size << " with a NaN";
    }
    EXPECT_EQ(choose(std::vector<float>(size, -INFINITY)), -1);
    EXPECT_EQ(choose(std::vector<float>(size, NAN)), -1);
    std::vector<float> infinite(size, 1.0f);
    infinite[size / 2] = INFINITY;
    EXPECT_EQ(choose(infinite), -1);
  }
}

TEST(Sampler, DrawsFromTheSoftmax) {
  for (double temperature : {0.7, 1.0, 2.0}) {
    double total = 0;
    for (float logit : kLogits) total += std::exp(logit / temperature);
    const auto found = shares({.temperature = temperature});
    for (TokenId token = 0; token < 6; ++token) {
      const double expected = std::exp(kLogits[token] / temperature) / total;
      const auto at = found.find(token);
      EXPECT_NEAR(at == found.end() ? 0 : at->second, expected, 5 * std::sqrt(expected / 40'000)) << token;
    }
  }
}

TEST(Sampler, FiltersKeepExactlyTheAllowedTokens) {
  const auto kept = [](SamplingParams params) {
    std::vector<TokenId> tokens;
    for (auto [token, share] : shares(params)) tokens.push_back(token);
    return tokens;
  };
  EXPECT_EQ(kept({.top_k = 3}), (std::vector<TokenId>{1, 2, 3}));
  EXPECT_EQ(kept({.top_k = 1}), (std::vector<TokenId>{1}));
  EXPECT_EQ(kept({.top_p = 0.5}), (std::vector<TokenId>{1, 3}));
  EXPECT_EQ(kept({.top_p = 1e-9}), (std::vector<TokenId>{1}));
  EXPECT_EQ(kept({.min_p = 0.3}), (std::vector<TokenId>{1, 2, 3}));
  EXPECT_EQ(kept({.top_k = 3, .min_p = 0.9}), (std::vector<TokenId>{1, 3}));
}

TEST(Sampler, TheSameSeedAndStepDrawTheSameToken) {
  for (int seed = 0; seed < 100; ++seed) {
    EXPECT_EQ(sample_with({}, seed).token, sample_with({}, seed).token);
  }
  int differ = 0;
  for (int seed = 0; seed < 100; ++seed) differ += sample_with({}, seed).token != sample_with({}, seed, {0, 0}).token;
  EXPECT_GT(differ, 10);  // another step of the same seed draws anew
}

TEST(Sampler, PenaltiesFollowTheirFormulas) {
  // Presence and frequency count output alone (tokens 1, 1); repetition counts the prompt (token 0) too.
  SamplingParams params{.temperature = 0, .presence_penalty = 0.5, .frequency_penalty = 0.4};
  EXPECT_EQ(sample_with(params, 1, {0, 1, 1}).token, 3);
  params = {.temperature = 0, .frequency_penalty = -0.5};
  EXPECT_EQ(sample_with(params, 1, {0, 3, 3}).token, 3);
  params = {.temperature = 0, .repetition_penalty = 1.4};
  EXPECT_EQ(sample_with(params, 1, {0, 1}).token, 3);  // 3.0 / 1.4 = 2.14 < 3.0
  EXPECT_EQ(sample_with(params, 1, {3, 1}).token, 1);  // both 2.14: the smaller id, and above 2.0
}

TEST(Sampler, BiasMovesTheChoiceAndLogprobsStayTheModels) {
  SamplingParams params{.temperature = 0, .logit_bias = {{4, 100.0f}}, .logprobs = 2};
  const Sampled sampled = sample_with(params);
  EXPECT_EQ(sampled.token, 4);
  double total = 0;
  for (float logit : kLogits) total += std::exp(logit);
  EXPECT_NEAR(sampled.report->chosen.logprob, -1 - std::log(total), 1e-6);
  EXPECT_EQ(sampled.report->chosen.rank, 6);
  ASSERT_EQ(sampled.report->top.size(), 2u);
  EXPECT_EQ(sampled.report->top[0].token, 1);
  EXPECT_EQ(sampled.report->top[1].token, 3);
}

TEST(Sampler, SaysSoWhenNoLogitIsFinite) {
  const std::vector<float> broken = {NAN, NAN};
  const std::vector<TokenId> tokens = {0};
  EXPECT_EQ(sample({.logits = broken, .params = {}, .tokens = tokens, .prompt_tokens = 1, .forbidden = {}, .seed = 0}).token, -1);
}

// One token a letter.
class Letters : public Tokenizer {
 public:
  std::vector<TokenId> encode(std::string_view text, EncodeOptions) const override { return {text.begin(), text.end()}; }
  std::string token_bytes(TokenId id, bool) const override { return std::string(1, static_cast<char>(id)); }
  bool is_special(TokenId) const override { return false; }
  TokenId size() const override { return 128; }
  std::optional<TokenId> id_of(std::string_view) const override { return std::nullopt; }
};

struct Streamed {
  std::string text;
  std::optional<std::string> stopped;
};

Streamed stream(std::string_view letters, std::vector<std::string> stops, bool keep = false, std::size_t may_stop_from = 0) {
  const Letters tokenizer;
  TokenStream tokens(&tokenizer, std::move(stops), keep, false);
  Streamed streamed;
  for (std::size_t i = 0; i < letters.size(); ++i) {
    const auto step = tokens.push(letters[i], i >= may_stop_from);
    streamed.text += step.text;
    if (step.stopped) return streamed.stopped = step.stopped, streamed;
  }
  streamed.text += tokens.finish();
  return streamed;
}

TEST(TokenStream, StopsBeforeAStopStringThatSpansTokens) {
  EXPECT_EQ(stream("hello END more", {"END"}).text, "hello ");
  EXPECT_EQ(*stream("hello END more", {"END"}).stopped, "END");
  EXPECT_EQ(stream("hello END more", {"END"}, true).text, "hello END");
  EXPECT_EQ(stream("aaab", {"aab"}).text, "a");
  EXPECT_EQ(stream("xyz", {"z", "yz"}).text, "x");
}

TEST(TokenStream, HeldBackTextIsSentWhenItIsNoStop) {
  EXPECT_EQ(stream("ENENEN", {"END"}).text, "ENENEN");
  EXPECT_FALSE(stream("ENENEN", {"END"}).stopped);
  EXPECT_EQ(stream("END END", {"END"}, false, 4).text, "END ");
}

}  // namespace
}  // namespace keel
