#include "text/byte_level.h"

#include <array>

#include "text/unicode.h"

namespace keel {
namespace {

// Printable Latin-1 bytes stand for themselves; the other 68, in order, are U+0100 and on.
bool stands_for_itself(unsigned byte) {
  return (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
}

constexpr int kCharacters = 0x100 + 68;

struct Table {
  std::array<char32_t, 256> character;
  std::array<int, kCharacters> byte;
};

const Table& table() {
  static const Table built = [] {
    Table t;
    t.byte.fill(-1);
    char32_t next = 0x100;
    for (unsigned byte = 0; byte < 256; ++byte) {
      t.character[byte] = stands_for_itself(byte) ? byte : next++;
      t.byte[t.character[byte]] = static_cast<int>(byte);
    }
    return t;
  }();
  return built;
}

}  // namespace

std::string bytes_to_characters(std::string_view bytes) {
  std::string characters;
  characters.reserve(bytes.size() * 2);
  for (unsigned char byte : bytes) append_utf8(characters, table().character[byte]);
  return characters;
}

std::optional<std::string> characters_to_bytes(std::string_view characters) {
  std::string bytes;
  bytes.reserve(characters.size());
  for (std::size_t at = 0; at < characters.size();) {
    const CodePoint point = decode_utf8(characters, at);
    if (!point.valid || point.value >= kCharacters || table().byte[point.value] < 0)
      return std::nullopt;
    bytes.push_back(static_cast<char>(table().byte[point.value]));
    at += point.length;
  }
  return bytes;
}

}  // namespace keel
