// Any bytes either parse as safetensors or throw Error; nothing else may happen. Every byte of every tensor must be readable.
#include <cstddef>
#include <cstdint>

#include "base/error.h"
#include "files/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    const auto tensors =
        keel::parse_safetensors("fuzz", {reinterpret_cast<const std::byte*>(data), size});
    volatile unsigned sum = 0;
    for (const auto& [name, tensor] : tensors) {
      for (const std::byte byte : tensor.bytes) sum = sum + static_cast<unsigned>(byte);
    }
  } catch (const keel::Error&) {
  }
  return 0;
}
