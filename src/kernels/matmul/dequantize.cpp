// The plain reference of every weight encoding: one row, one element at a time.
//
// Each product below is exact in f32 (an 11-bit scale times at most 13 further bits), so that the only rounding of an
// element is that of one addition, and any faster code gives the same bits with or without fused multiply-add.
#include <cstring>

#include "base/dtype.h"
#include "base/error.h"
#include "kernels/matmul/matmul.h"

namespace keel {
namespace {

using Byte = std::uint8_t;

template <class T>
T load(const Byte* at) {
  T value;
  std::memcpy(&value, at, sizeof(T));
  return value;
}

float load_half(const Byte* at) {
  return to_float(load<Half>(at));
}

void q8_0(const Byte* block, float* out) {  // d f16, 32 codes i8
  const float d = load_half(block);
  for (int i = 0; i < 32; ++i) out[i] = d * static_cast<std::int8_t>(block[2 + i]);
}

void q4_0(const Byte* block,
          float* out) {  // d f16, 16 bytes: low nibbles are elements 0…15, high ones 16…31
  const float d = load_half(block);
  for (int i = 0; i < 16; ++i) {
    out[i] = d * static_cast<float>((block[2 + i] & 15) - 8);
    out[i + 16] = d * static_cast<float>((block[2 + i] >> 4) - 8);
  }
}

void q4_1(const Byte* block, float* out) {  // d f16, m f16, 16 bytes as q4_0
  const float d = load_half(block);
  const float m = load_half(block + 2);
  for (int i = 0; i < 16; ++i) {
    out[i] = d * static_cast<float>(block[4 + i] & 15) + m;
    out[i + 16] = d * static_cast<float>(block[4 + i] >> 4) + m;
  }
}

// Eight 6-bit scales and eight 6-bit minima in 12 bytes: pair j < 4 in the low six bits of bytes j and j + 4; of pair
// j >= 4, the low four bits in the nibbles of byte j + 4 and the high two on top of bytes j - 4 and j.
struct ScaleAndMinimum {
  float scale, minimum;
};
ScaleAndMinimum k_scale(const Byte* packed, int j) {
  if (j < 4) return {static_cast<float>(packed[j] & 63), static_cast<float>(packed[j + 4] & 63)};
  return {static_cast<float>((packed[j + 4] & 15) | (packed[j - 4] >> 6 << 4)),
          static_cast<float>((packed[j + 4] >> 4) | (packed[j] >> 6 << 4))};
}

void q4_k(const Byte* block, float* out) {  // d f16, dmin f16, 12 scale bytes, 4 · 32 bytes
  const float d = load_half(block);
  const float dmin = load_half(block + 2);
  for (int sub = 0; sub < 8;
       ++sub) {  // 32 bytes hold sub-block 2n in their low nibbles, 2n + 1 in their high ones
    const auto [scale, minimum] = k_scale(block + 4, sub);
    const Byte* codes = block + 16 + sub / 2 * 32;
    for (int i = 0; i < 32; ++i) {
      const int code = sub % 2 == 0 ? codes[i] & 15 : codes[i] >> 4;
      out[sub * 32 + i] = d * scale * static_cast<float>(code) - dmin * minimum;
    }
  }
}

void q5_k(const Byte* block,
          float* out) {  // as q4_k, with the fifth bits (bit `sub` of 32 bytes) before the nibbles
  const float d = load_half(block);
  const float dmin = load_half(block + 2);
  for (int sub = 0; sub < 8; ++sub) {
    const auto [scale, minimum] = k_scale(block + 4, sub);
    const Byte* high = block + 16;
    const Byte* codes = block + 48 + sub / 2 * 32;
    for (int i = 0; i < 32; ++i) {
      const int low = sub % 2 == 0 ? codes[i] & 15 : codes[i] >> 4;
      const int code = low | ((high[i] >> sub & 1) << 4);
      out[sub * 32 + i] = d * scale * static_cast<float>(code) - dmin * minimum;
    }
  }
}

// 128 bytes of low nibbles, 64 of high pairs, 16 scales i8 (one for 16 elements), d f16. Each half of 128 elements is four
// runs of 32; run r takes nibble r / 2 of bytes 32 · (r % 2) + i and bit pair r of high byte i.
void q6_k(const Byte* block, float* out) {
  const float d = load_half(block + 208);
  for (int half = 0; half < 2; ++half) {
    const Byte* low = block + half * 64;
    const Byte* high = block + 128 + half * 32;
    for (int run = 0; run < 4; ++run) {
      for (int i = 0; i < 32; ++i) {
        const int nibble = low[run % 2 * 32 + i] >> (run / 2 * 4) & 15;
        const int code = (nibble | ((high[i] >> (run * 2) & 3) << 4)) - 32;
        const auto scale = static_cast<std::int8_t>(block[192 + half * 8 + run * 2 + i / 16]);
        out[half * 128 + run * 32 + i] = d * static_cast<float>(scale) * static_cast<float>(code);
      }
    }
  }
}

void awq4(const WeightMatrix& weights, std::int64_t row, float* out) {
  constexpr int kNibbleOfRow[8] = {0, 4, 1, 5, 2, 6, 3, 7};  // inverse of {0, 2, 4, 6, 1, 3, 5, 7}
  const auto* codes = reinterpret_cast<const Byte*>(weights.data);
  const auto* zeros = reinterpret_cast<const Byte*>(weights.awq_zeros);
  const auto* scales = reinterpret_cast<const Byte*>(weights.awq_scales);
  const int shift = kNibbleOfRow[row % 8] * 4;
  const std::int64_t words = weights.awq_row_stride / 8;
  for (std::int64_t k = 0; k < weights.columns; ++k) {
    const std::int64_t group = k / 128;
    const auto code = load<std::uint32_t>(codes + (k * words + row / 8) * 4) >> shift & 15;
    const auto zero = load<std::uint32_t>(zeros + (group * words + row / 8) * 4) >> shift & 15;
    const float scale = load_half(scales + (group * weights.awq_row_stride + row) * 2);
    out[k] = static_cast<float>(static_cast<int>(code) - static_cast<int>(zero)) * scale;
  }
}

}  // namespace

void dequantize_row(const WeightMatrix& weights, std::int64_t row, float* out) {
  check(row >= 0 && row < weights.rows, "dequantize_row: the row exists");
  check(weights.columns % block_elements(weights.type) == 0, "columns are whole blocks");
  if (weights.type == WeightType::awq4) return awq4(weights, row, out);

  const auto* data = reinterpret_cast<const Byte*>(weights.data) + row * weights.row_bytes();
  const std::int64_t step = block_elements(weights.type);
  const std::int64_t bytes = block_bytes(weights.type);
  for (std::int64_t k = 0; k < weights.columns; k += step, data += bytes) {
    switch (weights.type) {
      case WeightType::f32:
        out[k] = load<float>(data);
        break;
      case WeightType::f16:
        out[k] = load_half(data);
        break;
      case WeightType::bf16:
        out[k] = to_float(load<Bf16>(data));
        break;
      case WeightType::q8_0:
        q8_0(data, out + k);
        break;
      case WeightType::q4_0:
        q4_0(data, out + k);
        break;
      case WeightType::q4_1:
        q4_1(data, out + k);
        break;
      case WeightType::q4_k:
        q4_k(data, out + k);
        break;
      case WeightType::q5_k:
        q5_k(data, out + k);
        break;
      case WeightType::q6_k:
        q6_k(data, out + k);
        break;
      case WeightType::awq4:
        break;
    }
  }
}

}  // namespace keel
