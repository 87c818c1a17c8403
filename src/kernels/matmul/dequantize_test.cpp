#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <span>
#include <vector>

#include "kernels/matmul/matmul.h"
#include "kernels/matmul/random_weights.h"

namespace keel {
namespace {

#include "kernels/matmul/golden_weights.inc"

TEST(WeightMatrix, CountsTheBytesAProductReads) {
  EXPECT_EQ((WeightMatrix{.type = WeightType::q4_1, .rows = 3, .columns = 64}.bytes()), 3 * 2 * 20);
  EXPECT_EQ((WeightMatrix{.type = WeightType::q6_k, .rows = 2, .columns = 256}.bytes()), 2 * 210);
  EXPECT_EQ((WeightMatrix{.type = WeightType::awq4, .rows = 16, .columns = 256}.bytes()),
            16 * 256 / 2 + 2 * (16 / 2 + 16 * 2));
}

TEST(WeightMatrix, NamesEachTypeOnce) {
  std::vector<std::string_view> names;
  for (const WeightType type : kAllWeightTypes) names.push_back(name(type));
  std::sort(names.begin(), names.end());
  EXPECT_EQ(std::unique(names.begin(), names.end()), names.end());
  EXPECT_EQ(std::count(names.begin(), names.end(), "?"), 0);
}

// The number of values that differ from every `stride`-th element of the matrix's rows, one after another.
int differences(const WeightMatrix& weights,
                std::span<const std::uint32_t> expected,
                std::size_t stride) {
  std::vector<float> all(static_cast<std::size_t>(weights.rows * weights.columns));
  for (std::int64_t r = 0; r < weights.rows; ++r)
    dequantize_row(weights, r, all.data() + r * weights.columns);
  EXPECT_EQ(expected.size(), (all.size() + stride - 1) / stride);
  int count = 0;
  for (std::size_t i = 0; i < expected.size(); ++i)
    count += all[i * stride] != std::bit_cast<float>(expected[i]);
  return count;
}

TEST(DequantizeRow, AgreesWithTheGgufPackage) {
  const auto compare = [](WeightType type,
                          std::span<const unsigned char> bytes,
                          std::span<const std::uint32_t> values) {
    WeightMatrix one_row{.type = type,
                         .rows = 1,
                         .columns = 2 * block_elements(type),
                         .data = reinterpret_cast<const std::byte*>(bytes.data())};
    ASSERT_EQ(static_cast<std::int64_t>(bytes.size()), one_row.bytes());
    EXPECT_EQ(differences(one_row, values, 5), 0) << name(type);

    WeightMatrix two_rows = one_row;
    two_rows.rows = 2, two_rows.columns /= 2;
    EXPECT_EQ(differences(two_rows, values, 5), 0) << name(type);

    std::vector<unsigned char> damaged(bytes.begin(), bytes.end());
    for (auto& byte : damaged) byte ^= 0x11;
    one_row.data = reinterpret_cast<const std::byte*>(damaged.data());
    EXPECT_GT(differences(one_row, values, 5), 0) << "the comparison sees damage";
  };
  compare(WeightType::q8_0, k_q8_0_bytes, k_q8_0_values);
  compare(WeightType::q4_0, k_q4_0_bytes, k_q4_0_values);
  compare(WeightType::q4_1, k_q4_1_bytes, k_q4_1_values);
  compare(WeightType::q4_k, k_q4_k_bytes, k_q4_k_values);
  compare(WeightType::q5_k, k_q5_k_bytes, k_q5_k_values);
  compare(WeightType::q6_k, k_q6_k_bytes, k_q6_k_values);
}

TEST(DequantizeRow, UnpacksAwqInItsOrder) {
  const WeightMatrix weights{.type = WeightType::awq4,
                             .rows = 16,
                             .columns = 256,
                             .data = reinterpret_cast<const std::byte*>(k_awq4_codes),
                             .awq_zeros = reinterpret_cast<const std::byte*>(k_awq4_zeros),
                             .awq_scales = reinterpret_cast<const std::byte*>(k_awq4_scales),
                             .awq_row_stride = 16};
  EXPECT_EQ(differences(weights, k_awq4_values, 29), 0);
}

TEST(DequantizeRow, ReadsPlainElements) {
  const std::uint16_t halves[] = {0x3c00, 0x0001, 0xc000, 0x7bff};  // 1, 2^-24, -2, 65504
  const float wanted[] = {1, 0x1p-24f, -2, 65504};
  WeightMatrix row{.type = WeightType::f16,
                   .rows = 1,
                   .columns = 4,
                   .data = reinterpret_cast<const std::byte*>(halves)};
  float out[4];
  dequantize_row(row, 0, out);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(out[i], wanted[i]);

  row.type = WeightType::bf16;
  const std::uint16_t brains[] = {0x3f80, 0x0001, 0xc000, 0x7f7f};
  row.data = reinterpret_cast<const std::byte*>(brains);
  dequantize_row(row, 0, out);
  for (int i = 0; i < 4; ++i)
    EXPECT_EQ(out[i], std::bit_cast<float>(static_cast<std::uint32_t>(brains[i]) << 16));

  row.type = WeightType::f32;
  row.data = reinterpret_cast<const std::byte*>(wanted);
  dequantize_row(row, 0, out);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(out[i], wanted[i]);
}

}  // namespace
}  // namespace keel
