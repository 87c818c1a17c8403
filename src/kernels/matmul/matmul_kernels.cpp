// Products in f32: weights that are not quantised, and AWQ's. Compiled once for each instruction set.
//
// One tile does all the work: R rows against T tokens, vectors running along the columns of both, R · T accumulators in
// registers, one horizontal sum at the end. Nothing is repacked: weights and activations are both contiguous along columns.
//   few tokens:  the tile decodes the weights as it goes, each weight once for up to 8 tokens.
//   many tokens: a block of rows is decoded once into scratch that stays in the second-level cache, and the tile reads it
//                as plain f32 for all tokens, so that decoding costs a few percent.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/matmul/matmul_kernels.cpp"
// AVX3_DL's additions serve nothing here; AVX3 runs in its place.
#ifndef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_AVX3_DL)
#endif
#include "kernels/cpu_targets.h"

#include <hwy/foreach_target.h>

#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include <algorithm>

#include "base/error.h"
#include "device/buffer.h"
#include "kernels/matmul/awq4-inl.h"
#include "kernels/matmul/product.h"
#include "kernels/matmul/row_formats-inl.h"

#ifndef KEEL_KERNELS_MATMUL_SCRATCH
#define KEEL_KERNELS_MATMUL_SCRATCH
namespace keel {

// Per thread, allocated at its first use and kept: 256 KiB of decoded weights and 32 KiB of transposed AWQ words.
constexpr std::int64_t kScratchElements = 64 * 1024;
constexpr std::int64_t kMaxBlockColumns =
    2048;  // of one decoded block; longer rows are summed in several passes
struct Scratch {
  Buffer<float> weights{kScratchElements, "decoded weights"};
  Buffer<std::uint32_t> words{kScratchElements / 8, "transposed AWQ words"};
};
inline Scratch& scratch() {
  thread_local Scratch buffers;
  return buffers;
}

}  // namespace keel
#endif

HWY_BEFORE_NAMESPACE();
namespace keel::HWY_NAMESPACE {

// A constant in this namespace, since the pragma below cannot depend on a template.
constexpr int kUnroll = kLanes >= 8 ? 8 : 1;

// Keeps a loaded value in a register: compilers else repeat the load as an operand of each multiply-add, and with 64-byte
// vectors a core loads no faster than it multiplies.
HWY_INLINE void keep_in_register([[maybe_unused]] V& value) {
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3
  asm("" : "+v"(value.raw));
#endif
}

// A run of R rows against T tokens.
template <class Format, int R, int T>
HWY_INLINE void multiply_run(const Byte* row,
                             std::int64_t row_bytes,
                             const float* const (&x)[T],
                             std::int64_t column,
                             V (&sums)[R][T]) {
#pragma GCC unroll kUnroll
  for (int vector = 0; vector < kVectors; ++vector) {
    V activations[T];
#pragma GCC unroll 8
    for (int t = 0; t < T; ++t) {
      activations[t] = hn::LoadU(FloatTag(), x[t] + column + vector * kLanes);
      if constexpr (R > 1) keep_in_register(activations[t]);
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const V w = Format::load(row + r * row_bytes + vector * kLanes * Format::kBytes);
#pragma GCC unroll 8
      for (int t = 0; t < T; ++t) sums[r][t] = hn::MulAdd(w, activations[t], sums[r][t]);
    }
  }
}

// The sums of all lanes of four vectors.
HWY_INLINE void sum_lanes(V a, V b, V c, V d, float* out) {
  [[maybe_unused]] const FloatTag tag;
  if constexpr (kLanes == 1) {
    out[0] = hn::GetLane(a);
    out[1] = hn::GetLane(b);
    out[2] = hn::GetLane(c);
    out[3] = hn::GetLane(d);
  } else {
#if HWY_TARGET != HWY_SCALAR
    // Within each 128-bit block: a0+a2 c0+c2 a1+a3 c1+c3, the same of b and d, then a b c d.
    const V ac = hn::Add(hn::InterleaveLower(tag, a, c), hn::InterleaveUpper(tag, a, c));
    const V bd = hn::Add(hn::InterleaveLower(tag, b, d), hn::InterleaveUpper(tag, b, d));
    const V abcd = hn::Add(hn::InterleaveLower(tag, ac, bd), hn::InterleaveUpper(tag, ac, bd));
    if constexpr (kLanes == 16) {
      const hn::Half<FloatTag> half;
      const hn::Half<decltype(half)> quarter;
      const auto eight = hn::Add(hn::LowerHalf(half, abcd), hn::UpperHalf(half, abcd));
      hn::StoreU(
          hn::Add(hn::LowerHalf(quarter, eight), hn::UpperHalf(quarter, eight)), quarter, out);
    } else if constexpr (kLanes == 8) {
      const hn::Half<FloatTag> half;
      hn::StoreU(hn::Add(hn::LowerHalf(half, abcd), hn::UpperHalf(half, abcd)), half, out);
    } else {
      hn::StoreU(abcd, tag, out);
    }
#endif
  }
}

struct Destination {
  float* out;  // of the tile's first row and token
  std::int64_t out_stride;
  const float* bias;  // of the first row, or null
  bool accumulate;
  int rows, tokens;  // to write; the rest of the tile is repetition
};

template <int R, int T>
HWY_INLINE void write_tile(const V (&sums)[R][T], const Destination& to) {
  constexpr int kPadded = (R * T + 3) / 4 * 4;
  float totals[kPadded];  // [T][R]
#pragma GCC unroll 16
  for (int i = 0; i < kPadded; i += 4) {
    constexpr int kLast = R * T - 1;
    const int i1 = std::min(i + 1, kLast), i2 = std::min(i + 2, kLast), i3 = std::min(i + 3, kLast);
    sum_lanes(sums[i % R][i / R],
              sums[i1 % R][i1 / R],
              sums[i2 % R][i2 / R],
              sums[i3 % R][i3 / R],
              totals + i);
  }
  for (int t = 0; t < to.tokens; ++t) {
    float* out = to.out + t * to.out_stride;
    for (int r = 0; r < to.rows; ++r) {
      float total = totals[t * R + r];
      if (to.bias != nullptr) total += to.bias[r];
      out[r] = to.accumulate ? out[r] + total : total;
    }
  }
}

// R rows from `row` on (`row_bytes` apart, 0 to repeat one) times T tokens over `columns` columns.
template <class Format, int R, int T>
HWY_NOINLINE void multiply_tile(const Byte* row,
                                std::int64_t row_bytes,
                                const float* const* x_rows,
                                std::int64_t columns,
                                const Destination& to) {
  const float* x[T];
#pragma GCC unroll 8
  for (int t = 0; t < T; ++t) x[t] = x_rows[t];
  V sums[R][T];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int t = 0; t < T; ++t) sums[r][t] = hn::Zero(FloatTag());
  }
  constexpr int kRunBytes = kRun * Format::kBytes;
  std::int64_t column = 0;
  [[maybe_unused]] const Byte* ahead = row + R * row_bytes + 1024;
  for (; column + kRun <= columns; column += kRun, row += kRunBytes) {
    // Asks for the weights of the next tile meanwhile, and a little further: rows are too short for the hardware to run ahead
    // on its own. Tiles lie one after another, so each line is asked for once, however many rows a step reads.
    if constexpr (T <= 2 || !std::is_same_v<Format, F32Format>) {
      for (int line = 0; line < R * kRunBytes; line += 64) hwy::Prefetch(ahead + line);
      ahead += R * kRunBytes;
    }
    multiply_run<Format, R, T>(row, row_bytes, x, column, sums);
  }
  if (const std::int64_t rest = columns - column; rest != 0) {
    Byte rows[R * kRunBytes] = {};
    float x_rest[T][kRun] = {};
    const float* x_rest_rows[T];
    for (int r = 0; r < R; ++r) {
      std::memcpy(rows + r * kRunBytes,
                  row + r * row_bytes,
                  static_cast<std::size_t>(rest * Format::kBytes));
    }
    for (int t = 0; t < T; ++t) {
      std::copy_n(x[t] + column, rest, x_rest[t]);
      x_rest_rows[t] = x_rest[t];
    }
    multiply_run<Format, R, T>(rows, kRunBytes, x_rest_rows, 0, sums);
  }
  write_tile<R, T>(sums, to);
}

// Tile shapes: as many accumulators as leave room for a weight vector and T activations.
template <class Format, int T>
constexpr int tile_rows() {
  constexpr bool kPlain = std::is_same_v<Format, F32Format>;
  if (kLanes >= 16) return T <= 4 || (kPlain && T <= 6) ? 4 : 2;
  if (T <= 2) return 4;
  if (T <= 3 && kPlain) return 4;
  return T <= 4 ? 2 : 1;
}

struct TokenRange {
  const float* x;
  std::int64_t x_stride;
  std::int64_t count;
};

// `rows` rows times `tokens.count` <= T tokens.
template <class Format, int T>
void multiply_token_group(const Byte* row,
                          std::int64_t row_bytes,
                          std::int64_t rows,
                          std::int64_t columns,
                          const TokenRange& tokens,
                          Destination to) {
  constexpr int R = tile_rows<Format, T>();
  const float* x[T];
  for (int t = 0; t < T; ++t) {
    x[t] = tokens.x + std::min<std::int64_t>(t, tokens.count - 1) * tokens.x_stride;
  }
  to.tokens = static_cast<int>(tokens.count);
  std::int64_t left = rows;
  while (left > 0) {
    const int taken = left >= R ? R : 1;
    to.rows = taken;
    multiply_tile<Format, R, T>(row, taken == R ? row_bytes : 0, x, columns, to);
    row += taken * row_bytes;
    to.out += taken;
    if (to.bias != nullptr) to.bias += taken;
    left -= taken;
  }
}

template <class Format>
void multiply_token_groups(const Byte* row,
                           std::int64_t row_bytes,
                           std::int64_t rows,
                           std::int64_t columns,
                           TokenRange tokens,
                           Destination to) {
  constexpr bool kPlain = std::is_same_v<Format, F32Format>;
  // What a full group holds; plain rows take the shape with the most arithmetic a load.
  constexpr std::int64_t kGroup = !kPlain ? 8 : kLanes >= 16 ? 6 : 3;
  for (std::int64_t left = tokens.count; left > 0;) {
    tokens.count = std::min(left, kGroup);
    const auto go = [&](auto group) {
      multiply_token_group<Format, decltype(group)::value>(
          row, row_bytes, rows, columns, tokens, to);
    };
    if (tokens.count == 1) {
      go(std::integral_constant<int, 1>());
    } else if (tokens.count == 2) {
      go(std::integral_constant<int, 2>());
    } else if (tokens.count == 3) {
      go(std::integral_constant<int, 3>());
    } else if constexpr (kGroup > 3) {
      if (tokens.count == 4) {
        go(std::integral_constant<int, 4>());
      } else if (tokens.count <= 6) {
        go(std::integral_constant<int, 6>());
      } else if constexpr (kGroup > 6) {
        go(std::integral_constant<int, 8>());
      }
    }
    tokens.x += tokens.count * tokens.x_stride;
    to.out += tokens.count * to.out_stride;
    left -= tokens.count;
  }
}

// Columns [0, columns) of one row as f32.
template <class Format>
HWY_INLINE void decode_row(const Byte* row, std::int64_t columns, float* out) {
  std::int64_t column = 0;
  for (; column + kLanes <= columns; column += kLanes, row += kLanes * Format::kBytes) {
    hn::StoreU(Format::load(row), FloatTag(), out + column);
  }
  if (const std::int64_t rest = columns - column; rest != 0) {
    Byte padded[kLanes * Format::kBytes] = {};
    float decoded[kLanes];
    std::memcpy(padded, row, static_cast<std::size_t>(rest * Format::kBytes));
    hn::StoreU(Format::load(padded), FloatTag(), decoded);
    std::copy_n(decoded, rest, out + column);
  }
}

// Calls decode(first row, rows, first column, columns, scratch) block by block and multiplies each block.
template <class Decode>
void multiply_decoded(const Product& p,
                      std::int64_t first,
                      std::int64_t count,
                      std::int64_t block_columns,
                      const Decode& decode) {
  float* const decoded = scratch().weights.data();
  const std::int64_t columns = p.weights.columns;
  const std::int64_t block_rows =
      std::max<std::int64_t>(8, kScratchElements / std::min(columns, block_columns) / 8 * 8);
  for (std::int64_t row = first; row < first + count; row += block_rows) {
    const std::int64_t rows = std::min(block_rows, first + count - row);
    for (std::int64_t column = 0; column < columns; column += block_columns) {
      const std::int64_t width = std::min(block_columns, columns - column);
      decode(row, rows, column, width, decoded);
      const bool is_first = column == 0;
      multiply_token_groups<F32Format>(
          reinterpret_cast<const Byte*>(decoded),
          width * 4,
          rows,
          width,
          {.x = p.x + column, .x_stride = p.x_stride, .count = p.tokens},
          {.out = p.out + row,
           .out_stride = p.out_stride,
           .bias = p.bias != nullptr && is_first ? p.bias + row : nullptr,
           .accumulate = p.accumulate || !is_first});
    }
  }
}

template <class Format>
void multiply_rows_of(const Product& p, std::int64_t first, std::int64_t count) {
  const auto* data = reinterpret_cast<const Byte*>(p.weights.data);
  const std::int64_t row_bytes = p.weights.row_bytes();
  constexpr bool kPlain = std::is_same_v<Format, F32Format>;
  constexpr std::int64_t kFewTokens = 8;
  if (kPlain || p.tokens <= kFewTokens) {
    multiply_token_groups<Format>(data + first * row_bytes,
                                  row_bytes,
                                  count,
                                  p.weights.columns,
                                  {.x = p.x, .x_stride = p.x_stride, .count = p.tokens},
                                  {.out = p.out + first,
                                   .out_stride = p.out_stride,
                                   .bias = p.bias != nullptr ? p.bias + first : nullptr,
                                   .accumulate = p.accumulate});
    return;
  }
  multiply_decoded(p,
                   first,
                   count,
                   kMaxBlockColumns,
                   [&](std::int64_t row,
                       std::int64_t rows,
                       std::int64_t column,
                       std::int64_t columns,
                       float* out) HWY_ATTR {
                     const Byte* from = data + row * row_bytes + column * Format::kBytes;
                     for (std::int64_t r = 0; r < rows; ++r) {
                       decode_row<Format>(from + r * row_bytes, columns, out + r * columns);
                     }
                   });
}

void multiply_rows_awq4(const Product& p, std::int64_t first, std::int64_t count) {
  if (p.tokens <= 2) {
    for (std::int64_t row = first; row < first + count; row += 8 * kLanes) {
      const std::int64_t words = std::min<std::int64_t>(kLanes, (first + count - row) / 8);
      for (std::int64_t t = 0; t < p.tokens; ++t) multiply_token_awq4(p, t, row, words);
    }
    return;
  }
  constexpr std::int64_t kBlockColumns = 1024;
  std::uint32_t* const words = scratch().words.data();
  multiply_decoded(p,
                   first,
                   count,
                   kBlockColumns,
                   [&](std::int64_t row,
                       std::int64_t rows,
                       std::int64_t column,
                       std::int64_t columns,
                       float* out)
                       HWY_ATTR { decode_awq4(p.weights, row, rows, column, columns, words, out); });
}

void multiply_rows(const Product& p, std::int64_t first, std::int64_t count) {
  switch (p.weights.type) {
    case WeightType::f32:
      return multiply_rows_of<F32Format>(p, first, count);
    case WeightType::f16:
      return multiply_rows_of<F16Format>(p, first, count);
    case WeightType::bf16:
      return multiply_rows_of<Bf16Format>(p, first, count);
    case WeightType::awq4:
      return multiply_rows_awq4(p, first, count);
    case WeightType::q8_0:
    case WeightType::q4_0:
    case WeightType::q4_1:
    case WeightType::q4_k:
    case WeightType::q5_k:
    case WeightType::q6_k:
      break;
  }
  check(false, "multiply_rows of a type without f32 products");
}

}  // namespace keel::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace keel {

HWY_EXPORT(multiply_rows);

void multiply_rows(const Product& product, std::int64_t first, std::int64_t count) {
  HWY_DYNAMIC_DISPATCH(multiply_rows)(product, first, count);
}

}  // namespace keel
#endif
