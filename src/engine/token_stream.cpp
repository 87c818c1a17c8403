#include "engine/token_stream.h"

#include <algorithm>
#include <utility>

namespace keel {
namespace {

// Longest suffix of `text` that is a proper prefix of some stop string: it may yet become one.
std::size_t unfinished_stop(const std::string& text, const std::vector<std::string>& stops) {
  std::size_t longest = 0;
  for (const std::string& stop : stops) {
    for (std::size_t n = std::min(stop.size() - 1, text.size()); n > longest; --n) {
      if (text.compare(text.size() - n, n, stop, 0, n) == 0) longest = n;
    }
  }
  return longest;
}

}  // namespace

TokenStream::TokenStream(const Tokenizer* tokenizer, std::vector<std::string> stops, bool keep_stop, bool with_special)
    : stops_(std::move(stops)), keep_stop_(keep_stop) {
  if (tokenizer != nullptr) detokenizer_.emplace(*tokenizer, with_special);
}

TokenStream::Step TokenStream::push(TokenId token, bool may_stop) {
  Step step;
  if (!detokenizer_) return step;
  held_ += detokenizer_->push(token);
  if (!may_stop) {
    step.text = std::exchange(held_, "");
    return step;
  }
  std::size_t first = std::string::npos;
  for (const std::string& stop : stops_) {
    const std::size_t at = held_.find(stop);
    if (at < first) first = at, step.stopped = stop;
  }
  if (step.stopped) {
    step.text = held_.substr(0, first + (keep_stop_ ? step.stopped->size() : 0));
    held_.clear();
    return step;
  }
  const std::size_t sendable = held_.size() - unfinished_stop(held_, stops_);
  step.text = held_.substr(0, sendable);
  held_.erase(0, sendable);
  return step;
}

std::string TokenStream::finish() {
  if (!detokenizer_) return "";
  held_ += detokenizer_->finish();
  return std::exchange(held_, "");
}

}  // namespace keel
