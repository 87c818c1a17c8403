#include "lab/sample.h"

#include <gtest/gtest.h>

#include <cmath>

namespace keel {
namespace {

TEST(Sample, InterpolatesBetweenRanks) {
  const Sample sample({4, 1, 3, 2});
  EXPECT_DOUBLE_EQ(sample.percentile(0), 1);
  EXPECT_DOUBLE_EQ(sample.median(), 2.5);
  EXPECT_DOUBLE_EQ(sample.percentile(90), 3.7);
  EXPECT_DOUBLE_EQ(sample.percentile(99), 3.97);
  EXPECT_DOUBLE_EQ(sample.percentile(100), 4);
  EXPECT_DOUBLE_EQ(sample.mean(), 2.5);
  EXPECT_DOUBLE_EQ(sample.stddev(), std::sqrt(1.25));
}

TEST(Sample, OfOneValueIsThatValue) {
  const Sample sample({7});
  for (const double percent : {0.0, 50.0, 99.0, 100.0}) EXPECT_EQ(sample.percentile(percent), 7);
  EXPECT_EQ(sample.stddev(), 0);
}

TEST(Sample, OfNothingHasNoFigures) {
  const Sample sample;
  EXPECT_TRUE(std::isnan(sample.mean()));
  EXPECT_TRUE(std::isnan(sample.stddev()));
  EXPECT_TRUE(std::isnan(sample.median()));
}

}  // namespace
}  // namespace keel
