#include "server/metrics.h"

#include <gtest/gtest.h>

namespace keel {
namespace {

TEST(Metrics, CountsRowsAndPromptsByRouteAndReason) {
  Metrics metrics(Attestation{.format = {DType::f16, DType::e4m3}, .max_model_len = 100}, "m", false);
  EngineStats stats;
  EXPECT_EQ(metrics.text(stats).find("attention_"), std::string::npos) << "a device with one way counts none";
  stats.routes = {{"decode: decode", 7}, {"fresh: fresh prompt", 40}, {"plain: head dim 80: \"not native\"", 9}};
  stats.prompt_routes = {{"fresh: fresh prompt", 2}};
  metrics.text(stats);
  stats.prompt_routes["fresh: fresh prompt"] = 3;
  const std::string text = metrics.text(stats);
  for (const char* line : {"keel:attention_rows_total{engine=\"0\",model_name=\"m\",reason=\"decode\",route=\"decode\"} 7\n",
                           "keel:attention_rows_total{engine=\"0\",model_name=\"m\",reason=\"head dim 80: \\\"not native\\\"\",route=\"plain\"} 9\n",
                           "keel:attention_prompts_total{engine=\"0\",model_name=\"m\",reason=\"fresh prompt\",route=\"fresh\"} 3\n"}) {
    EXPECT_NE(text.find(line), std::string::npos) << line << text;
  }
}

}  // namespace
}  // namespace keel
