#include "text/detokenizer.h"

#include <utility>

#include "text/unicode.h"

namespace keel {

std::string Detokenizer::push(TokenId token) {
  if (token < 0 || token >= tokenizer_->size()) return {};
  if (!with_special_ && tokenizer_->is_special(token)) return {};
  pending_ += tokenizer_->token_bytes(token, first_);
  first_ = false;
  std::string text;
  std::size_t at = 0;
  while (at < pending_.size()) {
    const CodePoint point = decode_utf8(pending_, at);
    if (point.unfinished) break;
    if (point.valid) {
      text.append(pending_, at, static_cast<std::size_t>(point.length));
    } else {
      append_utf8(text, 0xfffd);
    }
    at += static_cast<std::size_t>(point.length);
  }
  pending_.erase(0, at);
  return text;
}

std::string Detokenizer::finish() {
  first_ = true;
  return replace_invalid_utf8(std::exchange(pending_, {}));
}

}  // namespace keel
