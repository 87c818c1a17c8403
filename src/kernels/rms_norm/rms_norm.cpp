#include "kernels/rms_norm/rms_norm.h"

#include "kernels/cpu_features.h"
#include "kernels/cpu_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/rms_norm/rms_norm.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <algorithm>
#include <cmath>

HWY_BEFORE_NAMESPACE();
namespace keel {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
using F = HWY_CAPPED(float, 16);
using V = hn::Vec<F>;
constexpr std::int64_t kLanes = MaxLanes(F());

// Four running sums: their additions overlap, and each stays short.
float SumOfSquares(const float* HWY_RESTRICT x, std::int64_t width) {
  const F d;
  V sums[4] = {hn::Zero(d), hn::Zero(d), hn::Zero(d), hn::Zero(d)};
  std::int64_t i = 0;
  for (; i + 4 * kLanes <= width; i += 4 * kLanes) {
    for (int k = 0; k < 4; ++k) {
      const V v = hn::LoadU(d, x + i + k * kLanes);
      sums[k] = hn::MulAdd(v, v, sums[k]);
    }
  }
  for (; i + kLanes <= width; i += kLanes) {
    const V v = hn::LoadU(d, x + i);
    sums[0] = hn::MulAdd(v, v, sums[0]);
  }
  const V all = hn::Add(hn::Add(sums[0], sums[1]), hn::Add(sums[2], sums[3]));
  float total = hn::GetLane(hn::SumOfLanes(d, all));
  for (; i < width; ++i) total += x[i] * x[i];
  return total;
}

}  // namespace

void NormRow(const float* x, const float* weight, float* out, std::int64_t width, float epsilon) {
  const F d;
  const float mean = SumOfSquares(x, width) / static_cast<float>(width);
  const float inverse = 1.0f / std::sqrt(mean + epsilon);
  const V factor = hn::Set(d, inverse);
  std::int64_t i = 0;
  for (; i + kLanes <= width; i += kLanes) {
    const V scaled = hn::Mul(hn::LoadU(d, x + i), factor);
    hn::StoreU(hn::Mul(scaled, hn::LoadU(d, weight + i)), d, out + i);
  }
  for (; i < width; ++i) out[i] = x[i] * inverse * weight[i];
}

}  // namespace HWY_NAMESPACE
}  // namespace keel
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace keel {

HWY_EXPORT(NormRow);

void rms_norm(const Stream& stream, const RmsNormArgs& args) {
  choose_target_once();
  constexpr std::int64_t kElementsPerTask = 32768;  // some 4 µs
  const std::int64_t rows_per_task = std::max<std::int64_t>(1, kElementsPerTask / args.width);
  const std::int64_t tasks = (args.rows + rows_per_task - 1) / rows_per_task;
  stream.workers->parallel_for(tasks, [&](std::int64_t task, int) {
    const std::int64_t end = std::min((task + 1) * rows_per_task, args.rows);
    for (std::int64_t row = task * rows_per_task; row < end; ++row) {
      HWY_DYNAMIC_DISPATCH(NormRow)
      (args.x + row * args.x_stride,
       args.weight,
       args.out + row * args.out_stride,
       args.width,
       args.epsilon);
    }
  });
}

}  // namespace keel
#endif
