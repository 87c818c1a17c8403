#include "lab/markup.h"

#include <cmath>
#include <cstdint>
#include <fmt/format.h>

namespace keel {
namespace {

// Bytes of the valid UTF-8 character at the start of `text` that XML allows; 0 where there is none.
std::size_t xml_character(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<std::uint8_t>(text[i]); };
  if (byte(0) < 0x80) return byte(0) >= 0x20 || byte(0) == '\t' || byte(0) == '\n' || byte(0) == '\r' ? 1 : 0;
  const std::size_t length = byte(0) >= 0xf0 ? 4 : byte(0) >= 0xe0 ? 3 : 2;
  if (byte(0) < 0xc2 || byte(0) > 0xf4 || text.size() < length) return 0;
  std::uint32_t code = byte(0) & (0x7fu >> length);
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
    code = code << 6 | (byte(i) & 0x3fu);
  }
  constexpr std::uint32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};
  const bool surrogate = code >= 0xd800 && code < 0xe000;
  return code < kLeast[length] || code > 0x10ffff || surrogate || code == 0xfffe || code == 0xffff ? 0 : length;
}

}  // namespace

std::string escaped(std::string_view text) {
  std::string result;
  result.reserve(text.size());
  while (!text.empty()) {
    const std::size_t length = xml_character(text);
    switch (length == 1 ? text[0] : 'a') {
      case '&': result += "&amp;"; break;
      case '<': result += "&lt;"; break;
      case '>': result += "&gt;"; break;
      case '"': result += "&quot;"; break;
      default: result += length > 0 ? text.substr(0, length) : std::string_view("\uFFFD");
    }
    text.remove_prefix(length > 0 ? length : 1);
  }
  return result;
}

std::string coordinate(double value) {
  const double tenths = std::round(value * 10);
  return tenths == 0 ? "0" : fmt::format("{}", tenths / 10);
}

std::size_t characters(std::string_view text) {
  std::size_t count = 0;
  for (const char c : text) count += (static_cast<std::uint8_t>(c) & 0xc0) != 0x80;
  return count;
}

double text_width(std::string_view text, double font_size) { return static_cast<double>(characters(text)) * font_size * 0.59; }

}  // namespace keel
