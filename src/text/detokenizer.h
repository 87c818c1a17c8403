// Turns a stream of tokens into a stream of text, never splitting a UTF-8 character.
#pragma once

#include <string>

#include "text/tokenizer.h"

namespace keel {

class Detokenizer {
 public:
  // with_special: special tokens appear as their text.
  explicit Detokenizer(const Tokenizer& tokenizer, bool with_special = false)
      : tokenizer_(&tokenizer), with_special_(with_special) {}

  // The text that this token completes: may be empty while a character is unfinished.
  std::string push(TokenId token);
  // What is left at the end: an unfinished character becomes U+FFFD.
  std::string finish();

 private:
  const Tokenizer* tokenizer_;
  bool with_special_;
  bool first_ = true;
  std::string pending_;  // an unfinished UTF-8 character's bytes
};

}  // namespace keel
