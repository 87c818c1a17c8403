// Template text to tokens, with trim_blocks and lstrip_blocks on, as chat templates are meant to be read.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace keel::jinja {

enum class TokenKind { data, print_begin, print_end, block_begin, block_end, name, string, integer, real, symbol, end };

struct Token {
  TokenKind kind;
  std::string text;  // of a string: unescaped
  int line;
  std::int64_t integer = 0;
  double real = 0;
};

// Throws Error with the line for what is not a token.
std::vector<Token> tokenize(std::string_view source);

}  // namespace keel::jinja
