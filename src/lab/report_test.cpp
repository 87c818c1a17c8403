#include "lab/report.h"

#include <gtest/gtest.h>

#include <cmath>

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

GpuRun gpu_run() {
  return {.problem = "", .driver = "580.159.04", .power_limit_w = 700,
          .readings = {{1980, 3201, 150.5, 40}, {1700, 3201, 690, NAN}, {1900, 3201, 600, 60}}, .read_bytes_per_s = 4.6e12};
}

TEST(ResultBlock, TellsTheGpuOfARun) {
  ResultBlock block("x");
  block.add_gpu(gpu_run());
  EXPECT_NE(block.text().find("Driver:                                  580.159.04\n"
                              "SM clock (MHz):                          1980, 1700, 1900, 1980, 1900\n"
                              "Memory clock (MHz):                      3201, 3201, 3201, 3201, 3201\n"
                              "Power (W):                               150, 150, 600, 690, 600\n"
                              "Temperature (C):                         40, 40, 50, 60, 60\n"
                              "Power limit (W):                         700.00\n"), std::string::npos) << block.text();
  ResultBlock none("x");
  none.add_gpu({.problem = "no NVML"});
  EXPECT_NE(none.text().find("Not known:                               no NVML\n"), std::string::npos) << none.text();
}

TEST(Record, TellsTheGpuOfARunAndWhyItCannot) {
  EXPECT_TRUE(as_json(std::optional<GpuRun>()).is_null());
  const RecordJson json = as_json(std::optional(gpu_run()));
  EXPECT_EQ(json["driver"], "580.159.04");
  EXPECT_EQ(json["readings"], 3);
  EXPECT_EQ(json["read_gb_per_s"], 4600);
  EXPECT_EQ(json["power_w"].dump(), R"({"begin":150.5,"min":150.5,"median":600.0,"max":690.0,"end":600.0})");
  const RecordJson none = as_json(std::optional(GpuRun{.problem = "no NVML"}));
  EXPECT_EQ(none["problem"], "no NVML");
  EXPECT_TRUE(none["read_gb_per_s"].is_null());
  EXPECT_FALSE(none.contains("sm_mhz"));
}

TEST(Record, SetsDecodeStepsAgainstTheReadRate) {
  const std::vector<StepTime> steps = {{.seconds = 0.5, .decode_rows = 2, .attended_tokens = 100, .logit_rows = 2}};
  const StepWork work{.flops_a_row = 1, .flops_a_logit_row = 1, .flops_an_attended_token = 1, .weight_bytes = 1'000'000'000'000, .bytes_per_token = 1'500'000'000};
  const PhaseFigures decode = phases_of(steps).decode;
  const RecordJson json = decode_as_json(decode, work, gpu_run());  // 1.15 TB in half a second, of 4.6 TB a second
  EXPECT_EQ(json["gb_per_s"], 2300);
  EXPECT_EQ(json["share_of_read_rate"], 0.5);
  EXPECT_TRUE(decode_as_json(decode, work, std::nullopt)["share_of_read_rate"].is_null());
}

TEST(Record, NamesTheFailureOfARequest) {
  const std::vector requests = {RequestTimes{.ended_s = 1, .error = "HTTP 429: full"}};
  const RecordJson json = requests_as_json(requests, true);
  EXPECT_EQ(json[0]["error"], "HTTP 429: full");
  EXPECT_TRUE(json[0]["first_token_s"].is_null());
}

}  // namespace
}  // namespace keel
