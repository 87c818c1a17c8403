// Quantised weights as panels: kLanes rows at once, lane r of each vector being row r's.
//
// A format's 32-bit words hold the codes of four columns in each row. They come out as two vectors of 16-bit pairs: columns 0
// and 2, then 1 and 3, which takes one shift and one mask. Activations lie in that order (quantized.h).
#if defined(KEEL_KERNELS_MATMUL_INTEGER_FORMATS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KEEL_KERNELS_MATMUL_INTEGER_FORMATS_INL_H_
#undef KEEL_KERNELS_MATMUL_INTEGER_FORMATS_INL_H_
#else
#define KEEL_KERNELS_MATMUL_INTEGER_FORMATS_INL_H_
#endif

#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "kernels/matmul/vectors-inl.h"

HWY_BEFORE_NAMESPACE();
namespace keel::HWY_NAMESPACE {

using PairTag = hn::Repartition<std::int16_t, IntTag>;
using UnsignedPairTag = hn::Repartition<std::uint16_t, IntTag>;
using WordTag = hn::Rebind<std::uint32_t, FloatTag>;

#if HWY_TARGET != HWY_SCALAR
// Sixteen bytes of each fourth row in turn.
template <class D>
HWY_INLINE hn::Vec<D> load_fourths(D tag, const Byte* at, std::int64_t row_bytes) {
  constexpr std::int64_t kWords = static_cast<std::int64_t>(hn::MaxLanes(D()));
  if constexpr (kWords == 4) {
    return hn::LoadU(tag, reinterpret_cast<const std::int32_t*>(at));
  } else {
    const hn::Half<D> half;
    return hn::Combine(tag,
                       load_fourths(half, at + kWords / 2 * row_bytes, row_bytes),
                       load_fourths(half, at, row_bytes));
  }
}
#endif

// Sixteen bytes of each of kLanes rows as four vectors of words.
HWY_INLINE void load_words(const Byte* at, std::int64_t row_bytes, VInt* words) {
#if HWY_TARGET == HWY_SCALAR
  (void)row_bytes;
  for (int i = 0; i < 4; ++i) words[i] = load<std::int32_t>(at + i * 4);
#else
  VInt rows[4];
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) rows[i] = load_fourths(IntTag(), at + i * row_bytes, row_bytes);
  const hn::Repartition<std::uint64_t, IntTag> twice;
  const auto pairs = [&](VInt a, VInt b, bool upper) HWY_ATTR {
    return hn::BitCast(
        twice, upper ? hn::InterleaveUpper(IntTag(), a, b) : hn::InterleaveLower(IntTag(), a, b));
  };
  const auto ab = pairs(rows[0], rows[1], false), ab_upper = pairs(rows[0], rows[1], true);
  const auto cd = pairs(rows[2], rows[3], false), cd_upper = pairs(rows[2], rows[3], true);
  words[0] = hn::BitCast(IntTag(), hn::InterleaveLower(twice, ab, cd));
  words[1] = hn::BitCast(IntTag(), hn::InterleaveUpper(twice, ab, cd));
  words[2] = hn::BitCast(IntTag(), hn::InterleaveLower(twice, ab_upper, cd_upper));
  words[3] = hn::BitCast(IntTag(), hn::InterleaveUpper(twice, ab_upper, cd_upper));
#endif
}

#if HWY_TARGET == HWY_SCALAR
template <int kShift>
HWY_INLINE VInt shift_left_pairs(VInt v) {
  const auto raw = static_cast<std::uint32_t>(hn::GetLane(v));
  return hn::Set(IntTag(),
                 static_cast<std::int32_t>((raw & 0xffff0000u) << kShift | (raw << kShift & 0xffffu)));
}
template <int kShift>
HWY_INLINE VInt shift_right_pairs(VInt v) {
  const auto raw = static_cast<std::uint32_t>(hn::GetLane(v));
  const auto low = static_cast<std::int16_t>(raw & 0xffff), high = static_cast<std::int16_t>(raw >> 16);
  return hn::Set(IntTag(),
                 static_cast<std::int32_t>(static_cast<std::uint32_t>(high >> kShift) << 16 |
                                           (static_cast<std::uint32_t>(low >> kShift) & 0xffffu)));
}
#else
template <int kShift>
HWY_INLINE VInt shift_left_pairs(VInt v) {
  return hn::BitCast(IntTag(), hn::ShiftLeft<kShift>(hn::BitCast(PairTag(), v)));
}
template <int kShift>  // of signed elements
HWY_INLINE VInt shift_right_pairs(VInt v) {
  return hn::BitCast(IntTag(), hn::ShiftRight<kShift>(hn::BitCast(PairTag(), v)));
}
#endif

template <int kShift>
HWY_INLINE VInt shift_right(VInt v) {
  return hn::BitCast(IntTag(), hn::ShiftRight<kShift>(hn::BitCast(WordTag(), v)));
}
HWY_INLINE VInt mask(VInt v, std::uint32_t bits) {
  return hn::And(v, hn::Set(IntTag(), static_cast<std::int32_t>(bits)));
}
HWY_INLINE VInt flip(VInt v, std::uint32_t bits) {
  return hn::Xor(v, hn::Set(IntTag(), static_cast<std::int32_t>(bits)));
}

constexpr std::uint32_t kNibbleOfPair = 0x000f000f, kByteOfPair = 0x00ff00ff;

HWY_INLINE V halves_to_floats(VInt words, bool upper) {  // the lower or upper 16 bits of each
  const hn::Rebind<std::uint16_t, FloatTag> halves;
  const auto bits = hn::BitCast(WordTag(), upper ? shift_right<16>(words) : words);
  return hn::PromoteTo(FloatTag(), hn::BitCast(HalfTag(), hn::TruncateTo(halves, bits)));
}

// Runs one after another.
template <bool kHasOffset>
struct InOrder {
  static constexpr int kRuns = 1, kGroups = 1, kGroupRuns = 1, kParts = 1;
  static constexpr bool kOffset = kHasOffset;
  static HWY_INLINE int run(int, int) { return 0; }
};

// One panel, walked block by block. Each format says
//   kRuns           runs of 32 columns in a block
//   kGroups         parts of a block that take() loads at a time, and kGroupRuns of them in each
//   kParts          scales in a run
//   kOffset         whether a run also has an offset: w = scale · code + offset
//   run(group, i)   which of the block's runs is the i-th of the group
//   even, odd(i, j) codes of columns 4j, 4j + 2 and 4j + 1, 4j + 3 of that run
//   scale(i, part), offset(i)
//   Order           how the unpacked runs are visited
template <int kBytes>  // of a block
struct Panel {
  static constexpr int kBlockBytes = kBytes;
  const Byte* block;  // of the first row
  std::int64_t row_bytes;
  const Byte* ahead;

  // `heads` is scratch of kLanes words for each block and for kHeadsAhead more.
  Panel(const Byte* rows, std::int64_t bytes, std::int64_t, std::uint32_t*)
      : block(rows), row_bytes(bytes), ahead(rows + kLanes * bytes) {}

  HWY_INLINE void next() { block += kBlockBytes; }
  // Asks for the next panel's bytes meanwhile: panels lie one after another.
  HWY_INLINE void fetch(int bytes) {
    for (int line = 0; line < bytes; line += 64) hwy::Prefetch(ahead + line);
    ahead += bytes;
  }
};

// Blocks of one run that begin with one or two f16. Those of kLanes rows become a vector by way of memory, some blocks before
// they are wanted: scalar moves are free beside the vectors' work, and a vector can be loaded once its parts have left the
// store queue.
constexpr std::int64_t kHeadsAhead = 4;

template <int kBytes, bool kHasOffset>
struct HeadedPanel : Panel<kBytes>, InOrder<kHasOffset> {
  using Order = InOrder<kHasOffset>;
  const Byte* last;      // block of the first row
  std::uint32_t* heads;  // of the block

  HeadedPanel(const Byte* rows, std::int64_t bytes, std::int64_t blocks, std::uint32_t* scratch)
      : Panel<kBytes>(rows, bytes, blocks, scratch),
        last(rows + (blocks - 1) * kBytes),
        heads(scratch) {
    for (std::int64_t b = 0; b < kHeadsAhead; ++b) collect(b);
  }
  HWY_INLINE void collect(std::int64_t blocks_ahead) {
    const Byte* from = std::min(this->block + blocks_ahead * kBytes, last);
#pragma GCC unroll 16
    for (int r = 0; r < kLanes; ++r)
      std::memcpy(heads + blocks_ahead * kLanes + r, from + r * this->row_bytes, 4);
  }
  HWY_INLINE VInt head() const { return load<std::int32_t>(reinterpret_cast<const Byte*>(heads)); }
  HWY_INLINE void next() {
    Panel<kBytes>::next();
    heads += kLanes;
  }
};

struct Q8_0Panel : HeadedPanel<34, false> {
  VInt words[8];
  using HeadedPanel::HeadedPanel;
  HWY_INLINE void take(int) {
    collect(kHeadsAhead);
    load_words(block + 2, row_bytes, words);
    load_words(block + 18, row_bytes, words + 4);
    fetch(kLanes * kBlockBytes);
  }
  HWY_INLINE VInt even(int, int j) const {
    return shift_right_pairs<8>(shift_left_pairs<8>(words[j]));
  }
  HWY_INLINE VInt odd(int, int j) const { return shift_right_pairs<8>(words[j]); }
  HWY_INLINE V scale(int, int) const { return halves_to_floats(head(), false); }
};

// 16 bytes: low nibbles are columns 0…15, high ones 16…31. Codes are biased by 8, which flipping the top bit takes off.
struct Q4_0Panel : HeadedPanel<18, false> {
  VInt words[4];
  using HeadedPanel::HeadedPanel;
  HWY_INLINE void take(int) {
    collect(kHeadsAhead);
    load_words(block + 2, row_bytes, words);
    for (VInt& word : words) word = flip(word, 0x88888888);
    fetch(kLanes * kBlockBytes);
  }
  HWY_INLINE VInt even(int, int j) const {
    return shift_right_pairs<12>(j < 4 ? shift_left_pairs<12>(words[j])
                                       : shift_left_pairs<8>(words[j - 4]));
  }
  HWY_INLINE VInt odd(int, int j) const {
    return shift_right_pairs<12>(j < 4 ? shift_left_pairs<4>(words[j]) : words[j - 4]);
  }
  HWY_INLINE V scale(int, int) const { return halves_to_floats(head(), false); }
};

struct Q4_1Panel : HeadedPanel<20, true> {
  VInt words[4];
  using HeadedPanel::HeadedPanel;
  HWY_INLINE void take(int) {
    collect(kHeadsAhead);
    load_words(block + 4, row_bytes, words);
    fetch(kLanes * kBlockBytes);
  }
  HWY_INLINE VInt even(int, int j) const {
    return mask(j < 4 ? words[j] : shift_right<4>(words[j - 4]), kNibbleOfPair);
  }
  HWY_INLINE VInt odd(int, int j) const {
    return mask(j < 4 ? shift_right<8>(words[j]) : shift_right<12>(words[j - 4]), kNibbleOfPair);
  }
  HWY_INLINE V scale(int, int) const { return halves_to_floats(head(), false); }
  HWY_INLINE V offset(int) const { return halves_to_floats(head(), true); }
};

// q4_k and q5_k blocks begin with d f16, dmin f16 and 12 bytes of 6-bit fields: eight scales and eight minima. Of run n < 4
// they are the low six bits of bytes n and n + 4; of run n >= 4, the nibbles of byte n + 4 with the top bits of bytes n - 4
// and n above them. A run's scale is d · scale, its offset -dmin · minimum. A group is two runs.
template <int kBytes>
struct KPanel : Panel<kBytes> {
  static constexpr int kRuns = 8, kGroups = 4, kGroupRuns = 2, kParts = 1;
  static constexpr bool kOffset = true;
  using Order = InOrder<true>;
  V d, dmin;
  VInt scales[2], minima[2];  // of four runs, a byte each
  VInt group_scales, group_minima;
  using Panel<kBytes>::Panel;

  HWY_INLINE void take_head() {
    constexpr std::uint32_t kSix = 0x3f3f3f3f, kFour = 0x0f0f0f0f, kTop = 0x30303030;
    VInt words[4];
    load_words(this->block, this->row_bytes, words);
    d = halves_to_floats(words[0], false);
    dmin = hn::Neg(halves_to_floats(words[0], true));
    scales[0] = mask(words[1], kSix);
    minima[0] = mask(words[2], kSix);
    scales[1] = hn::Or(mask(words[3], kFour), mask(shift_right<2>(words[1]), kTop));
    minima[1] = hn::Or(mask(shift_right<4>(words[3]), kFour), mask(shift_right<2>(words[2]), kTop));
  }
  HWY_INLINE void take_scales(int group) {
    const auto shifted = [&](VInt fields) HWY_ATTR {
      return hn::BitCast(IntTag(),
                         hn::ShiftRightSame(hn::BitCast(WordTag(), fields), group % 2 * 16));
    };
    group_scales = shifted(scales[group / 2]);
    group_minima = shifted(minima[group / 2]);
  }
  HWY_INLINE V scale(int i, int) const { return hn::Mul(d, byte_to_float(group_scales, i)); }
  HWY_INLINE V offset(int i) const { return hn::Mul(dmin, byte_to_float(group_minima, i)); }
  static HWY_INLINE V byte_to_float(VInt fields, int i) {
    return hn::ConvertTo(FloatTag(), mask(i == 0 ? fields : shift_right<8>(fields), 0xff));
  }
  static HWY_INLINE int run(int group, int i) { return group * 2 + i; }
};

// 32 bytes hold run 2n in their low nibbles, 2n + 1 in their high ones.
struct Q4_KPanel : KPanel<144> {
  VInt words[8];
  using KPanel::KPanel;
  HWY_INLINE void take(int group) {
    if (group == 0) take_head();
    take_scales(group);
    load_words(block + 16 + group * 32, row_bytes, words);
    load_words(block + 32 + group * 32, row_bytes, words + 4);
    fetch(kLanes * kBlockBytes / kGroups);
  }
  HWY_INLINE VInt even(int i, int j) const {
    return mask(i == 0 ? words[j] : shift_right<4>(words[j]), kNibbleOfPair);
  }
  HWY_INLINE VInt odd(int i, int j) const {
    return mask(i == 0 ? shift_right<8>(words[j]) : shift_right<12>(words[j]), kNibbleOfPair);
  }
};

// As q4_k, with the fifth bits (bit `run` of 32 bytes) before the nibbles.
struct Q5_KPanel : KPanel<176> {
  VInt words[8], fifths[8];  // fifths: the group's two runs in bits 0 and 1 of each byte, junk above
  using KPanel::KPanel;
  HWY_INLINE void take(int group) {
    if (group == 0) take_head();
    take_scales(group);
    load_words(block + 48 + group * 32, row_bytes, words);
    load_words(block + 64 + group * 32, row_bytes, words + 4);
    load_words(block + 16, row_bytes, fifths);
    load_words(block + 32, row_bytes, fifths + 4);
    for (VInt& fifth : fifths) {
      fifth = hn::BitCast(IntTag(), hn::ShiftRightSame(hn::BitCast(WordTag(), fifth), 2 * group));
    }
    fetch(kLanes * kBlockBytes / kGroups);
  }
  HWY_INLINE VInt codes(int i, int j) const {
    const VInt low = mask(i == 0 ? words[j] : shift_right<4>(words[j]), 0x0f0f0f0f);
    const VInt fifth = i == 0 ? hn::ShiftLeft<4>(fifths[j]) : hn::ShiftLeft<3>(fifths[j]);
    return hn::Or(low, mask(fifth, 0x10101010));
  }
  HWY_INLINE VInt even(int i, int j) const { return mask(codes(i, j), kByteOfPair); }
  HWY_INLINE VInt odd(int i, int j) const { return mask(shift_right<8>(codes(i, j)), kByteOfPair); }
};

// 128 bytes of low nibbles, 64 of high pairs, 16 scales i8 (one for 16 columns), d f16. Each half of 128 columns is four runs;
// run r takes nibble r / 2 of bytes 32 · (r % 2) + i and bit pair r of high byte i. A group is a run and the next but one.
struct Q6_KOrder {
  static constexpr int kRuns = 8, kGroups = 4, kGroupRuns = 2, kParts = 2;
  static constexpr bool kOffset = false;
  static HWY_INLINE int run(int group, int i) { return group / 2 * 4 + group % 2 + i * 2; }
};

struct Q6_KPanel : Panel<210>, Q6_KOrder {
  using Order = Q6_KOrder;
  V d;
  VInt scales[4];            // of two runs, two bytes each
  VInt words[8], pairs[8];   // pairs: the group's two runs in bits 0…1 and 4…5 of each byte, junk above
  VInt group_scales[2];      // the run's two in the upper bytes
  using Panel::Panel;
  HWY_INLINE void take(int group) {
    if (group == 0) {
      VInt end[4];
      load_words(block + 194, row_bytes, end);
      d = halves_to_floats(end[3], true);
      load_words(block + 192, row_bytes, scales);
    }
    const Byte* low = block + group * 32;
    const Byte* high = block + 128 + group / 2 * 32;
    load_words(low, row_bytes, words);
    load_words(low + 16, row_bytes, words + 4);
    load_words(high, row_bytes, pairs);
    load_words(high + 16, row_bytes, pairs + 4);
    for (VInt& pair : pairs) {
      const auto shifted = hn::ShiftRightSame(hn::BitCast(WordTag(), pair), group % 2 * 2);
      pair = hn::BitCast(IntTag(), shifted);
    }
    for (int i = 0; i < 2; ++i) {
      const VInt two_runs = scales[group / 2 * 2 + i];
      group_scales[i] = group % 2 == 0 ? hn::ShiftLeft<16>(two_runs) : two_runs;
    }
    fetch(kLanes * kBlockBytes / kGroups);
  }
  // Codes in the upper six bits of each byte, their bias of 32 taken off by the flipped top bit.
  HWY_INLINE VInt codes(int i, int j) const {
    const VInt low = mask(i == 0 ? hn::ShiftLeft<2>(words[j]) : shift_right<2>(words[j]), 0x3c3c3c3c);
    const VInt high = mask(i == 0 ? hn::ShiftLeft<6>(pairs[j]) : hn::ShiftLeft<2>(pairs[j]), 0xc0c0c0c0);
    return flip(hn::Or(low, high), 0x80808080);
  }
  HWY_INLINE VInt even(int i, int j) const {
    return shift_right_pairs<10>(shift_left_pairs<8>(codes(i, j)));
  }
  HWY_INLINE VInt odd(int i, int j) const { return shift_right_pairs<10>(codes(i, j)); }
  HWY_INLINE V scale(int i, int part) const {
    const VInt top = part == 0 ? hn::ShiftLeft<8>(group_scales[i]) : group_scales[i];
    return hn::Mul(d, hn::ConvertTo(FloatTag(), hn::ShiftRight<24>(top)));
  }
};

}  // namespace keel::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
