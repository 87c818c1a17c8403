// How each weight encoding becomes f32 vectors, for whichever instruction set Highway is compiling.
//
// A format describes rows made of blocks, each of kSubs runs of 32 elements:
//   Scales scales(block)                    what a block's elements share, ready for use
//   V decode(block, scales, sub, vector)    elements [32·sub + vector·kLanes, + kLanes) of the block, exact
// `vector` is a constant after unrolling. Like dequantize.cpp, every product is exact in f32, so that scale · code + offset
// is rounded once with or without fused multiply-add, and the bits are the reference's.
#if defined(KEEL_KERNELS_MATMUL_ROW_FORMATS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KEEL_KERNELS_MATMUL_ROW_FORMATS_INL_H_
#undef KEEL_KERNELS_MATMUL_ROW_FORMATS_INL_H_
#else
#define KEEL_KERNELS_MATMUL_ROW_FORMATS_INL_H_
#endif

#include <hwy/highway.h>

#include <cstdint>
#include <cstring>

#include "kernels/matmul/weight_matrix.h"

HWY_BEFORE_NAMESPACE();
namespace keel::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
using Byte = std::uint8_t;

using FloatTag = hn::ScalableTag<float>;
using V = hn::Vec<FloatTag>;
using IntTag = hn::Rebind<std::int32_t, FloatTag>;
using VInt = hn::Vec<IntTag>;
constexpr int kLanes = static_cast<int>(hn::MaxLanes(FloatTag()));
constexpr int kRun = 32;  // elements a format decodes at a time
constexpr int kVectors = kRun / kLanes;

// kLanes values of T from any address.
template <class T>
HWY_INLINE hn::Vec<hn::Rebind<T, FloatTag>> load(const Byte* at) {
  const hn::Rebind<T, FloatTag> tag;
  if constexpr (kLanes == 1) {
    T value;
    std::memcpy(&value, at, sizeof(T));
    return hn::Set(tag, value);
  } else {
    return hn::LoadU(tag, reinterpret_cast<const T*>(at));
  }
}

HWY_INLINE VInt load_codes(const Byte* at) {
  return hn::PromoteTo(IntTag(), load<std::uint8_t>(at));
}

using HalfTag = hn::Rebind<hwy::float16_t, FloatTag>;

// The f16 at `at`, in every lane.
HWY_INLINE V broadcast_half(const Byte* at) {
  std::uint16_t raw;
  std::memcpy(&raw, at, sizeof(raw));
  const hn::Rebind<std::uint16_t, FloatTag> tag;
  return hn::PromoteTo(FloatTag(), hn::BitCast(HalfTag(), hn::Set(tag, raw)));
}

// The two f16 a block begins with, in every lane. With 16 lanes through memory, whence a load broadcasts them: that leaves the
// vector units to the products; widening and converting to all lanes takes four operations each. With 8 it does not pay.
#if HWY_TARGET <= HWY_AVX3
struct HeadHalves {
  float value[4];
  explicit HWY_INLINE HeadHalves(const Byte* block) {  // reads eight bytes
    const hn::Full128<float> tag;
    const hn::Rebind<hwy::float16_t, decltype(tag)> halves;
    const auto* from = reinterpret_cast<const hwy::float16_t*>(block);
    hn::StoreU(hn::PromoteTo(tag, hn::LoadU(halves, from)), tag, value);
    asm("" : "+m"(value));  // or the compiler shuffles what it has just stored
  }
  HWY_INLINE V first() const { return hn::Set(FloatTag(), value[0]); }
  HWY_INLINE V second() const { return hn::Set(FloatTag(), value[1]); }
};
#else
struct HeadHalves {
  const Byte* block;
  HWY_INLINE V first() const { return broadcast_half(block); }
  HWY_INLINE V second() const { return broadcast_half(block + 2); }
};
#endif

// w = scale · code + offset.
struct Affine {
  V scale, offset;
  HWY_INLINE V operator()(VInt code) const {
    return hn::MulAdd(hn::ConvertTo(FloatTag(), code), scale, offset);
  }
};

// The same for 4-bit codes. With 16 lanes the 16 possible results are one register, and looking them up needs neither mask
// nor conversion nor multiplication: vpermps reads just the low four bits of an index.
#if HWY_TARGET <= HWY_AVX3
struct NibbleMap {
  V values;
  static HWY_INLINE NibbleMap make(V scale, V offset) {
    return {hn::MulAdd(hn::Iota(FloatTag(), 0.0f), scale, offset)};
  }
  HWY_INLINE V low(VInt byte) const { return V{_mm512_permutexvar_ps(byte.raw, values.raw)}; }
  HWY_INLINE V high(VInt byte) const { return low(hn::ShiftRight<4>(byte)); }
  HWY_INLINE V shifted(VInt bytes, int shift) const {
    return low(hn::ShiftRightSame(bytes, shift));
  }
};
#else
struct NibbleMap {
  Affine map;
  static HWY_INLINE NibbleMap make(V scale, V offset) { return {{scale, offset}}; }
  HWY_INLINE V low(VInt byte) const { return map(hn::And(byte, hn::Set(IntTag(), 15))); }
  HWY_INLINE V high(VInt byte) const {
    return map(hn::ShiftRight<4>(byte));
  }  // `byte` is below 256
  HWY_INLINE V shifted(VInt bytes, int shift) const {
    return low(hn::ShiftRightSame(bytes, shift));
  }
};
#endif

struct NoScales {};

struct F32Format {
  static constexpr int kSubs = 1, kBlockBytes = kRun * 4;
  using Scales = NoScales;
  static HWY_INLINE Scales scales(const Byte*) { return {}; }
  static HWY_INLINE V decode(const Byte* block, const Scales&, int, int vector) {
    return load<float>(block + vector * kLanes * 4);
  }
};

struct F16Format {
  static constexpr int kSubs = 1, kBlockBytes = kRun * 2;
  using Scales = NoScales;
  static HWY_INLINE Scales scales(const Byte*) { return {}; }
  static HWY_INLINE V decode(const Byte* block, const Scales&, int, int vector) {
    return hn::PromoteTo(FloatTag(),
                         hn::BitCast(HalfTag(), load<std::uint16_t>(block + vector * kLanes * 2)));
  }
};

struct Bf16Format {
  static constexpr int kSubs = 1, kBlockBytes = kRun * 2;
  using Scales = NoScales;
  static HWY_INLINE Scales scales(const Byte*) { return {}; }
  static HWY_INLINE V decode(const Byte* block, const Scales&, int, int vector) {
    const auto wide = hn::PromoteTo(hn::Rebind<std::uint32_t, FloatTag>(),
                                    load<std::uint16_t>(block + vector * kLanes * 2));
    return hn::BitCast(FloatTag(), hn::ShiftLeft<16>(wide));
  }
};

struct Q8_0Format {
  static constexpr int kSubs = 1, kBlockBytes = 34;
  using Scales = V;
  static HWY_INLINE Scales scales(const Byte* block) { return HeadHalves{block}.first(); }
  static HWY_INLINE V decode(const Byte* block, const Scales& d, int, int vector) {
    const auto codes = hn::PromoteTo(IntTag(), load<std::int8_t>(block + 2 + vector * kLanes));
    return hn::Mul(hn::ConvertTo(FloatTag(), codes), d);
  }
};

// 16 bytes: low nibbles are elements 0…15, high ones 16…31.
HWY_INLINE V decode_split_nibbles(const Byte* codes, const NibbleMap& map, int vector) {
  const VInt bytes = load_codes(codes + vector * kLanes % 16);
  return vector * kLanes < 16 ? map.low(bytes) : map.high(bytes);
}

struct Q4_0Format {
  static constexpr int kSubs = 1, kBlockBytes = 18;
  using Scales = NibbleMap;
  static HWY_INLINE Scales scales(const Byte* block) {
    const V d = HeadHalves{block}.first();
    return NibbleMap::make(d, hn::Mul(d, hn::Set(FloatTag(), -8.0f)));
  }
  static HWY_INLINE V decode(const Byte* block, const Scales& map, int, int vector) {
    return decode_split_nibbles(block + 2, map, vector);
  }
};

struct Q4_1Format {
  static constexpr int kSubs = 1, kBlockBytes = 20;
  using Scales = NibbleMap;
  static HWY_INLINE Scales scales(const Byte* block) {
    const HeadHalves head{block};
    return NibbleMap::make(head.first(), head.second());
  }
  static HWY_INLINE V decode(const Byte* block, const Scales& map, int, int vector) {
    return decode_split_nibbles(block + 4, map, vector);
  }
};

// d · scale and -dmin · minimum of the eight runs of a q4_k or q5_k block. Its head: d f16, dmin f16, 12 bytes of 6-bit
// fields, four of them unpacked at a time in a 32-bit word.
struct KScales {
  float scale[8], offset[8];

  static HWY_INLINE KScales make(const Byte* block) {
    KScales result;
    std::uint32_t packed[3];
    std::memcpy(packed, block + 4, sizeof(packed));
    constexpr std::uint32_t kSix = 0x3f3f3f3f, kFour = 0x0f0f0f0f, kTwo = 0x03030303;
    const std::uint32_t scales[2] = {packed[0] & kSix,
                                     (packed[2] & kFour) | (packed[0] >> 6 & kTwo) << 4};
    const std::uint32_t minima[2] = {packed[1] & kSix,
                                     (packed[2] >> 4 & kFour) | (packed[1] >> 6 & kTwo) << 4};
    Byte scale_codes[16], minimum_codes[16];  // 8 used; the vectors below may read 16
    std::memcpy(scale_codes, scales, 8);
    std::memcpy(minimum_codes, minima, 8);
    const hn::CappedTag<float, 8> tag;
    const hn::Rebind<std::int32_t, decltype(tag)> ints;
    const hn::Rebind<std::uint8_t, decltype(tag)> bytes;
    const auto d = hn::Set(tag, half(block));
    const auto dmin = hn::Set(tag, -half(block + 2));
    for (std::size_t i = 0; i < 8; i += hn::MaxLanes(tag)) {
      const auto s = hn::PromoteTo(ints, hn::LoadU(bytes, scale_codes + i));
      const auto m = hn::PromoteTo(ints, hn::LoadU(bytes, minimum_codes + i));
      hn::StoreU(hn::Mul(hn::ConvertTo(tag, s), d), tag, result.scale + i);
      hn::StoreU(hn::Mul(hn::ConvertTo(tag, m), dmin), tag, result.offset + i);
    }
    return result;
  }

  static HWY_INLINE float half(const Byte* at) { return hn::GetLane(broadcast_half(at)); }
};

struct Q4_KFormat {
  static constexpr int kSubs = 8, kBlockBytes = 144;
  using Scales = KScales;
  static HWY_INLINE Scales scales(const Byte* block) { return KScales::make(block); }
  static HWY_INLINE V decode(const Byte* block, const Scales& s, int sub, int vector) {
    const auto map =
        NibbleMap::make(hn::Set(FloatTag(), s.scale[sub]), hn::Set(FloatTag(), s.offset[sub]));
    return map.shifted(load_codes(block + 16 + sub / 2 * 32 + vector * kLanes), sub % 2 * 4);
  }
};

struct Q5_KFormat {
  static constexpr int kSubs = 8, kBlockBytes = 176;
  using Scales = KScales;
  static HWY_INLINE Scales scales(const Byte* block) { return KScales::make(block); }
  static HWY_INLINE V decode(const Byte* block, const Scales& s, int sub, int vector) {
    const Affine map{hn::Set(FloatTag(), s.scale[sub]), hn::Set(FloatTag(), s.offset[sub])};
    const VInt nibble = hn::And(
        hn::ShiftRightSame(load_codes(block + 48 + sub / 2 * 32 + vector * kLanes), sub % 2 * 4),
        hn::Set(IntTag(), 15));
    const VInt fifth = hn::And(hn::ShiftRightSame(load_codes(block + 16 + vector * kLanes), sub),
                               hn::Set(IntTag(), 1));
    return map(hn::Or(nibble, hn::ShiftLeft<4>(fifth)));
  }
};

struct Q6_KFormat {
  static constexpr int kSubs = 8, kBlockBytes = 210;
  struct Scales {
    float d;
  };
  static HWY_INLINE Scales scales(const Byte* block) { return {KScales::half(block + 208)}; }
  static HWY_INLINE V decode(const Byte* block, const Scales& s, int sub, int vector) {
    const int half = sub / 4, run = sub % 4, first = vector * kLanes;
    const VInt nibble = hn::And(
        hn::ShiftRightSame(load_codes(block + half * 64 + run % 2 * 32 + first), run / 2 * 4),
        hn::Set(IntTag(), 15));
    const VInt pair =
        hn::And(hn::ShiftRightSame(load_codes(block + 128 + half * 32 + first), run * 2),
                hn::Set(IntTag(), 3));
    const auto scale = static_cast<std::int8_t>(block[192 + sub * 2 + first / 16]);
    const VInt code = hn::Sub(hn::Or(nibble, hn::ShiftLeft<4>(pair)), hn::Set(IntTag(), 32));
    return hn::Mul(hn::ConvertTo(FloatTag(), code),
                   hn::Set(FloatTag(), s.d * static_cast<float>(scale)));
  }
};

}  // namespace keel::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
