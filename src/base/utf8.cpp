#include "base/utf8.h"

namespace keel {
namespace {

// The second byte's range is what rules out overlong forms, surrogates and values past U+10FFFF.
struct LeadByte {
  int length;
  unsigned char second_low, second_high;
};

LeadByte lead_byte(unsigned char byte) {
  if (byte < 0x80) return {1, 0, 0};
  if (byte < 0xc2) return {0, 0, 0};
  if (byte < 0xe0) return {2, 0x80, 0xbf};
  if (byte == 0xe0) return {3, 0xa0, 0xbf};
  if (byte == 0xed) return {3, 0x80, 0x9f};
  if (byte < 0xf0) return {3, 0x80, 0xbf};
  if (byte == 0xf0) return {4, 0x90, 0xbf};
  if (byte < 0xf4) return {4, 0x80, 0xbf};
  if (byte == 0xf4) return {4, 0x80, 0x8f};
  return {0, 0, 0};
}

}  // namespace

CodePoint decode_utf8(std::string_view text, std::size_t at) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[at + i]); };
  const LeadByte lead = lead_byte(byte(0));
  if (lead.length == 1) return {byte(0), 1, true, false};
  if (lead.length == 0) return {0xfffd, 1, false, false};
  char32_t value = byte(0) & (0xffu >> (lead.length + 1));
  for (int i = 1; i < lead.length; ++i) {
    if (at + i == text.size()) return {0xfffd, i, false, true};
    const unsigned char low = i == 1 ? lead.second_low : 0x80;
    const unsigned char high = i == 1 ? lead.second_high : 0xbf;
    if (byte(i) < low || byte(i) > high) return {0xfffd, i, false, false};
    value = value << 6 | (byte(i) & 0x3fu);
  }
  return {value, lead.length, true, false};
}

void append_utf8(std::string& text, char32_t value) {
  const auto push = [&](char32_t byte) { text.push_back(static_cast<char>(byte)); };
  if (value < 0x80) {
    push(value);
  } else if (value < 0x800) {
    push(0xc0 | value >> 6);
    push(0x80 | (value & 0x3f));
  } else if (value < 0x10000) {
    push(0xe0 | value >> 12);
    push(0x80 | (value >> 6 & 0x3f));
    push(0x80 | (value & 0x3f));
  } else {
    push(0xf0 | value >> 18);
    push(0x80 | (value >> 12 & 0x3f));
    push(0x80 | (value >> 6 & 0x3f));
    push(0x80 | (value & 0x3f));
  }
}

bool is_valid_utf8(std::string_view text) {
  for (std::size_t at = 0; at < text.size();) {
    if (static_cast<unsigned char>(text[at]) < 0x80) {
      ++at;
      continue;
    }
    const CodePoint point = decode_utf8(text, at);
    if (!point.valid) return false;
    at += point.length;
  }
  return true;
}

std::string replace_invalid_utf8(std::string_view text) {
  std::string result;
  result.reserve(text.size());
  for (std::size_t at = 0; at < text.size();) {
    const CodePoint point = decode_utf8(text, at);
    if (point.valid) {
      result.append(text, at, point.length);
    } else {
      append_utf8(result, 0xfffd);
    }
    at += point.length;
  }
  return result;
}

std::string plain_line(std::string_view text) {
  std::string line;
  for (std::size_t at = 0; at < text.size();) {
    const CodePoint c = decode_utf8(text, at);
    const bool is_control = c.value < 0x20 || (c.value >= 0x7f && c.value < 0xa0);
    append_utf8(line, is_control ? U' ' : c.value);
    at += static_cast<std::size_t>(c.length);
  }
  return line;
}

}  // namespace keel
