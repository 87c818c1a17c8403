// From one token's text to the bytes it stands for: the "decoder" of a tokenizer.json, token by token.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "text/normalizer.h"
#include "text/pre_tokenizer.h"

namespace keel {

struct DecodeByteLevel {};     // GPT-2's characters; a text with any other character stays as it is
struct DecodeByteFallback {};  // "<0x0A>"
struct DecodeStrip {
  std::string character;
  std::size_t start, stop;  // how many may go at either end
  bool first_token_only;    // after Fuse, where the text's start is meant
};
struct DecodeMetaspace {
  std::string replacement;
  bool strips_first;  // the first token's marks vanish
};

using DecoderStep =
    std::variant<Replace, DecodeByteLevel, DecodeByteFallback, DecodeStrip, DecodeMetaspace>;

struct TokenDecoder {
  std::vector<DecoderStep> steps;

  std::string bytes(std::string_view token, bool first) const;
};

// The byte that "<0x0A>" writes; -1 for another text.
int byte_token_value(std::string_view token);

}  // namespace keel
