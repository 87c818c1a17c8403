#include "kernels/rms_norm/rms_norm_cuda.h"

#include "kernels/cuda_test.h"

namespace keel::cuda {
namespace {

using RmsNormCuda = CudaKernel;

void expect_normed(DType dtype, std::int64_t rows, std::int64_t width, bool with_added, bool gathered, float scale) {
  SCOPED_TRACE(testing::Message() << name(dtype) << " " << rows << " rows of " << width << (with_added ? ", added" : "") << (gathered ? ", gathered" : ""));
  const std::int64_t sources = gathered ? rows + 3 : rows;
  const auto residual = random_bits(dtype, sources * width, 1, scale);
  const auto added = random_bits(dtype, sources * width, 2, scale);
  std::vector<float> weight(width);
  for (std::int64_t i = 0; i < width; ++i) weight[i] = random_normal(3, i);
  std::vector<std::int32_t> gather(rows);
  for (std::int64_t i = 0; i < rows; ++i) gather[i] = static_cast<std::int32_t>(random_u64(4, i) % sources);
  auto residual_there = on_device(residual);
  const auto added_there = on_device(added);
  const auto weight_there = on_device(weight);
  const auto gather_there = on_device(gather);
  auto out_there = on_device(std::vector<std::uint16_t>(rows * width, 0x7fff));
  const float epsilon = 1e-6f;
  const Stream stream;
  add_rms_norm(stream, {.dtype = dtype,
                        .residual = residual_there.data(),
                        .added = with_added ? added_there.data() : nullptr,
                        .weight = weight_there.data(),
                        .out = out_there.data(),
                        .rows = rows,
                        .width = width,
                        .epsilon = epsilon,
                        .gather = gathered ? gather_there.data() : nullptr});
  stream.synchronize();
  const auto sums = on_host(residual_there);
  const auto out = on_host(out_there);
  for (std::size_t i = 0; i < sums.size(); ++i) {
    const float sum = from_bits(dtype, residual[i]) + (with_added ? from_bits(dtype, added[i]) : 0.0f);
    ASSERT_EQ(sums[i], to_bits(dtype, sum)) << "residual element " << i;
  }
  for (std::int64_t row = 0; row < rows; ++row) {
    const std::uint16_t* x = &sums[(gathered ? gather[row] : row) * width];
    double squares = 0;
    for (std::int64_t i = 0; i < width; ++i) squares += std::pow(from_bits(dtype, x[i]), 2.0);
    const double norm = std::sqrt(squares / width + epsilon);
    for (std::int64_t i = 0; i < width; ++i) {
      const double exact = from_bits(dtype, x[i]) / norm * weight[i];
      // A thread's chain of at most 32 terms and 10 tree levels of f32 sums, halved by the root; the output's rounding.
      const double bound = std::abs(exact) * (32 * 0x1p-24 + roundoff(dtype)) + least_error(dtype);
      ASSERT_NEAR(from_bits(dtype, out[row * width + i]), exact, bound) << "row " << row << " element " << i;
    }
  }
}

TEST_F(RmsNormCuda, MatchesDoubleAtEveryWidth) {
  for (const DType dtype : kModelTypes) {
    for (const std::int64_t width : {8, 64, 576, 896, 4096, 5120, 8192, 32768}) {
      for (const bool added : {false, true}) expect_normed(dtype, 5, width, added, false, 1);
    }
    for (const std::int64_t width : {8, 896, 4096, 8192}) expect_normed(dtype, 600, width, true, false, 3);
  }
}

TEST_F(RmsNormCuda, TakesGatheredRowsAndLeavesThemAlone) {
  for (const DType dtype : kModelTypes) expect_normed(dtype, 7, 4096, false, true, 1);
}

TEST_F(RmsNormCuda, HoldsForTinyAndLargeRows) {
  for (const DType dtype : kModelTypes) {
    for (const float scale : {1e-4f, 300.0f}) expect_normed(dtype, 4, 1024, true, false, scale);
  }
}

}  // namespace
}  // namespace keel::cuda
