#include "lab/qualify/raw_pages.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/error.h"

namespace keel {
namespace {

// A float format with `mantissa` bits after the point; exponents count from `least` (of the smallest normal number).
struct FloatShape {
  int bits, mantissa, least;
  double largest;
};

FloatShape shape_of(DType type) {
  switch (type) {
    case DType::f32: return {32, 23, -126, std::numeric_limits<float>::max()};
    case DType::f16: return {16, 10, -14, 65504};
    case DType::bf16: return {16, 7, -126, 0x1.fep127};
    case DType::e4m3: return {8, 3, -6, 448};
    case DType::u4: break;
  }
  fail("{} is no float format", name(type));
}

double nan_number() { return std::numeric_limits<double>::quiet_NaN(); }

std::uint32_t encode(DType type, double x, bool to_nearest) {
  const FloatShape shape = shape_of(type);
  const std::uint32_t sign = std::signbit(x) ? 1u << (shape.bits - 1) : 0;
  const bool has_infinity = type != DType::e4m3;
  const std::uint32_t infinity = ((1u << (shape.bits - 1 - shape.mantissa)) - 1) << shape.mantissa;  // its code; e4m3: a number's
  if (std::isnan(x)) return sign | (has_infinity ? infinity | 1u << (shape.mantissa - 1) : 0x7f);
  double size = std::abs(x);
  int exponent = std::isinf(size) || size == 0 ? shape.least : std::ilogb(size);
  exponent = std::max(exponent, shape.least);
  const double step = std::ldexp(1.0, exponent - shape.mantissa);
  const double steps = size / step;  // exact: a power of two
  if (!std::isinf(size)) size = (to_nearest ? std::nearbyint(steps) : std::floor(steps)) * step;
  if (size > shape.largest) {
    if (has_infinity && to_nearest) return sign | infinity;
    if (has_infinity && std::isinf(x)) return sign | infinity;
    size = shape.largest;
  }
  if (size == 0) return sign;
  exponent = std::max(std::ilogb(size), shape.least);
  const double unit = std::ldexp(1.0, shape.least - shape.mantissa);
  if (size < std::ldexp(1.0, shape.least)) return sign | static_cast<std::uint32_t>(size / unit);
  const auto fraction = static_cast<std::uint32_t>((size / std::ldexp(1.0, exponent) - 1) * std::ldexp(1.0, shape.mantissa));
  return sign | static_cast<std::uint32_t>(exponent - shape.least + 1) << shape.mantissa | fraction;
}

// ---- where an element lies, in bits from the start of a page's side ----

// CUDA: a row of one token and head is 16-byte chunks, which trade places by slot within groups of up to eight.
std::int64_t cuda_bit(std::int64_t row_bits, std::int64_t page_size, std::int64_t head, std::int64_t slot, std::int64_t bit) {
  const std::int64_t chunks = row_bits / 128;
  const std::int64_t group = chunks % 8 == 0 ? 8 : chunks % 4 == 0 ? 4 : chunks % 2 == 0 ? 2 : 1;
  const std::int64_t chunk = (bit / 128) ^ (slot * group / 8 % group);
  return (head * page_size + slot) * row_bits + chunk * 128 + bit % 128;
}

std::int64_t key_bit(const KvLayout& layout, std::int64_t head, std::int64_t slot, std::int64_t dim) {
  const auto& [layers, heads, head_dim, page_size] = layout.geometry();
  const std::int64_t width = bits(layout.format().key);
  if (layout.order() == PageOrder::cuda) return cuda_bit(head_dim * width, page_size, head, slot, dim * width);
  return ((head * head_dim + dim) * page_size + slot) * width;
}

std::int64_t value_bit(const KvLayout& layout, std::int64_t head, std::int64_t slot, std::int64_t dim) {
  const auto& [layers, heads, head_dim, page_size] = layout.geometry();
  const std::int64_t width = bits(layout.format().value);
  if (layout.order() == PageOrder::cuda) return cuda_bit(head_dim * width, page_size, head, slot, dim * width);
  return ((head * page_size + slot) * head_dim + dim) * width;
}

std::int64_t parameters_byte(const KvLayout& layout, std::int64_t head, std::int64_t slot) {
  const auto& [layers, heads, head_dim, page_size] = layout.geometry();
  return heads * page_size * head_dim / 2 + (head * page_size + slot) * 4;
}

std::uint32_t get(std::span<const std::byte> bytes, std::int64_t bit, int width) {
  std::uint32_t code = 0;
  if (width == 4) return static_cast<std::uint32_t>(bytes[static_cast<std::size_t>(bit / 8)]) >> bit % 8 & 15u;
  std::memcpy(&code, bytes.data() + bit / 8, static_cast<std::size_t>(width / 8));
  return code;
}

void put(std::span<std::byte> bytes, std::int64_t bit, int width, std::uint32_t code) {
  if (width == 4) {
    std::byte& pair = bytes[static_cast<std::size_t>(bit / 8)];
    const int shift = static_cast<int>(bit % 8);
    pair = (pair & ~std::byte(15 << shift)) | std::byte(code << shift);
    return;
  }
  std::memcpy(bytes.data() + bit / 8, &code, static_cast<std::size_t>(width / 8));
}

// One head's values as 4-bit codes; the last two numbers of `parameters` are its scale and zero.
void encode_u4(std::span<const float> v, std::vector<std::uint32_t>& codes, std::vector<std::uint32_t>& parameters) {
  const auto [least, most] = std::minmax_element(v.begin(), v.end());
  const bool finite = std::all_of(v.begin(), v.end(), [](float x) { return std::isfinite(x); });
  const std::uint32_t zero = encode_stored(DType::f16, finite ? *least + 0.0f : nan_number());
  const std::uint32_t scale = encode_stored(DType::f16, finite ? (*most - *least) / 15.0f : nan_number());
  const double zero_number = decode_stored(DType::f16, zero), scale_number = decode_stored(DType::f16, scale);
  const bool lost = !std::isfinite(zero_number) || !std::isfinite(scale_number);
  for (const float x : v) {
    const double code = lost || scale_number == 0 ? 0 : std::nearbyint((x - zero_number) / scale_number);
    codes.push_back(static_cast<std::uint32_t>(std::clamp(code, 0.0, 15.0)));
  }
  parameters.push_back(lost ? 0 : scale);
  parameters.push_back(lost ? encode_stored(DType::f16, nan_number()) : zero);
}

}  // namespace

double decode_stored(DType type, std::uint32_t code) {
  const FloatShape shape = shape_of(type);
  const bool negative = code >> (shape.bits - 1) & 1u;
  const std::uint32_t top = (1u << (shape.bits - 1 - shape.mantissa)) - 1;
  const std::uint32_t exponent = code >> shape.mantissa & top, fraction = code & ((1u << shape.mantissa) - 1);
  if (type == DType::e4m3) {
    if (exponent == top && fraction == 7) return nan_number();
  } else if (exponent == top) {
    return fraction != 0 ? nan_number() : negative ? -INFINITY : INFINITY;
  }
  const double number = exponent == 0 ? std::ldexp(fraction, shape.least - shape.mantissa)
                                      : std::ldexp((1u << shape.mantissa) + fraction, shape.least + static_cast<int>(exponent) - 1 - shape.mantissa);
  return negative ? -number : number;
}

std::uint32_t encode_stored(DType type, double x) { return encode(type, x, true); }
std::uint32_t encode_truncated(DType type, double x) { return encode(type, x, false); }

bool same_stored(DType type, std::uint32_t a, std::uint32_t b) {
  return a == b || (std::isnan(decode_stored(type, a)) && std::isnan(decode_stored(type, b)));
}

StoredToken encode_token(const KvLayout& layout, std::span<const float> k, std::span<const float> v, const float* key_scales, const float* value_scales) {
  const std::int64_t heads = layout.geometry().kv_heads, head_dim = layout.geometry().head_dim;
  StoredToken token;
  for (std::int64_t head = 0; head < heads; ++head) {
    // The contract divides in f32: value / scale is rounded once before the type's own rounding.
    const auto scaled = [&](float x, const float* scales) { return static_cast<double>(x / scales[head]); };
    const auto of_head = [&](std::span<const float> all) { return all.subspan(static_cast<std::size_t>(head * head_dim), static_cast<std::size_t>(head_dim)); };
    for (const float x : of_head(k)) token.keys.push_back(encode_stored(layout.format().key, scaled(x, key_scales)));
    if (layout.format().value == DType::u4) {
      encode_u4(of_head(v), token.values, token.value_parameters);
    } else {
      for (const float x : of_head(v)) token.values.push_back(encode_stored(layout.format().value, scaled(x, value_scales)));
    }
  }
  return token;
}

std::string difference(const KvLayout& layout, const StoredToken& found, const StoredToken& owed, std::span<const float> v) {
  const std::int64_t head_dim = layout.geometry().head_dim;
  const auto where = [&](std::size_t i, const char* side, std::uint32_t a, std::uint32_t b) {
    const auto at = static_cast<std::int64_t>(i);
    return fmt::format("{} of head {}, dimension {}: stored {:#x}, owed {:#x}", side, at / head_dim, at % head_dim, a, b);
  };
  for (std::size_t i = 0; i < owed.keys.size(); ++i) {
    if (!same_stored(layout.format().key, found.keys[i], owed.keys[i])) return where(i, "key", found.keys[i], owed.keys[i]);
  }
  const bool u4 = layout.format().value == DType::u4;
  for (std::size_t i = 0; i < owed.value_parameters.size(); ++i) {
    if (!same_stored(DType::f16, found.value_parameters[i], owed.value_parameters[i])) {
      return fmt::format("{} of head {}: stored {:#x}, owed {:#x}", i % 2 == 0 ? "scale" : "zero", i / 2, found.value_parameters[i], owed.value_parameters[i]);
    }
  }
  for (std::size_t i = 0; i < owed.values.size(); ++i) {
    const std::uint32_t a = found.values[i], b = owed.values[i];
    if (!u4 ? same_stored(layout.format().value, a, b) : a == b) continue;
    if (u4 && !v.empty() && (a > b ? a - b : b - a) == 1) {
      const std::size_t head = i / static_cast<std::size_t>(head_dim);
      const double scale = decode_stored(DType::f16, owed.value_parameters[2 * head]), zero = decode_stored(DType::f16, owed.value_parameters[2 * head + 1]);
      const double place = (v[i] - zero) / scale;
      if (std::abs(place - std::floor(place) - 0.5) < 1e-5 * std::max(1.0, std::abs(place))) continue;  // f32 cannot tell
    }
    return where(i, "value", a, b);
  }
  return {};
}

StoredToken read_token(const KvLayout& layout, std::span<const std::byte> keys, std::span<const std::byte> values, std::int64_t slot) {
  const std::int64_t heads = layout.geometry().kv_heads, head_dim = layout.geometry().head_dim;
  StoredToken token;
  for (std::int64_t head = 0; head < heads; ++head) {
    for (std::int64_t dim = 0; dim < head_dim; ++dim) {
      token.keys.push_back(get(keys, key_bit(layout, head, slot, dim), bits(layout.format().key)));
      token.values.push_back(get(values, value_bit(layout, head, slot, dim), bits(layout.format().value)));
    }
    if (layout.format().value != DType::u4) continue;
    for (int i = 0; i < 2; ++i) token.value_parameters.push_back(get(values, (parameters_byte(layout, head, slot) + 2 * i) * 8, 16));
  }
  return token;
}

void write_token(const KvLayout& layout, std::span<std::byte> keys, std::span<std::byte> values, std::int64_t slot, const StoredToken& token) {
  const std::int64_t heads = layout.geometry().kv_heads, head_dim = layout.geometry().head_dim;
  for (std::int64_t head = 0; head < heads; ++head) {
    for (std::int64_t dim = 0; dim < head_dim; ++dim) {
      const auto i = static_cast<std::size_t>(head * head_dim + dim);
      put(keys, key_bit(layout, head, slot, dim), bits(layout.format().key), token.keys[i]);
      put(values, value_bit(layout, head, slot, dim), bits(layout.format().value), token.values[i]);
    }
    if (layout.format().value != DType::u4) continue;
    for (int i = 0; i < 2; ++i) {
      put(values, (parameters_byte(layout, head, slot) + 2 * i) * 8, 16, token.value_parameters[static_cast<std::size_t>(2 * head + i)]);
    }
  }
}

std::vector<double> key_numbers(const KvLayout& layout, const StoredToken& token, const float* key_scales) {
  std::vector<double> numbers;
  for (std::size_t i = 0; i < token.keys.size(); ++i) {
    numbers.push_back(decode_stored(layout.format().key, token.keys[i]) * key_scales[i / static_cast<std::size_t>(layout.geometry().head_dim)]);
  }
  return numbers;
}

std::vector<double> value_magnitudes(const KvLayout& layout, const StoredToken& token, const float* value_scales) {
  std::vector<double> magnitudes = value_numbers(layout, token, value_scales);
  for (std::size_t i = 0; i < magnitudes.size(); ++i) {
    magnitudes[i] = std::abs(magnitudes[i]);
    if (layout.format().value != DType::u4) continue;
    const std::size_t head = i / static_cast<std::size_t>(layout.geometry().head_dim);
    magnitudes[i] = std::abs(decode_stored(DType::f16, token.value_parameters[2 * head + 1])) + std::abs(decode_stored(DType::f16, token.value_parameters[2 * head])) * token.values[i];
  }
  return magnitudes;
}

std::vector<double> value_numbers(const KvLayout& layout, const StoredToken& token, const float* value_scales) {
  std::vector<double> numbers;
  for (std::size_t i = 0; i < token.values.size(); ++i) {
    const std::size_t head = i / static_cast<std::size_t>(layout.geometry().head_dim);
    if (layout.format().value == DType::u4) {
      const double scale = decode_stored(DType::f16, token.value_parameters[2 * head]), zero = decode_stored(DType::f16, token.value_parameters[2 * head + 1]);
      numbers.push_back(zero + scale * token.values[i]);
    } else {
      numbers.push_back(decode_stored(layout.format().value, token.values[i]) * value_scales[head]);
    }
  }
  return numbers;
}

}  // namespace keel
