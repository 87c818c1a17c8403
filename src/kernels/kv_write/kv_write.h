// Stores new keys and values in their slots, in the cache's types.
//
// 16-bit and E4M3 are rounded to nearest, ties to even, from stored = value / scale (a division, so that every device
// gives the same bytes); E4M3 saturates at ±448 and keeps NaN as 0x7F. u4: over the token's head, zero = f16(min),
// scale = f16((max - min) / 15), code = clamp(round((value - zero) / scale), 0, 15); scale 0 stores code 0. A head with an
// infinity or NaN, or whose scale or zero overflows f16, stores zero = NaN and reads back as NaN.
// A slot of -1 is skipped. Other slots' bytes are untouched.
#pragma once

#include <cstdint>
#include <span>

#include "device/stream.h"
#include "kv/view.h"

namespace keel {

struct KvWriteArgs {
  const float* k;  // [tokens, kv_heads, head_dim], after RoPE
  const float* v;  // [tokens, kv_heads, head_dim]
  std::span<const std::int64_t> slots;  // [tokens]: page · page_size + place, or -1
  KvLayerView kv;
};

void kv_write(const Stream& stream, const KvWriteArgs& args);

// Reads one stored element back as f32, scale applied: the plain reference that tests and tools use.
float read_key(const KvLayerView& kv, std::int64_t slot, std::int64_t head, std::int64_t dim);
float read_value(const KvLayerView& kv, std::int64_t slot, std::int64_t head, std::int64_t dim);

}  // namespace keel
