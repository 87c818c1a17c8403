#include "kernels/silu_mul/silu_mul.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "base/random.h"
#include "kernels/cpu_features.h"

namespace keel {
namespace {

TEST(SiluMul, MatchesDoubleOverTheWholeRange) {
  WorkerPool pool(2);
  const std::string before = chosen_target();
  std::vector<float> gate, up;
  for (int i = 0; i < 40000; ++i) gate.push_back(static_cast<float>(i - 20000) * 0.01f);  // -200 … 200
  for (const float x : {0.0f, -0.0f, 1e-30f, -1e-30f, 1e30f, -1e30f, -87.0f, -86.99f, -87.01f}) gate.push_back(x);
  for (std::size_t i = 0; i < gate.size(); ++i) up.push_back(static_cast<float>(random_unit(1, i) * 4 - 2));
  const auto count = static_cast<std::int64_t>(gate.size());
  for (const std::string& target : supported_targets()) {
    force_target(target);
    std::vector<float> out(count, std::numeric_limits<float>::quiet_NaN());
    silu_mul(Stream{&pool},
             {.gate = gate.data(), .up = up.data(), .in_stride = count, .out = out.data(), .out_stride = count, .rows = 1, .width = count});
    for (std::int64_t i = 0; i < count; ++i) {
      const double x = gate[i];
      const double exact = x / (1 + std::exp(-x)) * up[i];
      const double bound = std::abs(exact) * 0x1p-20 + (x <= -86.5 ? 0x1p-118 * std::abs(up[i]) : 0.0);
      ASSERT_NEAR(out[i], exact, bound) << target << " at " << x;
    }
  }
  force_target(before);
}

TEST(SiluMul, WorksInPlaceOnStridedRowsOfAnyWidth) {
  WorkerPool pool(2);
  for (const std::int64_t width : {1, 15, 16, 31, 100, 1536}) {
    const std::int64_t rows = 23;
    const std::int64_t stride = 2 * width + 3;  // gate and up side by side, as a fused product leaves them
    std::vector<float> both(rows * stride);
    for (std::size_t i = 0; i < both.size(); ++i) both[i] = static_cast<float>(random_unit(2, i) * 10 - 5);
    const std::vector<float> original = both;
    silu_mul(Stream{&pool},
             {.gate = both.data(), .up = both.data() + width, .in_stride = stride, .out = both.data(), .out_stride = stride, .rows = rows, .width = width});
    for (std::size_t i = 0; i < both.size(); ++i) {
      const auto column = static_cast<std::int64_t>(i) % stride;
      if (column >= width) {
        ASSERT_EQ(both[i], original[i]);
      } else {
        const double x = original[i];
        const double exact = x / (1 + std::exp(-x)) * original[i + width];
        ASSERT_NEAR(both[i], exact, std::abs(exact) * 0x1p-20);
      }
    }
  }
}

TEST(SiluMul, KeepsNaN) {
  WorkerPool pool(1);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::string before = chosen_target();
  for (const std::string& target : supported_targets()) {
    force_target(target);
    std::vector<float> gate(16, nan), up(16, 1.0f), out(16, 0.0f);
    silu_mul(Stream{&pool},
             {.gate = gate.data(), .up = up.data(), .in_stride = 16, .out = out.data(), .out_stride = 16, .rows = 1, .width = 16});
    for (const float x : out) EXPECT_TRUE(std::isnan(x)) << target;
  }
  force_target(before);
}

}  // namespace
}  // namespace keel
