#include <gtest/gtest.h>

#include "kernels/matmul/weight_matrix.h"

namespace keel {
namespace {

TEST(WeightMatrix, CountsTheBytesAProductReads) {
  EXPECT_EQ((WeightMatrix{.type = WeightType::q4_1, .rows = 3, .columns = 64}.bytes()), 3 * 2 * 20);
  EXPECT_EQ((WeightMatrix{.type = WeightType::q6_k, .rows = 2, .columns = 256}.bytes()), 2 * 210);
  EXPECT_EQ((WeightMatrix{.type = WeightType::awq4, .rows = 16, .columns = 256}.bytes()),
            16 * 256 / 2 + 2 * (16 / 2 + 16 * 2));
}

}  // namespace
}  // namespace keel
