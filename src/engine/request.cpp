#include "engine/request.h"

#include <cmath>

namespace keel {

std::string_view name(FinishReason reason) {
  switch (reason) {
    case FinishReason::none: return "";
    case FinishReason::stop: return "stop";
    case FinishReason::length: return "length";
    case FinishReason::abort: return "abort";
    case FinishReason::error: return "error";
  }
  return "";
}

std::string SamplingParams::problem(std::int64_t vocabulary) const {
  const auto outside = [](double value, double low, double high) { return !(value >= low && value <= high); };
  if (outside(temperature, 0, 100)) return fmt::format("temperature must be between 0 and 100, found {}", temperature);
  if (top_k < -1) return fmt::format("top_k must be -1 (all) or at least 0, found {}", top_k);
  if (outside(top_p, 0, 1) || top_p == 0) return fmt::format("top_p must be above 0 and at most 1, found {}", top_p);
  if (outside(min_p, 0, 1)) return fmt::format("min_p must be between 0 and 1, found {}", min_p);
  if (outside(repetition_penalty, 0.01, 100)) return fmt::format("repetition_penalty must be between 0.01 and 100, found {}", repetition_penalty);
  if (outside(presence_penalty, -2, 2)) return fmt::format("presence_penalty must be between -2 and 2, found {}", presence_penalty);
  if (outside(frequency_penalty, -2, 2)) return fmt::format("frequency_penalty must be between -2 and 2, found {}", frequency_penalty);
  for (auto [token, bias] : logit_bias) {
    if (token < 0 || token >= vocabulary) return fmt::format("logit_bias names token {}; the vocabulary has ids 0 to {}", token, vocabulary - 1);
    if (outside(bias, -100, 100)) return fmt::format("logit_bias of token {} must be between -100 and 100, found {}", token, bias);
  }
  for (const std::string& text : stop) {
    if (text.empty()) return "stop must not hold an empty string";
  }
  for (TokenId token : stop_token_ids) {
    if (token < 0 || token >= vocabulary) return fmt::format("stop_token_ids names token {}; the vocabulary has ids 0 to {}", token, vocabulary - 1);
  }
  if (max_tokens < 1) return fmt::format("max_tokens must be at least 1, found {}", max_tokens);
  if (min_tokens < 0 || min_tokens > max_tokens) {
    return fmt::format("min_tokens must be between 0 and max_tokens ({}), found {}", max_tokens, min_tokens);
  }
  for (const auto& count : {logprobs, prompt_logprobs}) {
    if (count && (*count < 0 || *count > kMaxLogprobs)) return fmt::format("logprobs must be between 0 and {}, found {}", kMaxLogprobs, *count);
  }
  return "";
}

}  // namespace keel
