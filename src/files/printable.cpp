#include "files/printable.h"

#include <fmt/format.h>

namespace keel {

std::string printable(std::string_view name) {
  constexpr std::size_t kLongest = 100;
  std::string out = "'";
  for (const char c : name.substr(0, kLongest)) {
    if (c >= 0x20 && c < 0x7f) {
      out += c;
    } else {
      out += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    }
  }
  return out + (name.size() > kLongest ? "…'" : "'");
}

}  // namespace keel
