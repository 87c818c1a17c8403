#include "lab/report.h"

#include <gtest/gtest.h>

#include "lab/workload.h"

namespace keel {
namespace {

RunFigures figures() {
  return figures_of(std::vector{RequestTimes{.ended_s = 2, .token_s = {0.5, 2}, .prompt_tokens = 8, .output_tokens = 2}}, 2);
}

TEST(ResultBlock, ReadsLikeTheOneUsersKnow) {
  ResultBlock block("Serving Benchmark Result");
  block.row("Successful requests", std::int64_t{1});
  block.add_requests(figures());
  block.add_metrics(figures(), {.metrics = {Metric::ttft, Metric::tpot}, .percentiles = {99.9}});
  EXPECT_EQ(block.text(),
            "============ Serving Benchmark Result ============\n"
            "Successful requests:                     1\n"
            "Benchmark duration (s):                  2.00\n"
            "Total input tokens:                      8\n"
            "Total generated tokens:                  2\n"
            "Request throughput (req/s):              0.5000\n"
            "Output token throughput (tok/s):         1.00\n"
            "Peak concurrent requests:                1\n"
            "Total token throughput (tok/s):          5.00\n"
            "---------------Time to First Token----------------\n"
            "Mean TTFT (ms):                          500.00\n"
            "Median TTFT (ms):                        500.00\n"
            "P99.9 TTFT (ms):                         500.00\n"
            "-----Time per Output Token (excl. 1st token)------\n"
            "Mean TPOT (ms):                          1500.00\n"
            "Median TPOT (ms):                        1500.00\n"
            "P99.9 TPOT (ms):                         1500.00\n"
            "==================================================\n");
}

TEST(ResultBlock, SaysWhenThereIsNothingToAverage) {
  ResultBlock block("x");
  block.add_metrics(figures_of({}, 0), {.metrics = {Metric::e2el}, .percentiles = {}});
  EXPECT_NE(block.text().find("Mean E2EL (ms):                          n/a\n"), std::string::npos) << block.text();
}

TEST(Record, HoldsEveryMetricWhateverIsPrinted) {
  const RecordJson json = as_json(figures(), {.metrics = {}, .percentiles = {50, 99}});
  EXPECT_EQ(json["ttft"]["mean_ms"], 500);
  EXPECT_EQ(json["itl"]["p99_ms"], 1500);
  EXPECT_EQ(json["e2el"]["count"], 1);
  EXPECT_EQ(json["output_tokens_per_s"], 1);
}

TEST(Record, WritesWhatDoesNotExistAsNull) {
  const RecordJson json = RecordJson::parse(as_json(figures_of({}, 0), {}).dump());
  EXPECT_TRUE(json["ttft"]["mean_ms"].is_null());
  EXPECT_TRUE(json["requests_per_s"].is_null());
}

TEST(Record, NamesTheFailureOfARequest) {
  const std::vector requests = {RequestTimes{.ended_s = 1, .error = "HTTP 429: full"}};
  const RecordJson json = requests_as_json(requests, true);
  EXPECT_EQ(json[0]["error"], "HTTP 429: full");
  EXPECT_TRUE(json[0]["first_token_s"].is_null());
}

}  // namespace
}  // namespace keel
