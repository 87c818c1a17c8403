#include "kernels/rope/rope.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "base/random.h"

namespace keel {
namespace {

void expect_rotated(RopePairs pairs, std::int64_t head_dim, std::int64_t rotary_dim, float magnitude) {
  const std::int64_t heads = 3;
  const std::int64_t stride = heads * head_dim + 7;
  const std::vector<std::int32_t> positions = {0, 1, 2, 31, 4095, 8191, 131071, 1000003, 5, 6, 7};
  std::vector<double> frequencies;
  for (std::int64_t i = 0; i < rotary_dim / 2; ++i) {
    frequencies.push_back(std::pow(10000.0, -2.0 * static_cast<double>(i) / static_cast<double>(rotary_dim)));
  }
  std::vector<float> x(positions.size() * stride);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(random_unit(1, i) * 4 - 2);
  const std::vector<float> original = x;
  WorkerPool pool(2);
  std::vector<float> angles(positions.size() * rotary_dim);
  rope_angles(Stream{&pool},
              {.positions = positions,
               .inverse_frequencies = frequencies.data(),
               .rotary_dim = rotary_dim,
               .magnitude = magnitude,
               .angles = angles.data()});
  rope(Stream{&pool},
       {.x = x.data(),
        .tokens = static_cast<std::int64_t>(positions.size()),
        .token_stride = stride,
        .heads = heads,
        .head_dim = head_dim,
        .rotary_dim = rotary_dim,
        .pairs = pairs,
        .angles = angles.data()});

  std::vector<bool> rotated(x.size(), false);
  for (std::size_t token = 0; token < positions.size(); ++token) {
    for (std::int64_t head = 0; head < heads; ++head) {
      for (std::int64_t i = 0; i < rotary_dim / 2; ++i) {
        const std::size_t base = token * stride + head * head_dim;
        const std::size_t first = base + (pairs == RopePairs::half ? i : 2 * i);
        const std::size_t second = base + (pairs == RopePairs::half ? i + rotary_dim / 2 : 2 * i + 1);
        const long double angle = static_cast<long double>(positions[token]) * frequencies[i];
        const double c = static_cast<double>(std::cos(angle));
        const double s = static_cast<double>(std::sin(angle));
        const double a = original[first];
        const double b = original[second];
        const double bound = 0x1p-22 * (std::abs(a) + std::abs(b)) * magnitude;
        ASSERT_NEAR(x[first], (a * c - b * s) * magnitude, bound) << "position " << positions[token];
        ASSERT_NEAR(x[second], (b * c + a * s) * magnitude, bound) << "position " << positions[token];
        rotated[first] = rotated[second] = true;
      }
    }
  }
  for (std::size_t i = 0; i < x.size(); ++i) {
    if (rotated[i]) continue;
    ASSERT_EQ(x[i], original[i]) << "touched element " << i;
  }
}

TEST(Rope, RotatesHalvesAndNeighboursAsDoubleDoes) {
  for (const RopePairs pairs : {RopePairs::half, RopePairs::interleaved}) {
    for (const std::int64_t head_dim : {16, 64, 80, 128}) expect_rotated(pairs, head_dim, head_dim, 1.0f);
  }
}

TEST(Rope, LeavesDimensionsPastTheRotaryOnesAlone) {
  for (const RopePairs pairs : {RopePairs::half, RopePairs::interleaved}) expect_rotated(pairs, 96, 24, 1.0f);
}

TEST(Rope, MultipliesByTheMagnitude) { expect_rotated(RopePairs::half, 64, 64, 1.19f); }

}  // namespace
}  // namespace keel
