// The element types that cached keys and values, scales and plain tensors may have, and their exact conversions.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string_view>

namespace keel {

// u4: unsigned 4-bit with a 16-bit scale and zero per token and head (values only; see kv/layout.h).
enum class DType : std::uint8_t { f32, f16, bf16, e4m3, u4 };

std::string_view name(DType type);                      // "f32", "f16", "bf16", "fp8_e4m3", "u4"
std::optional<DType> parse_dtype(std::string_view text);  // also float16, bfloat16, float32, fp8, e4m3, int4
constexpr int bits(DType type) {
  switch (type) {
    case DType::f32: return 32;
    case DType::f16:
    case DType::bf16: return 16;
    case DType::e4m3: return 8;
    case DType::u4: return 4;
  }
  return 0;
}

// Storage-only 16-bit and 8-bit floats. Distinct types, so that no overload confuses them with integers.
enum class Half : std::uint16_t {};
enum class Bf16 : std::uint16_t {};
enum class E4m3 : std::uint8_t {};  // OCP E4M3FN: no infinity, NaN 0x7F/0xFF, largest 448, smallest 2^-9

// Round to nearest, ties to even. f16 overflows to infinity; e4m3 saturates to ±448 and keeps NaN as 0x7F with the sign.
Half to_half(float value);
Bf16 to_bf16(float value);
E4m3 to_e4m3(float value);

// Exact.
float to_float(Half value);
float to_float(E4m3 value);
inline float to_float(Bf16 value) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(value) << 16);
}
inline float to_float(float value) { return value; }

}  // namespace keel
