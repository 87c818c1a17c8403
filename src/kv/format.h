// The only way to name a cache type: what keys are stored as, and what values are stored as.
#pragma once

#include <string>
#include <string_view>

#include "base/dtype.h"

namespace keel {

struct KvFormat {
  DType key;
  DType value;
  friend bool operator==(const KvFormat&, const KvFormat&) = default;
};

// Accepts k16v16, k16v8, k8v8, k16v4, auto, fp8 (= k8v8), one dtype for both ("bf16"), or "k=bf16,v=fp8_e4m3" (either
// part may be left out). 16 means `model_dtype` when that is a 16-bit type, else f16. `auto` is 16 bits for both.
// Throws Error naming the accepted words, and for pairs no kernel supports.
KvFormat parse_kv_format(std::string_view text, DType model_dtype);

// "k=bf16,v=fp8_e4m3", and the short name where there is one ("k16v8"; else the long one).
std::string to_string(const KvFormat& format);
std::string short_name(const KvFormat& format);

}  // namespace keel
