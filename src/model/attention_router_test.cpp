#include "model/attention_router.h"

#include <gtest/gtest.h>

namespace keel {
namespace {

AttentionSequence rows_of(std::int64_t rows, std::int64_t context) { return {.first_row = 0, .rows = rows, .context = context, .pages = nullptr}; }

std::vector<Route> routes(const std::vector<AttentionSequence>& sequences, const RouteRefusals& refusals = {}) {
  std::vector<Route> found;
  for (const RoutedSequence& routed : plan_attention(sequences, refusals).routed) found.push_back(routed.route);
  return found;
}

TEST(AttentionRouter, SendsEachPromptOfAMixedBatchItsOwnWay) {
  const std::vector<AttentionSequence> mixed = {rows_of(1, 900), rows_of(1, 17), rows_of(512, 512), rows_of(256, 1024), rows_of(5, 1024)};
  EXPECT_EQ(routes(mixed), (std::vector{Route::decode, Route::decode, Route::fresh, Route::gather, Route::plain}));
  const AttentionPlan plan = plan_attention(mixed, {});
  EXPECT_EQ(plan.decode_sequences, 2);
  EXPECT_TRUE(plan.any(Route::gather));
  EXPECT_FALSE(plan.only(Route::decode));
}

TEST(AttentionRouter, NamesTheRefusalWhereAFallbackServes) {
  const RouteRefusals refusals{.decode = "decode: head dim 80", .native = "native: head dim 80"};
  const AttentionPlan plan = plan_attention(std::vector{rows_of(1, 40), rows_of(300, 300)}, refusals);
  EXPECT_EQ(plan.decode_sequences, 0);
  ASSERT_EQ(plan.routed.size(), 2u);
  EXPECT_EQ(plan.routed[0].route, Route::plain);
  EXPECT_EQ(plan.routed[0].reason, "decode: head dim 80");
  EXPECT_EQ(plan.routed[1].route, Route::plain);
  EXPECT_EQ(plan.routed[1].reason, "native: head dim 80");
}

TEST(AttentionRouter, TakesOneRowPromptsAtTheHeadAsDecodeRowsAndLaterOnesAsPrefill) {
  EXPECT_EQ(routes({rows_of(1, 1), rows_of(70, 70), rows_of(1, 30)}), (std::vector{Route::decode, Route::fresh, Route::plain}));
}

}  // namespace
}  // namespace keel
