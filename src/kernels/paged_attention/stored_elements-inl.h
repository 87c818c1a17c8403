// Loads of cached elements as f32 vectors, one struct a stored type: include inside a Highway translation unit.
// element = loaded · kFactor, so that a constant factor can be folded into a scale.
#if defined(KEEL_STORED_ELEMENTS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KEEL_STORED_ELEMENTS_INL_H_
#undef KEEL_STORED_ELEMENTS_INL_H_
#else
#define KEEL_STORED_ELEMENTS_INL_H_
#endif

#include <hwy/highway.h>

#include <cstdint>

HWY_BEFORE_NAMESPACE();
namespace keel {
namespace HWY_NAMESPACE {

struct StoredF32 {
  using T = float;
  static constexpr float kFactor = 1.0f;
  template <class D>
  static HWY_INLINE hwy::HWY_NAMESPACE::Vec<D> Load(D d, const T* from) {
    return hwy::HWY_NAMESPACE::LoadU(d, from);
  }
};

// f32 of f16 bits. Highway's own conversion, where the processor has none, takes infinity and NaN for numbers.
template <class D, class V16>
HWY_INLINE hwy::HWY_NAMESPACE::Vec<D> FloatOfHalfBits(D d, V16 bits) {
  namespace hn = hwy::HWY_NAMESPACE;
#if HWY_TARGET == HWY_SCALAR || HWY_TARGET == HWY_EMU128 || HWY_TARGET == HWY_SSSE3 || HWY_TARGET == HWY_SSE4
  const hn::RebindToSigned<D> di;
  const auto wide = hn::PromoteTo(di, hn::BitCast(hn::Rebind<std::uint16_t, D>(), bits));
  const auto magnitude = hn::And(wide, hn::Set(di, 0x7fff));
  const auto sign = hn::ShiftLeft<16>(hn::And(wide, hn::Set(di, 0x8000)));
  // In an f32's place the bits read 2^-112 times the value, f16 subnormals as f32 ones.
  const auto finite = hn::Mul(hn::BitCast(d, hn::ShiftLeft<13>(magnitude)), hn::Set(d, 0x1p112f));
  const auto special = hn::Or(hn::ShiftLeft<13>(magnitude), hn::Set(di, 0x7f800000));
  const auto is_special = hn::Gt(magnitude, hn::Set(di, 0x7bff));
  return hn::BitCast(d, hn::Or(sign, hn::IfThenElse(is_special, special, hn::BitCast(di, finite))));
#else
  return hn::PromoteTo(d, hn::BitCast(hn::Rebind<hwy::float16_t, D>(), bits));
#endif
}

struct StoredF16 {
  using T = std::uint16_t;
  static constexpr float kFactor = 1.0f;
  template <class D>
  static HWY_INLINE hwy::HWY_NAMESPACE::Vec<D> Load(D d, const T* from) {
    namespace hn = hwy::HWY_NAMESPACE;
    const hn::Rebind<std::uint16_t, D> du;
    return FloatOfHalfBits(d, hn::LoadU(du, from));
  }
};

struct StoredBf16 {
  using T = std::uint16_t;
  static constexpr float kFactor = 1.0f;
  template <class D>
  static HWY_INLINE hwy::HWY_NAMESPACE::Vec<D> Load(D d, const T* from) {
    namespace hn = hwy::HWY_NAMESPACE;
    const hn::Rebind<std::uint16_t, D> du;
    const hn::RebindToUnsigned<D> du32;
    return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(du32, hn::LoadU(du, from))));
  }
};

// E4M3 and f16 differ in the exponent's bias (7, 15) and the width of the fields only: shifted into an f16's place, with the
// sign on top, the bits read as value · 2^-8, subnormals included. The one NaN code, whose magnitude bits carry over when
// a unit of the last place is added, gets the exponent's top bit and so becomes an f16 NaN.
struct StoredE4m3 {
  using T = std::uint8_t;
  static constexpr float kFactor = 256.0f;
  template <class D>
  static HWY_INLINE hwy::HWY_NAMESPACE::Vec<D> Load(D d, const T* from) {
    namespace hn = hwy::HWY_NAMESPACE;
    const hn::Rebind<std::int8_t, D> d8;
    const hn::Rebind<std::int16_t, D> d16;
    const auto wide = hn::PromoteTo(d16, hn::LoadU(d8, reinterpret_cast<const std::int8_t*>(from)));
    const auto bits =
        hn::And(hn::ShiftLeft<7>(wide), hn::Set(d16, static_cast<std::int16_t>(0xbf80)));
    const auto nan =
        hn::And(hn::Add(bits, hn::Set(d16, 0x80)), hn::Set(d16, static_cast<std::int16_t>(0x4000)));
    return FloatOfHalfBits(d, hn::Or(bits, nan));
  }
};

}  // namespace HWY_NAMESPACE
}  // namespace keel
HWY_AFTER_NAMESPACE();

#endif
