// Products with quantised weights, compiled once for each instruction set: exact integer sums of 16-bit pairs within a run of 32
// columns (or 16, where a weight scale ends), f32 from there on.
//
// A tile is a panel of kLanes rows, one a lane, against up to eight tokens. Each total is a chain of multiply-adds, run after
// run, whatever the number of tokens: a token's results have the same bits in any company.
//   few tokens:  one group; the tile unpacks the weights as it goes.
//   many tokens: a panel is unpacked once into scratch that stays in the second-level cache, and read by all groups.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/matmul/quantized_kernels.cpp"
#include "kernels/cpu_targets.h"

#include <hwy/foreach_target.h>

#include <hwy/highway.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "device/buffer.h"
#include "kernels/matmul/integer_formats-inl.h"
#include "kernels/matmul/product.h"
#include "kernels/matmul/quantized.h"

#ifndef KEEL_KERNELS_MATMUL_PANEL_SCRATCH
#define KEEL_KERNELS_MATMUL_PANEL_SCRATCH
namespace keel {

// Per thread, as large as the widest panel so far: of 576 columns 18 KiB of unpacked codes, of 4,096 columns 128 KiB.
struct PanelScratch {
  Buffer<float> scales;
  Buffer<std::uint32_t> heads;
  Buffer<std::int32_t> words;
  Buffer<std::uint8_t> rows;
};
inline PanelScratch& panel_scratch() {
  thread_local PanelScratch scratch;
  return scratch;
}
template <class T>
T* at_least(Buffer<T>& buffer, std::int64_t size) {
  if (static_cast<std::int64_t>(buffer.size()) < size) {
    buffer = Buffer<T>(static_cast<std::size_t>(size), "a panel of weights");
  }
  return buffer.data();
}

}  // namespace keel
#endif

// Highway 1.0.3 asks the processor for AVX512-VNNI but the compiler for AVX-VNNI, which is another extension.
#if HWY_TARGET == HWY_AVX3_DL
#undef HWY_TARGET_STR
#define HWY_TARGET_STR HWY_TARGET_STR_AVX3 \
  ",vpclmulqdq,avx512vbmi,avx512vbmi2,vaes,avxvnni,avx512bitalg,avx512vpopcntdq,avx512vnni"
#endif

HWY_BEFORE_NAMESPACE();
namespace keel::HWY_NAMESPACE {

constexpr int kPairVectors = 16;  // of a run
// A constant in this namespace, since the pragma cannot depend on a template. Fewer lanes are for being right, not fast.
constexpr int kUnroll = kLanes >= 8 ? 8 : 1;

// sum + the products of both pairs.
HWY_INLINE VInt add_products(VInt sum, VInt a, VInt b) {
#if HWY_TARGET == HWY_SCALAR
  const auto low = [](VInt v) { return static_cast<std::int16_t>(hn::GetLane(v) & 0xffff); };
  const auto high = [](VInt v) { return hn::GetLane(v) >> 16; };
  return hn::Set(IntTag(), hn::GetLane(sum) + low(a) * low(b) + high(a) * high(b));
#elif HWY_TARGET <= HWY_AVX3_DL
  return VInt{_mm512_dpwssd_epi32(sum.raw, a.raw, b.raw)};
#else
  VInt unused = sum;  // x86 has the pairs' sum in one instruction and leaves this alone
  return hn::ReorderWidenMulAccumulate(
      IntTag(), hn::BitCast(PairTag(), a), hn::BitCast(PairTag(), b), sum, unused);
#endif
}

struct PanelDestination {
  float* out;  // of the panel's first row and the group's first token
  std::int64_t out_stride;
  const float* bias;  // of the first row, or null
  bool accumulate;
  int rows, tokens;  // to write; the rest of the tile is padding
};

template <int T>
HWY_INLINE void write_panel(const V (&totals)[T], const PanelDestination& to) {
  const FloatTag tag;
  for (int t = 0; t < to.tokens; ++t) {
    float* out = to.out + t * to.out_stride;
    if (to.rows == kLanes) {
      V total = totals[t];
      if (to.bias != nullptr) total = hn::Add(total, hn::LoadU(tag, to.bias));
      hn::StoreU(to.accumulate ? hn::Add(hn::LoadU(tag, out), total) : total, tag, out);
      continue;
    }
    float values[kLanes];
    hn::StoreU(totals[t], tag, values);
    for (int r = 0; r < to.rows; ++r) {
      const float total = to.bias != nullptr ? values[r] + to.bias[r] : values[r];
      out[r] = to.accumulate ? out[r] + total : total;
    }
  }
}

// A panel times one group of T slots. `Weights` is a format's panel or an unpacked one.
template <class Weights, int T>
HWY_NOINLINE void multiply_panel(Weights weights,
                                 std::int64_t blocks,
                                 const QuantizedRun* x,
                                 const PanelDestination& to) {
  const FloatTag tag;
  constexpr int kParts = Weights::kParts, kWordsOfPart = 8 / kParts;
  V totals[T];
#pragma GCC unroll kUnroll
  for (int t = 0; t < T; ++t) totals[t] = hn::Zero(tag);
  for (std::int64_t b = 0; b < blocks; ++b) {
    for (int group = 0; group < Weights::kGroups; ++group) {
      weights.take(group);
#pragma GCC unroll 2
      for (int i = 0; i < Weights::kGroupRuns; ++i) {
        const QuantizedRun* slot = x + Weights::run(group, i) * T;
#pragma GCC unroll 2
        for (int part = 0; part < kParts; ++part) {
          VInt even[T], odd[T];  // of many tokens the same sums, of few two chains that do not wait for each other
          constexpr bool kTwo = T <= 2;
#pragma GCC unroll kUnroll
          for (int t = 0; t < T; ++t) even[t] = odd[t] = hn::Zero(IntTag());
#pragma GCC unroll kUnroll
          for (int j = part * kWordsOfPart; j < (part + 1) * kWordsOfPart; ++j) {
            const auto activations = [&](int t, int pair) HWY_ATTR {
              std::int32_t both;
              std::memcpy(&both, slot[t].codes + 4 * j + 2 * pair, 4);
              return hn::Set(IntTag(), both);
            };
            const VInt first = weights.even(i, j);
#pragma GCC unroll kUnroll
            for (int t = 0; t < T; ++t) even[t] = add_products(even[t], first, activations(t, 0));
            const VInt second = weights.odd(i, j);
#pragma GCC unroll kUnroll
            for (int t = 0; t < T; ++t) {
              VInt& sum = kTwo ? odd[t] : even[t];
              sum = add_products(sum, second, activations(t, 1));
            }
          }
          const V scale = weights.scale(i, part);
#pragma GCC unroll kUnroll
          for (int t = 0; t < T; ++t) {
            const V sum = hn::ConvertTo(tag, kTwo ? hn::Add(even[t], odd[t]) : even[t]);
            totals[t] =
                hn::MulAdd(sum, hn::Mul(scale, hn::Set(tag, slot[t].scale)), totals[t]);
          }
        }
        if constexpr (Weights::kOffset) {
          const V offset = weights.offset(i);
#pragma GCC unroll kUnroll
          for (int t = 0; t < T; ++t)
            totals[t] = hn::MulAdd(offset, hn::Set(tag, slot[t].sum), totals[t]);
        }
      }
    }
    x += Weights::kRuns * T;
    weights.next();
  }
  write_panel<T>(totals, to);
}

// A panel's codes as unpack_panel() leaves them: for each run kPairVectors vectors, even and odd by turns. Runs are visited in
// the format's own order, so that the sums are the same.
template <class Order>
struct Unpacked : Order {
  static constexpr int kScales = Order::kParts + (Order::kOffset ? 1 : 0);  // of a run, offset included
  const std::int32_t* words;  // of the block
  const float* scales;
  int group = 0;

  Unpacked(const std::int32_t* all_words, const float* all_scales)
      : words(all_words), scales(all_scales) {}
  HWY_INLINE void take(int next_group) { group = next_group; }
  HWY_INLINE VInt pair(int i, int vector) const {
    return hn::LoadU(IntTag(), words + (Order::run(group, i) * kPairVectors + vector) * kLanes);
  }
  HWY_INLINE VInt even(int i, int j) const { return pair(i, 2 * j); }
  HWY_INLINE VInt odd(int i, int j) const { return pair(i, 2 * j + 1); }
  HWY_INLINE V scale(int i, int part) const {
    return hn::LoadU(FloatTag(), scales + (Order::run(group, i) * kScales + part) * kLanes);
  }
  HWY_INLINE V offset(int i) const { return scale(i, Order::kParts); }
  HWY_INLINE void next() {
    words += Order::kRuns * kPairVectors * kLanes;
    scales += Order::kRuns * kScales * kLanes;
  }
};

template <class Format>
HWY_NOINLINE void unpack_panel(Format weights, std::int64_t blocks, std::int32_t* words, float* scales) {
  constexpr int kScales = Unpacked<typename Format::Order>::kScales;
  for (std::int64_t b = 0; b < blocks; ++b) {
    for (int group = 0; group < Format::kGroups; ++group) {
      weights.take(group);
#pragma GCC unroll 2
      for (int i = 0; i < Format::kGroupRuns; ++i) {
        std::int32_t* to = words + Format::run(group, i) * kPairVectors * kLanes;
#pragma GCC unroll kUnroll
        for (int j = 0; j < 8; ++j) {
          hn::StoreU(weights.even(i, j), IntTag(), to + 2 * j * kLanes);
          hn::StoreU(weights.odd(i, j), IntTag(), to + (2 * j + 1) * kLanes);
        }
        float* scale = scales + Format::run(group, i) * kScales * kLanes;
#pragma GCC unroll 2
        for (int part = 0; part < Format::kParts; ++part, scale += kLanes)
          hn::StoreU(weights.scale(i, part), FloatTag(), scale);
        if constexpr (Format::kOffset) hn::StoreU(weights.offset(i), FloatTag(), scale);
      }
    }
    words += Format::kRuns * kPairVectors * kLanes;
    scales += Format::kRuns * kScales * kLanes;
    weights.next();
  }
}

template <class Weights>
void multiply_group(const Weights& weights,
                    std::int64_t blocks,
                    const QuantizedRun* x,
                    const PanelDestination& to) {
  switch (group_slots(to.tokens)) {
    case 1:
      return multiply_panel<Weights, 1>(weights, blocks, x, to);
    case 2:
      return multiply_panel<Weights, 2>(weights, blocks, x, to);
    case 4:
      return multiply_panel<Weights, 4>(weights, blocks, x, to);
    case 6:
      return multiply_panel<Weights, 6>(weights, blocks, x, to);
    case 8:
      return multiply_panel<Weights, 8>(weights, blocks, x, to);
  }
  check(false, "a group of tokens has 1, 2, 4, 6 or 8 slots");
}

template <class Format>
void multiply_panels(const Product& p, std::int64_t first, std::int64_t count) {
  const std::int64_t row_bytes = p.weights.row_bytes(), columns = p.weights.columns;
  const std::int64_t runs = columns / kRunColumns, blocks = runs / Format::kRuns;
  using Order = typename Format::Order;
  PanelScratch& scratch = panel_scratch();
  std::uint32_t* const heads = at_least(scratch.heads, (runs + kHeadsAhead) * kLanes);
  std::int32_t* words = nullptr;
  float* scales = nullptr;
  if (p.tokens > kGroupTokens) {
    words = at_least(scratch.words, runs * kPairVectors * kLanes);
    scales = at_least(scratch.scales, runs * Unpacked<Order>::kScales * kLanes);
  }
  for (std::int64_t row = first; row < first + count; row += kLanes) {
    const auto rows = static_cast<int>(std::min<std::int64_t>(kLanes, first + count - row));
    const auto* data = reinterpret_cast<const Byte*>(p.weights.data) + row * row_bytes;
    if (rows < kLanes) {  // the missing ones repeat the first
      Byte* const whole = at_least(scratch.rows, kLanes * row_bytes);
      for (int r = 0; r < kLanes; ++r) {
        std::memcpy(whole + r * row_bytes,
                    data + (r < rows ? r : 0) * row_bytes,
                    static_cast<std::size_t>(row_bytes));
      }
      data = whole;
    }
    const Format weights(data, row_bytes, blocks, heads);
    PanelDestination to{.out = p.out + row,
                        .out_stride = p.out_stride,
                        .bias = p.bias != nullptr ? p.bias + row : nullptr,
                        .accumulate = p.accumulate,
                        .rows = rows,
                        .tokens = static_cast<int>(p.tokens)};
    if (p.tokens <= kGroupTokens) {
      multiply_group(weights, blocks, p.quantized, to);
      continue;
    }
    unpack_panel(weights, blocks, words, scales);
    for (std::int64_t token = 0; token < p.tokens; token += kGroupTokens) {
      to.tokens = static_cast<int>(std::min(kGroupTokens, p.tokens - token));
      multiply_group(
          Unpacked<Order>(words, scales), runs / Order::kRuns, p.quantized + token * runs, to);
      to.out += kGroupTokens * p.out_stride;
    }
  }
}

void multiply_rows_quantized(const Product& p, std::int64_t first, std::int64_t count) {
  switch (p.weights.type) {
    case WeightType::q8_0:
      return multiply_panels<Q8_0Panel>(p, first, count);
    case WeightType::q4_0:
      return multiply_panels<Q4_0Panel>(p, first, count);
    case WeightType::q4_1:
      return multiply_panels<Q4_1Panel>(p, first, count);
    case WeightType::q4_k:
      return multiply_panels<Q4_KPanel>(p, first, count);
    case WeightType::q5_k:
      return multiply_panels<Q5_KPanel>(p, first, count);
    case WeightType::q6_k:
      return multiply_panels<Q6_KPanel>(p, first, count);
    case WeightType::f32:
    case WeightType::f16:
    case WeightType::bf16:
    case WeightType::awq4:
      break;
  }
  check(false, "multiply_rows_quantized of a type without integer products");
}

// The exponent that a run's scale gets: its largest |x| becomes 2^14 to 2^15, and rounds to no more than 32,767. Bits order as
// magnitudes do, with infinity and NaN above all.
struct RunScale {
  float scale, inverse;
};
HWY_INLINE RunScale run_scale(std::int32_t largest_bits) {
  constexpr std::int32_t kInfinity = 0x7f800000;
  if (largest_bits >= kInfinity) return {std::numeric_limits<float>::quiet_NaN(), 0};
  constexpr std::int32_t kRoundsUp = 1 << 8;  // carries into the exponent from 32,767.5 on
  const std::int32_t exponent = std::max((largest_bits + kRoundsUp) >> 23, 15);
  const auto power = [](std::int32_t biased) { return std::bit_cast<float>(biased << 23); };
  return {power(exponent - 14), power(268 - exponent)};
}

void quantize_group(const QuantizeArgs& args, std::int64_t first, std::int64_t last) {
  const FloatTag tag;
  const IntTag ints;
  constexpr int kVectors = static_cast<int>(kRunColumns) / kLanes;
  const std::int64_t width = group_slots(args.tokens);
  for (std::int64_t run = first; run < last; ++run) {
    QuantizedRun* to = args.out + run * width;
    for (std::int64_t t = 0; t < args.tokens; ++t, ++to) {
      const float* x = args.x + t * args.x_stride + run * kRunColumns;
      VInt largest = hn::Zero(ints);
      V values[kVectors];
#pragma GCC unroll kUnroll
      for (int i = 0; i < kVectors; ++i) {
        values[i] = hn::LoadU(tag, x + i * kLanes);
        largest = hn::Max(largest, mask(hn::BitCast(ints, values[i]), 0x7fffffff));
      }
      const RunScale scale = run_scale(hn::GetLane(hn::MaxOfLanes(ints, largest)));
      if (std::isnan(scale.scale)) {
        *to = {.codes = {}, .scale = scale.scale, .sum = scale.scale};
        continue;
      }
      const V inverse = hn::Set(tag, scale.inverse);
      VInt sum = hn::Zero(ints), codes[kVectors];
#pragma GCC unroll kUnroll
      for (int i = 0; i < kVectors; ++i) {
        codes[i] = hn::NearestInt(hn::Mul(values[i], inverse));
        sum = hn::Add(sum, codes[i]);
      }
#if HWY_TARGET == HWY_SCALAR
      for (int i = 0; i < kVectors; ++i) {
        constexpr int kPlace[4] = {0, 2, 1, 3};
        to->codes[i / 4 * 4 + kPlace[i % 4]] = static_cast<std::int16_t>(hn::GetLane(codes[i]));
      }
#else
      // In each four lanes the third and fourth move above the first and second; then the lower halves close up.
      const hn::Repartition<std::uint64_t, IntTag> twice;
      const auto pairs = [&](VInt v) HWY_ATTR {
        const VInt upper = hn::ShiftLeft<16>(hn::Shuffle1032(v));
        return hn::BitCast(twice, hn::Or(mask(v, 0xffff), upper));
      };
#pragma GCC unroll kUnroll
      for (int i = 0; i < kVectors; i += 2) {
        const auto both = hn::ConcatEven(twice, pairs(codes[i + 1]), pairs(codes[i]));
        hn::StoreU(hn::BitCast(PairTag(), both), PairTag(), to->codes + i * kLanes);
      }
#endif
      to->scale = scale.scale;
      to->sum = scale.scale * static_cast<float>(hn::GetLane(hn::SumOfLanes(ints, sum)));
    }
    std::fill_n(to, width - args.tokens, QuantizedRun{});
  }
}

}  // namespace keel::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace keel {

HWY_EXPORT(multiply_rows_quantized);
HWY_EXPORT(quantize_group);

void multiply_rows_quantized(const Product& product, std::int64_t first, std::int64_t count) {
  HWY_DYNAMIC_DISPATCH(multiply_rows_quantized)(product, first, count);
}

void quantize_group(const QuantizeArgs& args, std::int64_t first, std::int64_t last) {
  HWY_DYNAMIC_DISPATCH(quantize_group)(args, first, last);
}

}  // namespace keel
#endif
