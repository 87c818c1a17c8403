// AutoAWQ's packing: eight rows share each 32-bit word and consecutive columns lie a whole matrix row apart, so it is no row
// format.
#if defined(KEEL_KERNELS_MATMUL_AWQ4_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KEEL_KERNELS_MATMUL_AWQ4_INL_H_
#undef KEEL_KERNELS_MATMUL_AWQ4_INL_H_
#else
#define KEEL_KERNELS_MATMUL_AWQ4_INL_H_
#endif

#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "kernels/matmul/product.h"
#include "kernels/matmul/vectors-inl.h"

HWY_BEFORE_NAMESPACE();
namespace keel::HWY_NAMESPACE {

// w = scale · code + offset for 4-bit codes. With 16 lanes the 16 possible results are one register, and looking them up needs neither mask
// nor conversion nor multiplication: vpermps reads just the low four bits of an index.
#if HWY_TARGET <= HWY_AVX3
struct NibbleMap {
  V values;
  static HWY_INLINE NibbleMap make(V scale, V offset) {
    return {hn::MulAdd(hn::Iota(FloatTag(), 0.0f), scale, offset)};
  }
  HWY_INLINE V low(VInt bytes) const { return V{_mm512_permutexvar_ps(bytes.raw, values.raw)}; }
  HWY_INLINE V shifted(VInt bytes, int shift) const {
    return low(hn::ShiftRightSame(bytes, shift));
  }
};
#else
struct NibbleMap {
  V scale, offset;
  static HWY_INLINE NibbleMap make(V scale, V offset) { return {scale, offset}; }
  HWY_INLINE V low(VInt bytes) const {
    const VInt code = hn::And(bytes, hn::Set(IntTag(), 15));
    return hn::MulAdd(hn::ConvertTo(FloatTag(), code), scale, offset);
  }
  HWY_INLINE V shifted(VInt bytes, int shift) const {
    return low(hn::ShiftRightSame(bytes, shift));
  }
};
#endif

// Rows `row`… decoded to out[rows][columns]. Eight rows share each word, so a run of kLanes columns of a word column decodes to
// a vector of each of eight rows. The words are first transposed into `words`, [8-row group][column], since consecutive columns
// lie a whole matrix row apart.
inline void decode_awq4(const WeightMatrix& w,
                        std::int64_t row,
                        std::int64_t rows,
                        std::int64_t column,
                        std::int64_t columns,
                        std::uint32_t* words,
                        float* out) {
  constexpr int kRowOfNibble[8] = {0, 2, 4, 6, 1, 3, 5, 7};
  const auto* data = reinterpret_cast<const Byte*>(w.data);
  const auto* zeros = reinterpret_cast<const Byte*>(w.awq_zeros);
  const auto* scales = reinterpret_cast<const Byte*>(w.awq_scales);
  const std::int64_t stride = w.awq_row_stride / 8;  // words
  const std::int64_t groups_of_rows = rows / 8;
  for (std::int64_t k = 0; k < columns; ++k) {
    const Byte* from = data + ((column + k) * stride + row / 8) * 4;
    for (std::int64_t g = 0; g < groups_of_rows; ++g) {
      std::memcpy(words + g * columns + k, from + g * 4, 4);
    }
  }
  for (std::int64_t g = 0; g < groups_of_rows; ++g) {
    for (std::int64_t k = 0; k < columns; k += 128) {
      const std::int64_t group = (column + k) / 128;
      std::uint32_t zero_word;
      std::memcpy(&zero_word, zeros + (group * stride + row / 8 + g) * 4, 4);
      for (int nibble = 0; nibble < 8; ++nibble) {
        const std::int64_t r = g * 8 + kRowOfNibble[nibble];
        const V scale = broadcast_half(scales + (group * w.awq_row_stride + row + r) * 2);
        const float zero = -static_cast<float>(zero_word >> (nibble * 4) & 15);
        const auto map = NibbleMap::make(scale, hn::Mul(scale, hn::Set(FloatTag(), zero)));
        for (std::int64_t i = k; i < k + 128; i += kLanes) {
          const VInt codes =
              load<std::int32_t>(reinterpret_cast<const Byte*>(words + g * columns + i));
          hn::StoreU(map.shifted(codes, nibble * 4), FloatTag(), out + r * columns + i);
        }
      }
    }
  }
}

// One token: lanes are words, so that nibble i of kLanes words is a vector of rows 8 · lane + kRowOfNibble[i], and a column's
// words are read once, in order. Within a group (code - zero) · x is summed, the scale applied to the sum.
inline void multiply_token_awq4(const Product& p,
                                std::int64_t token,
                                std::int64_t first,
                                std::int64_t words) {
  constexpr int kRowOfNibble[8] = {0, 2, 4, 6, 1, 3, 5, 7};
  const FloatTag tag;
  const WeightMatrix& w = p.weights;
  const std::int64_t stride = w.awq_row_stride / 2;  // bytes between columns
  const auto* codes = reinterpret_cast<const Byte*>(w.data) + first / 2;
  const auto* zeros = reinterpret_cast<const Byte*>(w.awq_zeros) + first / 2;
  const auto* scales = reinterpret_cast<const Byte*>(w.awq_scales) + first * 2;
  const float* x = p.x + token * p.x_stride;
  const bool is_whole = words == kLanes;
  const auto load_words = [&](const Byte* from) HWY_ATTR {
    if (is_whole) return load<std::int32_t>(from);
    Byte padded[kLanes * 4] = {};
    std::memcpy(padded, from, static_cast<std::size_t>(words * 4));
    return load<std::int32_t>(padded);
  };
  const auto unit = NibbleMap::make(hn::Set(tag, 1.0f), hn::Zero(tag));
  alignas(64) float row_scales[8 * kLanes], lane_scales[8][kLanes], results[8][kLanes];
  V totals[8];
  for (V& total : totals) total = hn::Zero(tag);

  for (std::int64_t k = 0; k < w.columns; zeros += stride, scales += w.awq_row_stride * 2) {
    V zero[8], sums[8];
    const VInt zero_words = load_words(zeros);
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) {
      zero[i] = unit.shifted(zero_words, i * 4);
      sums[i] = hn::Zero(tag);
    }
    for (const std::int64_t end = k + 128; k < end; ++k, codes += stride) {
      hwy::Prefetch(codes + 16 * stride);
      const VInt column = load_words(codes);
      const V activation = hn::Set(tag, x[k]);
#pragma GCC unroll 8
      for (int i = 0; i < 8; ++i) {
        sums[i] = hn::MulAdd(hn::Sub(unit.shifted(column, i * 4), zero[i]), activation, sums[i]);
      }
    }
    Byte halves[8 * kLanes * 2] = {};
    std::memcpy(halves, scales, static_cast<std::size_t>(words * 16));
    for (int i = 0; i < 8; ++i) {
      const auto raw = hn::BitCast(HalfTag(), load<std::uint16_t>(halves + i * kLanes * 2));
      hn::StoreU(hn::PromoteTo(tag, raw), tag, row_scales + i * kLanes);
    }
    for (int i = 0; i < 8; ++i) {
      for (int lane = 0; lane < kLanes; ++lane)
        lane_scales[i][lane] = row_scales[8 * lane + kRowOfNibble[i]];
      totals[i] = hn::MulAdd(hn::LoadU(tag, lane_scales[i]), sums[i], totals[i]);
    }
  }
  for (int i = 0; i < 8; ++i) hn::StoreU(totals[i], tag, results[i]);
  float* out = p.out + token * p.out_stride + first;
  for (std::int64_t lane = 0; lane < words; ++lane) {
    for (int i = 0; i < 8; ++i) {
      const std::int64_t r = 8 * lane + kRowOfNibble[i];
      const float total = results[i][lane] + (p.bias != nullptr ? p.bias[first + r] : 0.0f);
      out[r] = p.accumulate ? out[r] + total : total;
    }
  }
}

}  // namespace keel::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
