#include "kernels/silu_mul/silu_mul.h"

#include "kernels/cpu_features.h"
#include "kernels/cpu_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/silu_mul/silu_mul.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <algorithm>

#include "kernels/paged_attention/exp2-inl.h"

HWY_BEFORE_NAMESPACE();
namespace keel {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
using F = HWY_CAPPED(float, 16);
using V = hn::Vec<F>;
constexpr std::int64_t kLanes = MaxLanes(F());

// silu(x) · up. e^-|x| keeps the exponential in [0, 1]: silu = x / (1 + e) for x >= 0, x · e / (1 + e) below.
// The nearest multiple of ln 2 is taken off |x| in two pieces, the first exact without FMA, so that e's relative error stays
// below 2^-21 until it underflows: |error| <= 2^-20 |silu(x) · up| for x > -87, and a magnitude below 2^-118 · |up| beyond.
HWY_INLINE V SiluMul(V x, V up) {
  const F d;
  const V t = hn::Neg(hn::Abs(x));
  const V log2e = hn::Set(d, 0x1.715476p0f);
  const V bias = hn::Set(d, kRoundingBias);
  const V biased = hn::Add(hn::Max(hn::Mul(t, log2e), hn::Set(d, -126.0f)), bias);
  const V whole = hn::Sub(biased, bias);
  const V rest = hn::NegMulAdd(whole, hn::Set(d, 0x1.7f7d1cp-20f),
                               hn::NegMulAdd(whole, hn::Set(d, 0x1.62e4p-1f), t));
  const V fraction = hn::Mul(rest, log2e);
  V e = ScaleByBiased(d, Exp2Fraction(d, fraction), biased);
  e = hn::IfThenZeroElse(hn::Lt(t, hn::Set(d, -87.0f)), e);
  const V top = hn::IfThenElse(hn::Lt(x, hn::Zero(d)), e, hn::Set(d, 1.0f));
  return hn::Mul(hn::Mul(x, hn::Div(top, hn::Add(hn::Set(d, 1.0f), e))), up);
}

}  // namespace

void SiluMulRow(const float* gate, const float* up, float* out, std::int64_t width) {
  const F d;
  std::int64_t i = 0;
  for (; i + kLanes <= width; i += kLanes) {
    hn::StoreU(SiluMul(hn::LoadU(d, gate + i), hn::LoadU(d, up + i)), d, out + i);
  }
  if (i == width) return;
  HWY_ALIGN float tail[2][16] = {};
  std::copy(gate + i, gate + width, tail[0]);
  std::copy(up + i, up + width, tail[1]);
  hn::Store(SiluMul(hn::Load(d, tail[0]), hn::Load(d, tail[1])), d, tail[0]);
  std::copy_n(tail[0], width - i, out + i);
}

}  // namespace HWY_NAMESPACE
}  // namespace keel
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace keel {

HWY_EXPORT(SiluMulRow);

void silu_mul(const Stream& stream, const SiluMulArgs& args) {
  choose_target_once();
  constexpr std::int64_t kElementsPerTask = 8192;  // some 3 µs
  const std::int64_t rows_per_task = std::max<std::int64_t>(1, kElementsPerTask / args.width);
  const std::int64_t tasks = (args.rows + rows_per_task - 1) / rows_per_task;
  stream.workers->parallel_for(tasks, [&](std::int64_t task, int) {
    const std::int64_t end = std::min((task + 1) * rows_per_task, args.rows);
    for (std::int64_t row = task * rows_per_task; row < end; ++row) {
      HWY_DYNAMIC_DISPATCH(SiluMulRow)
      (args.gate + row * args.in_stride,
       args.up + row * args.in_stride,
       args.out + row * args.out_stride,
       args.width);
    }
  });
}

}  // namespace keel
#endif
