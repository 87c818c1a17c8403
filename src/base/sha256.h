// SHA-256 of byte strings (OpenSSL).
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace keel {

using Digest = std::array<unsigned char, 32>;

Digest sha256(std::span<const std::byte> bytes);
inline Digest sha256(std::string_view text) { return sha256(std::as_bytes(std::span(text))); }
std::string hex(const Digest& digest);

}  // namespace keel
