#include "base/sha256.h"

#include <openssl/sha.h>

#include <fmt/format.h>

namespace keel {

Digest sha256(std::span<const std::byte> bytes) {
  Digest digest;
  SHA256(reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size(), digest.data());
  return digest;
}

std::string hex(const Digest& digest) {
  std::string text;
  for (unsigned char byte : digest) text += fmt::format("{:02x}", byte);
  return text;
}

}  // namespace keel
