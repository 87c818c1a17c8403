// 2^x for vectors, for each instruction set: include inside a Highway translation unit.
#if defined(KEEL_EXP2_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KEEL_EXP2_INL_H_
#undef KEEL_EXP2_INL_H_
#else
#define KEEL_EXP2_INL_H_
#endif

#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace keel {
namespace HWY_NAMESPACE {

// 2^f for |f| <= 1/2, relative error below 2^-22.8: a degree-5 polynomial (its own part, 2^-23.4, from a minimax fit of
// the relative error with the constant term held at 1) and f32 rounding.
template <class D, class V = hwy::HWY_NAMESPACE::Vec<D>>
HWY_INLINE V Exp2Fraction(D d, V f) {
  namespace hn = hwy::HWY_NAMESPACE;
  V p = hn::Set(d, 0x1.5bba14p-10f);
  p = hn::MulAdd(p, f, hn::Set(d, 0x1.3cea88p-7f));
  p = hn::MulAdd(p, f, hn::Set(d, 0x1.c6b752p-5f));
  p = hn::MulAdd(p, f, hn::Set(d, 0x1.ebf9bcp-3f));
  p = hn::MulAdd(p, f, hn::Set(d, 0x1.62e42ap-1f));
  return hn::MulAdd(p, f, hn::Set(d, 1.0f));
}

// Adding 1.5 · 2^23 leaves the nearest integer in the low bits of a float below 2^22 in magnitude.
inline constexpr float kRoundingBias = 0x1.8p23f;

// v · 2^n where `biased` = n + kRoundingBias and the product is normal.
template <class D, class V = hwy::HWY_NAMESPACE::Vec<D>>
HWY_INLINE V ScaleByBiased(D d, V v, V biased) {
  namespace hn = hwy::HWY_NAMESPACE;
  const hn::RebindToSigned<D> di;
  return hn::BitCast(d, hn::Add(hn::BitCast(di, v), hn::ShiftLeft<23>(hn::BitCast(di, biased))));
}

// 2^x for x <= 127, relative error below 2^-22.8; 0 below -126. NaN stays NaN.
template <class D, class V = hwy::HWY_NAMESPACE::Vec<D>>
HWY_INLINE V Exp2(D d, V x) {
  namespace hn = hwy::HWY_NAMESPACE;
  const V bias = hn::Set(d, kRoundingBias);
  const V biased = hn::Add(x, bias);
  const V f = hn::Sub(x, hn::Sub(biased, bias));
  const V result = ScaleByBiased(d, Exp2Fraction(d, f), biased);
  return hn::IfThenZeroElse(hn::Lt(x, hn::Set(d, -126.0f)), result);
}

}  // namespace HWY_NAMESPACE
}  // namespace keel
HWY_AFTER_NAMESPACE();

#endif
