#include "kernels/rms_norm/rms_norm.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "base/random.h"
#include "kernels/cpu_features.h"

namespace keel {
namespace {

TEST(RmsNorm, MatchesDoubleAtEveryWidthAndInPlace) {
  WorkerPool pool(2);
  const std::string before = chosen_target();
  for (const std::string& target : supported_targets()) {
    force_target(target);
    for (const std::int64_t width : {1, 3, 15, 16, 17, 64, 100, 576, 4096}) {
      for (const std::int64_t rows : {1, 2, 70}) {
        const std::int64_t stride = width + 5;
        std::vector<float> x(rows * stride), weight(width);
        for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(random_unit(1, i) * 6 - 2);
        for (std::size_t i = 0; i < weight.size(); ++i) weight[i] = static_cast<float>(random_unit(2, i) * 3 - 1);
        const std::vector<float> original = x;
        std::vector<float> out(rows * width, std::numeric_limits<float>::quiet_NaN());
        RmsNormArgs args{.x = x.data(),
                         .x_stride = stride,
                         .weight = weight.data(),
                         .out = out.data(),
                         .out_stride = width,
                         .rows = rows,
                         .width = width,
                         .epsilon = 1e-5f};
        rms_norm(Stream{&pool}, args);
        args.out = x.data();
        args.out_stride = stride;
        rms_norm(Stream{&pool}, args);
        for (std::int64_t row = 0; row < rows; ++row) {
          double squares = 0;
          for (std::int64_t i = 0; i < width; ++i) squares += std::pow(original[row * stride + i], 2.0);
          const double norm = std::sqrt(squares / width + 1e-5f);
          for (std::int64_t i = 0; i < width; ++i) {
            const double exact = original[row * stride + i] / norm * weight[i];
            // Sums of at most width / 4 positive terms a chain, halved by the root; then four roundings.
            const double bound = std::abs(exact) * (width / 8.0 + 6) * 0x1p-24;
            ASSERT_NEAR(out[row * width + i], exact, bound) << target << " width " << width;
            ASSERT_EQ(x[row * stride + i], out[row * width + i]) << "in place";
          }
          for (std::int64_t i = width; i < stride; ++i) {
            ASSERT_EQ(x[row * stride + i], original[row * stride + i]) << "between rows";
          }
        }
      }
    }
  }
  force_target(before);
}

}  // namespace
}  // namespace keel
