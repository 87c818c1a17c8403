// Vector types of this folder's kernels, and values from any address.
#if defined(KEEL_KERNELS_MATMUL_VECTORS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KEEL_KERNELS_MATMUL_VECTORS_INL_H_
#undef KEEL_KERNELS_MATMUL_VECTORS_INL_H_
#else
#define KEEL_KERNELS_MATMUL_VECTORS_INL_H_
#endif

#include <hwy/highway.h>

#include <cstdint>
#include <cstring>

HWY_BEFORE_NAMESPACE();
namespace keel::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
using Byte = std::uint8_t;

using FloatTag = hn::ScalableTag<float>;
using V = hn::Vec<FloatTag>;
using IntTag = hn::Rebind<std::int32_t, FloatTag>;
using VInt = hn::Vec<IntTag>;
constexpr int kLanes = static_cast<int>(hn::MaxLanes(FloatTag()));

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

using HalfTag = hn::Rebind<hwy::float16_t, FloatTag>;

// The f16 at `at`, in every lane.
HWY_INLINE V broadcast_half(const Byte* at) {
  std::uint16_t raw;
  std::memcpy(&raw, at, sizeof(raw));
  const hn::Rebind<std::uint16_t, FloatTag> tag;
  return hn::PromoteTo(FloatTag(), hn::BitCast(HalfTag(), hn::Set(tag, raw)));
}

HWY_INLINE float half_to_float(const Byte* at) {
  return hn::GetLane(broadcast_half(at));
}

}  // namespace keel::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
