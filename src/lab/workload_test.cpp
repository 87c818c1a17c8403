#include "lab/workload.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "lab/sample.h"

namespace keel {
namespace {

constexpr RandomWorkload kWorkload{.prompts = 50, .input_tokens = 20, .output_tokens = 5, .vocabulary = 100};

TEST(RandomItems, FollowFromTheSeed) {
  const auto items = random_items(kWorkload, 1), again = random_items(kWorkload, 1), other = random_items(kWorkload, 2);
  ASSERT_EQ(items.size(), 50u);
  for (std::size_t i = 0; i < items.size(); ++i) {
    EXPECT_EQ(items[i].prompt, again[i].prompt);
    EXPECT_NE(items[i].prompt, other[i].prompt);
    EXPECT_EQ(items[i].prompt.size(), 20u);
    EXPECT_EQ(items[i].output_tokens, 5);
    EXPECT_NE(items[i].prompt, items[(i + 1) % 50].prompt);
  }
}

TEST(RandomItems, StayInTheVocabularyAndReachItsEnds) {
  std::set<TokenId> seen;
  for (const WorkItem& item : random_items(kWorkload, 3)) seen.insert(item.prompt.begin(), item.prompt.end());
  EXPECT_EQ(*seen.begin(), 0);
  EXPECT_EQ(*seen.rbegin(), 99);
}

TEST(RandomItems, SpreadTheirLengthsOverTheRange) {
  RandomWorkload workload = kWorkload;
  workload.prompts = 2000;
  workload.range_ratio = 0.5;
  std::set<std::size_t> inputs;
  std::set<std::int64_t> outputs;
  for (const WorkItem& item : random_items(workload, 4)) {
    inputs.insert(item.prompt.size());
    outputs.insert(item.output_tokens);
  }
  EXPECT_EQ(*inputs.begin(), 10u);
  EXPECT_EQ(*inputs.rbegin(), 30u);
  EXPECT_EQ(inputs.size(), 21u);
  EXPECT_EQ(*outputs.begin(), 2);   // 2.5 rounded out
  EXPECT_EQ(*outputs.rbegin(), 8);  // 7.5 rounded out
  EXPECT_EQ(workload.longest_input(), 30);
  EXPECT_EQ(workload.longest_output(), 8);
}

// Gaps of a Gamma process of shape k have mean 1/rate and standard deviation 1/(rate · √k).
TEST(ArrivalTimes, HaveTheRateAndTheBurstinessAskedFor) {
  constexpr std::int64_t kCount = 40'001;
  constexpr double kRate = 8;
  for (const double burstiness : {0.25, 1.0, 4.0}) {
    const auto times = arrival_times(kCount, kRate, burstiness, 5);
    EXPECT_EQ(times.front(), 0);
    std::vector<double> gaps;
    for (std::int64_t i = 1; i < kCount; ++i) gaps.push_back(times[i] - times[i - 1]);
    const Sample sample(gaps);
    const double deviation = 1 / (kRate * std::sqrt(burstiness));
    EXPECT_NEAR(sample.mean(), 1 / kRate, 4 * deviation / std::sqrt(40'000.0)) << burstiness;
    EXPECT_NEAR(sample.stddev(), deviation, 0.05 * deviation) << burstiness;
    EXPECT_GE(sample.percentile(0), 0);
  }
}

TEST(ArrivalTimes, OfAPoissonProcessHaveExponentialGaps) {
  const auto times = arrival_times(40'001, 1, 1, 6);
  std::vector<double> gaps;
  for (std::size_t i = 1; i < times.size(); ++i) gaps.push_back(times[i] - times[i - 1]);
  const Sample sample(gaps);
  EXPECT_NEAR(sample.median(), std::log(2), 0.02);
  EXPECT_NEAR(sample.percentile(90), std::log(10), 0.06);
}

TEST(ArrivalTimes, FollowFromTheSeedAndCollapseAtAnInfiniteRate) {
  EXPECT_EQ(arrival_times(100, 3, 1, 7), arrival_times(100, 3, 1, 7));
  EXPECT_NE(arrival_times(100, 3, 1, 7), arrival_times(100, 3, 1, 8));
  EXPECT_EQ(arrival_times(3, INFINITY, 1, 7), std::vector<double>(3));
}

}  // namespace
}  // namespace keel
