#include "kernels/silu_mul/silu_mul_cuda.h"

#include "kernels/cuda_test.h"

namespace keel::cuda {
namespace {

using SiluMulCuda = CudaKernel;

void expect_gated(DType dtype, std::int64_t rows, std::int64_t width, const std::vector<std::uint16_t>& gate_up) {
  SCOPED_TRACE(testing::Message() << name(dtype) << " " << rows << " rows of " << width);
  const auto there = on_device(gate_up);
  auto out_there = on_device(std::vector<std::uint16_t>(rows * width, 0x7fff));
  const Stream stream;
  silu_mul(stream, {.dtype = dtype, .gate_up = there.data(), .out = out_there.data(), .rows = rows, .width = width});
  stream.synchronize();
  const auto out = on_host(out_there);
  for (std::int64_t i = 0; i < rows * width; ++i) {
    const double gate = from_bits(dtype, gate_up[i / 8 * 16 + i % 8]);
    const double up = from_bits(dtype, gate_up[i / 8 * 16 + 8 + i % 8]);
    const double got = from_bits(dtype, out[i]);
    if (!std::isfinite(gate) || !std::isfinite(up)) {
      ASSERT_TRUE(std::isnan(got) || !(std::isnan(gate) || std::isnan(up))) << gate << " " << up;
      continue;
    }
    const double exact = gate / (1 + std::exp(-gate)) * up;
    if (std::abs(exact) > (dtype == DType::f16 ? 65000 : 3.3e38)) continue;  // may round to infinity
    // e^-x in f32 is good to 2^-21 + |x| · 2^-23; below -85 the quotient leaves f32's normal range.
    const double relative = roundoff(dtype) + 0x1p-20 + std::min(std::abs(gate), 90.0) * 0x1p-22;
    const double bound = std::abs(exact) * relative + least_error(dtype) + (gate < -85 ? 0x1p-116 * std::abs(up) : 0);
    ASSERT_NEAR(got, exact, bound) << gate << " " << up;
  }
}

TEST_F(SiluMulCuda, MatchesDoubleForEveryGate) {
  for (const DType dtype : kModelTypes) {
    std::vector<std::uint16_t> gate_up(2 * 65536);
    for (int i = 0; i < 65536; ++i) gate_up[i / 8 * 16 + i % 8] = static_cast<std::uint16_t>(i), gate_up[i / 8 * 16 + 8 + i % 8] = to_bits(dtype, random_normal(1, i));
    expect_gated(dtype, 1, 65536, gate_up);
  }
}

TEST_F(SiluMulCuda, MatchesDoubleAtEveryShape) {
  for (const DType dtype : kModelTypes) {
    for (const std::int64_t width : {8, 1536, 2048, 12288}) {
      for (const std::int64_t rows : {1, 33}) expect_gated(dtype, rows, width, random_bits(dtype, rows * 2 * width, 2, 4));
    }
  }
}

}  // namespace
}  // namespace keel::cuda
