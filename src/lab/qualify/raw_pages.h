// What a page's bytes mean, worked out again from the description at the head of kv/layout.h and kv_write.h, in double and without
// the engine's own code: the yardstick that stored bytes and attention are compared with. It shares no address, rounding or decoding
// function with what it judges.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kv/layout.h"

namespace keel {

// ---- numbers ----

double decode_stored(DType type, std::uint32_t bits);  // f32, f16, bf16, e4m3; NaN codes give NaN
// The code of `x` rounded to nearest, ties to even. f16 overflows to infinity, e4m3 saturates and keeps NaN.
std::uint32_t encode_stored(DType type, double x);
// The same towards zero, as a writer that only cuts bits off would do.
std::uint32_t encode_truncated(DType type, double x);
bool same_stored(DType type, std::uint32_t a, std::uint32_t b);  // equal codes, or both NaN

// ---- pages ----

// One token's share of a layer's pages as codes: [kv_heads · head_dim] of each side, and for u4 each head's {scale, zero} as f16 codes.
struct StoredToken {
  std::vector<std::uint32_t> keys, values, value_parameters;
};

// What the writer owes for one token's fresh rows, [kv_heads · head_dim] each. scales: [kv_heads] of the layer.
StoredToken encode_token(const KvLayout& layout, std::span<const float> k, std::span<const float> v, const float* key_scales, const float* value_scales);
// The first difference from what is owed, in words, or empty. A u4 code may be either neighbour where the number lies between.
std::string difference(const KvLayout& layout, const StoredToken& found, const StoredToken& owed, std::span<const float> v);

StoredToken read_token(const KvLayout& layout, std::span<const std::byte> keys, std::span<const std::byte> values, std::int64_t slot);
void write_token(const KvLayout& layout, std::span<std::byte> keys, std::span<std::byte> values, std::int64_t slot, const StoredToken& token);

// The token's numbers with their scales, [kv_heads · head_dim].
std::vector<double> key_numbers(const KvLayout& layout, const StoredToken& token, const float* key_scales);
std::vector<double> value_numbers(const KvLayout& layout, const StoredToken& token, const float* value_scales);
// What the values' rounding errors are in proportion to: their magnitudes, for u4 those of zero and scale · code apart.
std::vector<double> value_magnitudes(const KvLayout& layout, const StoredToken& token, const float* value_scales);

}  // namespace keel
