// Any bytes as a tokenizer.json: it loads or throws Error, and what loads encodes and decodes.
#include <cstddef>
#include <cstdint>

#include "base/error.h"
#include "text/tokenizer_json.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    const std::string_view text(reinterpret_cast<const char*>(data), size);
    const auto tokenizer = keel::parse_tokenizer_json("fuzz", text, {});
    const auto ids = tokenizer->encode(text, {.add_special = true, .parse_special = true});
    tokenizer->decode(ids, true);
  } catch (const keel::Error&) {
  }
  return 0;
}
