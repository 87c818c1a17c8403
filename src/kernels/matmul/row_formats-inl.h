// How each unquantised encoding becomes f32 vectors, for whichever instruction set Highway is compiling.
#if defined(KEEL_KERNELS_MATMUL_ROW_FORMATS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KEEL_KERNELS_MATMUL_ROW_FORMATS_INL_H_
#undef KEEL_KERNELS_MATMUL_ROW_FORMATS_INL_H_
#else
#define KEEL_KERNELS_MATMUL_ROW_FORMATS_INL_H_
#endif

#include <hwy/highway.h>

#include <cstdint>

#include "kernels/matmul/vectors-inl.h"

HWY_BEFORE_NAMESPACE();
namespace keel::HWY_NAMESPACE {

constexpr int kRun = 32;  // elements taken at a time
constexpr int kVectors = kRun / kLanes;

// A format has elements of kBytes; load(at) is kLanes of them, exact.
struct F32Format {
  static constexpr int kBytes = 4;
  static HWY_INLINE V load(const Byte* at) { return keel::HWY_NAMESPACE::load<float>(at); }
};

struct F16Format {
  static constexpr int kBytes = 2;
  static HWY_INLINE V load(const Byte* at) {
    const auto raw = keel::HWY_NAMESPACE::load<std::uint16_t>(at);
    return hn::PromoteTo(FloatTag(), hn::BitCast(HalfTag(), raw));
  }
};

struct Bf16Format {
  static constexpr int kBytes = 2;
  static HWY_INLINE V load(const Byte* at) {
    const auto raw = keel::HWY_NAMESPACE::load<std::uint16_t>(at);
    const auto wide = hn::PromoteTo(hn::Rebind<std::uint32_t, FloatTag>(), raw);
    return hn::BitCast(FloatTag(), hn::ShiftLeft<16>(wide));
  }
};

}  // namespace keel::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
