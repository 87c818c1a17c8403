#include "text/token_decoder.h"

#include "text/byte_level.h"

namespace keel {
namespace {

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return -1;
}

struct Decoded {
  const std::string& text;
  bool first;

  std::string operator()(const Replace& step) const { return step.apply(text); }
  std::string operator()(DecodeByteLevel) const { return characters_to_bytes(text).value_or(text); }
  std::string operator()(DecodeByteFallback) const {
    const int byte = byte_token_value(text);
    return byte < 0 ? text : std::string(1, static_cast<char>(byte));
  }
  std::string operator()(const DecodeStrip& step) const {
    if (step.first_token_only && !first) return text;
    std::string_view rest = text;
    for (std::size_t i = 0; i < step.start && rest.starts_with(step.character); ++i)
      rest.remove_prefix(step.character.size());
    for (std::size_t i = 0; i < step.stop && rest.ends_with(step.character); ++i)
      rest.remove_suffix(step.character.size());
    return std::string(rest);
  }
  std::string operator()(const DecodeMetaspace& step) const {
    return Replace{step.replacement, first && step.strips_first ? "" : " "}.apply(text);
  }
};

}  // namespace

int byte_token_value(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || !token.ends_with('>')) return -1;
  const int high = hex_digit(token[3]), low = hex_digit(token[4]);
  return high < 0 || low < 0 ? -1 : high * 16 + low;
}

std::string TokenDecoder::bytes(std::string_view token, bool first) const {
  std::string text(token);
  for (const DecoderStep& step : steps) text = std::visit(Decoded{text, first}, step);
  return text;
}

}  // namespace keel
