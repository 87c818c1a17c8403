#include "kernels/rope/rope.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"

// Angles are formed and reduced in double: position · inverse frequency reaches 2^20 rad, where f32 would keep no fraction of
// a turn worth having. The cosines, one set a token, serve all heads of all layers; the rotation itself is f32:
// |error| <= 2^-22 · (|a| + |b|) · magnitude for a pair (a, b). Pairs are independent, so the compiler vectorises them.

namespace keel {
namespace {

void rotate_halves(float* x, std::int64_t pairs, const float* __restrict cosines, const float* __restrict sines) {
  float* __restrict low = x;
  float* __restrict high = x + pairs;
  for (std::int64_t i = 0; i < pairs; ++i) {
    const float a = low[i];
    const float b = high[i];
    low[i] = a * cosines[i] - b * sines[i];
    high[i] = b * cosines[i] + a * sines[i];
  }
}

void rotate_neighbours(float* x, std::int64_t pairs, const float* __restrict cosines, const float* __restrict sines) {
  for (std::int64_t i = 0; i < pairs; ++i) {
    const float a = x[2 * i];
    const float b = x[2 * i + 1];
    x[2 * i] = a * cosines[i] - b * sines[i];
    x[2 * i + 1] = b * cosines[i] + a * sines[i];
  }
}

}  // namespace

void rope_angles(const Stream& stream, const RopeAnglesArgs& args) {
  const std::int64_t pairs = args.rotary_dim / 2;
  const auto tokens = static_cast<std::int64_t>(args.positions.size());
  constexpr std::int64_t kTokensPerTask = 4;  // some 5 µs
  stream.workers->parallel_for((tokens + kTokensPerTask - 1) / kTokensPerTask, [&](std::int64_t task, int) {
    const std::int64_t end = std::min((task + 1) * kTokensPerTask, tokens);
    for (std::int64_t token = task * kTokensPerTask; token < end; ++token) {
      float* cosines = args.angles + token * args.rotary_dim;
      float* sines = cosines + pairs;
      for (std::int64_t i = 0; i < pairs; ++i) {
        const double angle = args.positions[token] * args.inverse_frequencies[i];
        cosines[i] = static_cast<float>(std::cos(angle) * args.magnitude);
        sines[i] = static_cast<float>(std::sin(angle) * args.magnitude);
      }
    }
  });
}

void rope(const Stream& stream, const RopeArgs& args) {
  check(args.rotary_dim % 2 == 0 && args.rotary_dim <= args.head_dim, "rotary_dim is even and fits a head");
  const std::int64_t pairs = args.rotary_dim / 2;
  constexpr std::int64_t kElementsPerTask = 16384;  // some 4 µs
  const std::int64_t tokens_per_task =
      std::max<std::int64_t>(1, kElementsPerTask / (args.heads * args.head_dim));
  const std::int64_t tasks = (args.tokens + tokens_per_task - 1) / tokens_per_task;
  stream.workers->parallel_for(tasks, [&](std::int64_t task, int) {
    const std::int64_t end = std::min((task + 1) * tokens_per_task, args.tokens);
    for (std::int64_t token = task * tokens_per_task; token < end; ++token) {
      const float* cosines = args.angles + token * args.rotary_dim;
      const float* sines = cosines + pairs;
      for (std::int64_t head = 0; head < args.heads; ++head) {
        float* x = args.x + token * args.token_stride + head * args.head_dim;
        if (args.pairs == RopePairs::half) {
          rotate_halves(x, pairs, cosines, sines);
        } else {
          rotate_neighbours(x, pairs, cosines, sines);
        }
      }
    }
  });
}

}  // namespace keel
