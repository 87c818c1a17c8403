#include "base/dtype.h"

#include <cmath>
#include <utility>

namespace keel {

std::string_view name(DType type) {
  switch (type) {
    case DType::f32: return "f32";
    case DType::f16: return "f16";
    case DType::bf16: return "bf16";
    case DType::e4m3: return "fp8_e4m3";
    case DType::u4: return "u4";
  }
  return "?";
}

std::optional<DType> parse_dtype(std::string_view text) {
  constexpr std::pair<std::string_view, DType> kNames[] = {
      {"f32", DType::f32},       {"float32", DType::f32},     {"f16", DType::f16},
      {"fp16", DType::f16},      {"float16", DType::f16},     {"half", DType::f16},
      {"bf16", DType::bf16},     {"bfloat16", DType::bf16},   {"fp8", DType::e4m3},
      {"fp8_e4m3", DType::e4m3}, {"e4m3", DType::e4m3},       {"u4", DType::u4},
      {"int4", DType::u4},       {"q4", DType::u4},
  };
  for (auto [word, type] : kNames) {
    if (word == text) return type;
  }
  return std::nullopt;
}

float to_float(Half value) {
  const std::uint32_t raw = static_cast<std::uint16_t>(value);
  const std::uint32_t sign = (raw & 0x8000u) << 16;
  const std::uint32_t exponent = (raw >> 10) & 0x1f;
  const std::uint32_t mantissa = raw & 0x3ff;
  if (exponent == 0x1f) return std::bit_cast<float>(sign | 0x7f800000u | (mantissa << 13));
  if (exponent == 0) {  // zero and subnormals: mantissa · 2^-24
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
    return sign ? -magnitude : magnitude;
  }
  return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
}

namespace {

// Rounds |value| < 2^(max exponent + 1) to `mantissa_bits` with least exponent `min_exponent`, in units of the grid step.
// The magic addition makes the FPU do the rounding (to nearest even), for normals and subnormals alike.
float round_to_grid(float magnitude, int mantissa_bits, int min_exponent) {
  const int exponent = static_cast<int>(std::bit_cast<std::uint32_t>(magnitude) >> 23) - 127;
  const int step = (exponent < min_exponent ? min_exponent : exponent) - mantissa_bits;
  const float scaled = std::ldexp(magnitude, -step);  // exact: below 2^(mantissa_bits + 1)
  return std::ldexp(std::nearbyint(scaled), step);
}

}  // namespace

Half to_half(float value) {
  const std::uint32_t raw = std::bit_cast<std::uint32_t>(value);
  const std::uint16_t sign = static_cast<std::uint16_t>((raw >> 16) & 0x8000u);
  const std::uint32_t magnitude = raw & 0x7fffffffu;
  if (magnitude > 0x7f800000u) {  // NaN keeps its upper payload and becomes quiet, as F16C does
    return Half(static_cast<std::uint16_t>(sign | 0x7e00u | ((magnitude >> 13) & 0x3ffu)));
  }
  if (magnitude >= 0x477ff000u) return Half(static_cast<std::uint16_t>(sign | 0x7c00u));  // ≥ 65520
  const float rounded = round_to_grid(std::bit_cast<float>(magnitude), 10, -14);
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(rounded);
  if (rounded < 0x1p-14f) {
    return Half(static_cast<std::uint16_t>(sign | static_cast<std::uint16_t>(rounded * 0x1p24f)));
  }
  return Half(static_cast<std::uint16_t>(sign | ((bits - (112u << 23)) >> 13)));
}

Bf16 to_bf16(float value) {
  const std::uint32_t raw = std::bit_cast<std::uint32_t>(value);
  if ((raw & 0x7fffffffu) > 0x7f800000u) return Bf16(static_cast<std::uint16_t>((raw >> 16) | 0x40u));
  return Bf16(static_cast<std::uint16_t>((raw + 0x7fffu + ((raw >> 16) & 1u)) >> 16));
}

float to_float(E4m3 value) {
  const std::uint32_t raw = static_cast<std::uint8_t>(value);
  const std::uint32_t exponent = (raw >> 3) & 0xf;
  const std::uint32_t mantissa = raw & 0x7;
  float magnitude;
  if ((raw & 0x7f) == 0x7f) {
    magnitude = std::bit_cast<float>(0x7fc00000u);
  } else if (exponent == 0) {
    magnitude = static_cast<float>(mantissa) * 0x1p-9f;
  } else {
    magnitude = std::bit_cast<float>(((exponent + 120) << 23) | (mantissa << 20));
  }
  return raw & 0x80 ? -magnitude : magnitude;
}

E4m3 to_e4m3(float value) {
  const std::uint32_t raw = std::bit_cast<std::uint32_t>(value);
  const std::uint8_t sign = static_cast<std::uint8_t>((raw >> 24) & 0x80u);
  const std::uint32_t magnitude = raw & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return E4m3(static_cast<std::uint8_t>(sign | 0x7fu));
  if (magnitude >= 0x43e00000u) return E4m3(static_cast<std::uint8_t>(sign | 0x7eu));  // ≥ 448
  const float rounded = round_to_grid(std::bit_cast<float>(magnitude), 3, -6);
  if (rounded >= 448.0f) return E4m3(static_cast<std::uint8_t>(sign | 0x7eu));
  if (rounded < 0x1p-6f) {
    return E4m3(static_cast<std::uint8_t>(sign | static_cast<std::uint8_t>(rounded * 0x1p9f)));
  }
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(rounded);
  return E4m3(static_cast<std::uint8_t>(sign | ((bits - (120u << 23)) >> 20)));
}

}  // namespace keel
