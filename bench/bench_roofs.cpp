#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "bench_roofs.cpp"
#include "kernels/cpu_targets.h"

#include <hwy/foreach_target.h>

#include <hwy/highway.h>

#include "bench_roofs.h"
#include "kernels/cpu_features.h"

HWY_BEFORE_NAMESPACE();
namespace keel::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Large sums of several streams, so that neither latency nor the adder limits.
float read_range(const float* values, std::int64_t count) {
  const hn::ScalableTag<float> tag;
  const std::int64_t lanes = static_cast<std::int64_t>(hn::Lanes(tag));
  auto a = hn::Zero(tag), b = a, c = a, d = a;
  for (std::int64_t i = 0; i + 4 * lanes <= count; i += 4 * lanes) {
    a = hn::Add(a, hn::LoadU(tag, values + i));
    b = hn::Add(b, hn::LoadU(tag, values + i + lanes));
    c = hn::Add(c, hn::LoadU(tag, values + i + 2 * lanes));
    d = hn::Add(d, hn::LoadU(tag, values + i + 3 * lanes));
  }
  return hn::GetLane(hn::SumOfLanes(tag, hn::Add(hn::Add(a, b), hn::Add(c, d))));
}

// Returns the number of operations; `sink` keeps the sums alive.
std::int64_t multiply_adds(float* sink) {
  const hn::ScalableTag<float> tag;
  constexpr int kChains = 12;
  constexpr std::int64_t kRounds = 5000;
  hn::Vec<decltype(tag)> sums[kChains];
#pragma GCC unroll 12
  for (int i = 0; i < kChains; ++i)
    sums[i] = hn::Set(tag, *sink + static_cast<float>(i));  // unlike, or they are merged
  const auto x = hn::Set(tag, 0.999f), y = hn::Set(tag, 0.001f);
  for (std::int64_t round = 0; round < kRounds; ++round) {
#pragma GCC unroll 12
    for (int i = 0; i < kChains; ++i) sums[i] = hn::MulAdd(sums[i], x, y);
  }
#pragma GCC unroll 12
  for (int i = 1; i < kChains; ++i) sums[0] = hn::Add(sums[0], sums[i]);
  *sink = hn::GetLane(hn::SumOfLanes(tag, sums[0]));
  return kRounds * kChains * static_cast<std::int64_t>(hn::Lanes(tag)) * 2;
}

}  // namespace keel::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace keel {

HWY_EXPORT(read_range);
HWY_EXPORT(multiply_adds);

float read_all(WorkerPool& workers, std::span<const float> values) {
  choose_target_once();
  constexpr std::int64_t kChunk = 1 << 18;
  std::atomic<float> total{0};
  workers.parallel_for(
      static_cast<std::int64_t>(values.size()) / kChunk, [&](std::int64_t task, int) {
        total = total + HWY_DYNAMIC_DISPATCH(read_range)(values.data() + task * kChunk, kChunk);
      });
  return total;
}

std::int64_t multiply_add_burst(WorkerPool& workers) {
  choose_target_once();
  std::atomic<std::int64_t> operations{0};
  workers.parallel_for(workers.threads(), [&](std::int64_t, int) {
    float sink = 1;
    operations += HWY_DYNAMIC_DISPATCH(multiply_adds)(&sink);
    volatile float kept = sink;
    (void)kept;
  });
  return operations;
}

}  // namespace keel
#endif
