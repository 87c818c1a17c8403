#include "lab/request_times.h"

#include <gtest/gtest.h>

#include <cmath>

#include "lab/offline_run.h"

namespace keel {
namespace {

// Sent at 1 though due at 0.5; tokens at 2, 3 and 5.
RequestTimes three_tokens() {
  return {.due_s = 0.5, .sent_s = 1, .ended_s = 5, .token_s = {2, 3, 5}, .prompt_tokens = 10, .output_tokens = 3};
}

TEST(RunFigures, FollowFromTheTimesOfTokens) {
  const std::vector requests = {three_tokens(),
                                RequestTimes{.due_s = 0, .sent_s = 0, .ended_s = 4, .token_s = {4}, .prompt_tokens = 20, .output_tokens = 1}};
  const RunFigures figures = figures_of(requests, duration_of(requests));
  EXPECT_EQ(figures.completed, 2);
  EXPECT_EQ(figures.failed, 0);
  EXPECT_DOUBLE_EQ(figures.duration_s, 5);
  EXPECT_EQ(figures.input_tokens, 30);
  EXPECT_EQ(figures.output_tokens, 4);
  EXPECT_DOUBLE_EQ(figures.requests_per_s(), 0.4);
  EXPECT_DOUBLE_EQ(figures.output_tokens_per_s(), 0.8);
  EXPECT_DOUBLE_EQ(figures.total_tokens_per_s(), 6.8);
  EXPECT_DOUBLE_EQ(figures.ttft_s.mean(), 2.5);        // 1 and 4
  EXPECT_DOUBLE_EQ(figures.e2el_s.mean(), 4);          // 4 and 4
  ASSERT_EQ(figures.tpot_s.size(), 1u);                // one token has no time per further token
  EXPECT_DOUBLE_EQ(figures.tpot_s.mean(), 1.5);        // (5 - 2) / 2
  ASSERT_EQ(figures.itl_s.size(), 2u);
  EXPECT_DOUBLE_EQ(figures.itl_s.percentile(100), 2);  // 3 to 5
  EXPECT_DOUBLE_EQ(figures.wait_s.percentile(100), 0.5);
  EXPECT_EQ(figures.peak_concurrent, 2);
}

TEST(RunFigures, CountAFailureAndAverageItNowhere) {
  RequestTimes failed = three_tokens();
  failed.ended_s = 100;
  failed.error = "reset";
  const std::vector requests = {three_tokens(), failed};
  const RunFigures figures = figures_of(requests, duration_of(requests));
  EXPECT_EQ(figures.completed, 1);
  EXPECT_EQ(figures.failed, 1);
  EXPECT_EQ(figures.output_tokens, 3);
  EXPECT_EQ(figures.ttft_s.size(), 1u);
  EXPECT_DOUBLE_EQ(figures.e2el_s.percentile(100), 4);
  EXPECT_DOUBLE_EQ(figures.duration_s, 99);  // its time was spent all the same
}

TEST(RunFigures, HaveNoAveragesWhenAllFailed) {
  RequestTimes failed{.ended_s = 2, .error = "refused"};
  const RunFigures figures = figures_of(std::vector{failed}, 2);
  EXPECT_EQ(figures.completed, 0);
  EXPECT_TRUE(std::isnan(figures.ttft_s.mean()));
  EXPECT_EQ(figures.output_tokens_per_s(), 0);
}

TEST(RunFigures, CountNoOverlapBetweenRequestsThatFollowEachOther) {
  RequestTimes first = three_tokens(), second = three_tokens();
  second.sent_s = first.ended_s;
  second.ended_s = 9;
  EXPECT_EQ(figures_of(std::vector{first, second}, 8).peak_concurrent, 1);
}

TEST(Phases, PutMixedStepsWithPrefillAndIgnoreEmptyOnes) {
  const std::vector<StepTime> steps = {{.seconds = 1.0, .prefill_rows = 30, .decode_rows = 0, .attended_tokens = 30},
                                       {.seconds = 0.5, .prefill_rows = 10, .decode_rows = 2, .attended_tokens = 70, .logit_rows = 2},
                                       {.seconds = 9.0},
                                       {.seconds = 0.2, .decode_rows = 3, .attended_tokens = 75, .logit_rows = 3},
                                       {.seconds = 0.4, .decode_rows = 1, .attended_tokens = 25, .logit_rows = 1}};
  const Phases phases = phases_of(steps);
  EXPECT_EQ(phases.prefill.steps, 2);
  EXPECT_EQ(phases.prefill.rows, 42);
  EXPECT_DOUBLE_EQ(phases.prefill.seconds, 1.5);
  EXPECT_DOUBLE_EQ(phases.prefill.rows_per_s(), 28);
  EXPECT_EQ(phases.decode.steps, 2);
  EXPECT_DOUBLE_EQ(phases.decode.rows_per_step(), 2);
  EXPECT_DOUBLE_EQ(phases.decode.step_s.median(), 0.3);
  // Two steps read the weights twice and the cache of 100 tokens once.
  const StepWork work{.flops_a_row = 7, .flops_a_logit_row = 50, .flops_an_attended_token = 3, .weight_bytes = 1000, .bytes_per_token = 12};
  EXPECT_DOUBLE_EQ(phases.decode.bytes_per_step(work), 1600);
  EXPECT_DOUBLE_EQ(phases.decode.bytes_per_s(work), 3200 / (0.2 + 0.4));
  EXPECT_DOUBLE_EQ(phases.prefill.flops_per_s(work), (42 * 7 + 2 * 50 + 100 * 3) / 1.5);
}

TEST(StepWork, CountsWhatAStepMustComputeAndRead) {
  ModelConfig config;
  config.layers = 3, config.hidden = 8, config.intermediate = 20, config.heads = 4, config.kv_heads = 2, config.head_dim = 6, config.vocabulary = 100;
  Attestation attestation{};
  attestation.weight_bytes = 5000, attestation.unread_embedding_bytes = 1600, attestation.bytes_per_token = 48;
  const StepWork work = work_of(config, attestation);
  // Products of 8 x (24 + 2 · 12) three times; 24 x 8 and 8 x (3 · 20) twice, once more for the rows of the head of 8 x 100.
  EXPECT_EQ(work.flops_a_row, 2 * (3 * 8 * 48 + 2 * (24 * 8 + 8 * 60)));
  EXPECT_EQ(work.flops_a_logit_row, 2 * (24 * 8 + 8 * 60 + 8 * 100));
  EXPECT_EQ(work.flops_an_attended_token, 3 * 2 * 2 * 24);  // q · k and p · v of 24 numbers
  EXPECT_EQ(work.weight_bytes, 3400);
  EXPECT_EQ(work.bytes_per_token, 48);
}

}  // namespace
}  // namespace keel
