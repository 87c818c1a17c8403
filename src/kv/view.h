// One layer's cache as the kernels see it: pointers and scales, owning nothing.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kv/layout.h"

namespace keel {

using PageId = std::int32_t;

struct KvLayerView {
  const KvLayout* layout;
  std::byte* keys;            // [pages][layout->key_page_bytes()]
  std::byte* values;          // [pages][layout->value_page_bytes()]
  const float* key_scales;    // [kv_heads]: key = stored · scale. 1 for 16- and 32-bit keys
  const float* value_scales;  // [kv_heads]; 1 for u4, whose pages carry their own

  std::byte* key_page(PageId page) const {
    return keys + static_cast<std::int64_t>(page) * layout->key_page_bytes();
  }
  std::byte* value_page(PageId page) const {
    return values + static_cast<std::int64_t>(page) * layout->value_page_bytes();
  }
};

}  // namespace keel
