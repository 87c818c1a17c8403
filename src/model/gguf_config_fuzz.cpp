// Any GGUF file either gives a config within its limits or throws Error.
#include <cstddef>
#include <cstdint>

#include "base/error.h"
#include "model/config.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    const keel::GgufFile file("fuzz", {reinterpret_cast<const std::byte*>(data), size});
    const keel::ModelConfig config = keel::read_gguf_config(file);
    keel::check(config.heads % config.kv_heads == 0 && config.head_dim <= 256,
                "the geometry is checked");
    keel::check(
        2 * config.inverse_frequencies.size() == static_cast<std::size_t>(config.rotary_dim),
        "one a pair");
  } catch (const keel::Error&) {
  }
  return 0;
}
