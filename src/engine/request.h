// What a client asks for, and what it gets back, token by token.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "text/tokenizer.h"

namespace keel {

constexpr int kMaxChoices = 128;  // of one request
constexpr int kMaxLogprobs = 20;  // alternatives reported for one token

// Names and meanings are OpenAI's and vLLM's.
struct SamplingParams {
  double temperature = 1.0;         // 0 = greedy
  std::int64_t top_k = -1;          // -1 or 0 = all
  double top_p = 1.0;               // (0, 1]
  double min_p = 0.0;               // [0, 1]
  double repetition_penalty = 1.0;  // > 0; over prompt and output
  double presence_penalty = 0.0;    // [-2, 2]; over output
  double frequency_penalty = 0.0;   // [-2, 2]; over output
  std::optional<std::uint64_t> seed;
  std::map<TokenId, float> logit_bias;  // [-100, 100]
  std::vector<std::string> stop;        // not part of the text that is returned
  std::vector<TokenId> stop_token_ids;
  std::int64_t max_tokens = 16;
  std::int64_t min_tokens = 0;  // no eos, stop id or stop string before
  bool ignore_eos = false;
  bool include_stop_str_in_output = false;
  bool skip_special_tokens = true;
  std::optional<int> logprobs;         // 0..20 alternatives beside the chosen token
  std::optional<int> prompt_logprobs;  // same, for the prompt's tokens (echo)

  // What is wrong with these values, naming the parameter, the range and the value found; empty when nothing is.
  std::string problem(std::int64_t vocabulary) const;
};

struct Request {
  std::vector<TokenId> prompt;  // at least one token
  SamplingParams sampling;
  int n = 1;               // choices; choice i draws with seed + i
  std::string cache_salt;  // prefixes are shared only among equal salts
};

struct TokenLogprob {
  TokenId token;
  float logprob;   // of the model's own distribution: before bias, penalties, temperature and filters
  std::int64_t rank;  // 1 = most likely
};

struct TokenReport {
  TokenLogprob chosen;
  std::vector<TokenLogprob> top;  // most likely first
};

enum class FinishReason { none, stop, length, abort, error };
std::string_view name(FinishReason reason);  // "stop", "length", "abort", "error"; "" for none

// What one step gave one choice. Text is whole UTF-8 characters and never part of a stop string.
struct Output {
  int choice = 0;
  std::string text;             // new text; empty is normal
  std::vector<TokenId> tokens;  // new tokens
  std::vector<TokenReport> reports;  // one a token, when logprobs were asked for
  FinishReason finish = FinishReason::none;
  std::string stop_reason;      // the stop string that ended it, or the stop token's id; empty for eos
  std::string error;            // finish == error
  bool engine_failed = false;   // finish == error and memory ran out: another try may succeed. Else the model gave no finite logit

  // Of the choice, with each output.
  std::chrono::steady_clock::time_point admitted;  // when it first ran
  std::int64_t prompt_tokens = 0;
  std::int64_t cached_tokens = 0;      // of the prompt, found in the prefix index
  std::int64_t completion_tokens = 0;  // so far

  std::vector<TokenReport> prompt_reports;  // first output: [prompt] when asked for; the first has no logprob (NaN)
};

// Called on the engine's thread; must not block, throw or call back into the engine.
using OutputSink = std::function<void(const Output&)>;
using RequestId = std::uint64_t;

}  // namespace keel
