#include "lab/compare/plan.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <map>

#include "base/sha256.h"
#include "base/text_file.h"
#include "lab/compare/test_plans.h"

namespace keel {
namespace {

std::string read_refusal(const PlanJson& plan) {
  return refusal([&] { read_compare_plan(plan.dump(), "plan.json"); });
}

TEST(ComparePlan, ReadsWhatItSays) {
  const ComparePlan plan = read_compare_plan(sample_plan().dump(), "plan");
  EXPECT_EQ(plan.blocks, 6);
  EXPECT_EQ(plan.family, 1);
  EXPECT_EQ(plan.arms[1].keel->arguments[1], "k16v8");
  EXPECT_EQ(plan.comparisons[0].metric, ArmMetric::output_rate);
  EXPECT_TRUE(plan.sha256.empty());
  EXPECT_DOUBLE_EQ(least_adjusted_p(plan), 1.0 / 64);
}

TEST(ComparePlan, RefusesByNameWhatItDoesNotKnow) {
  EXPECT_EQ(read_refusal(sample_plan()), "");
  const auto with = [](const char* pointer, const PlanJson& value) {
    PlanJson plan = sample_plan();
    plan[PlanJson::json_pointer(pointer)] = value;
    return read_refusal(plan);
  };
  EXPECT_NE(with("/block", 3).find("block: there is no such key"), std::string::npos);
  EXPECT_NE(with("/workload/promts", 3).find("workload: promts: there is no such key"), std::string::npos);
  EXPECT_NE(with("/blocks", 0).find("wanted a whole number between 1 and 1000, found 0"), std::string::npos);
  EXPECT_NE(with("/workload/input_tokens", 1 << 30).find("workload: prompts: 2 prompts of 1073741824 and 3 tokens: wanted at most 1073741824 tokens in all"), std::string::npos);
  EXPECT_NE(with("/blocks", 2.5).find("blocks"), std::string::npos);
  EXPECT_NE(with("/seed", -1).find("seed"), std::string::npos);
  EXPECT_NE(with("/format", "other").find("keel-compare-plan"), std::string::npos);
  EXPECT_NE(with("/arms/0/name", "a/b").find("wanted a name"), std::string::npos);
  EXPECT_NE(with("/arms/0/name", "small").find("two arms are named small"), std::string::npos);
  EXPECT_NE(with("/comparisons/0/candidate", "nobody").find("there is no arm nobody"), std::string::npos);
  EXPECT_NE(with("/comparisons/0/candidate", "native").find("not compared with itself"), std::string::npos);
  EXPECT_NE(with("/comparisons/0/metric", "speed").find("wanted one of output_tokens_per_s"), std::string::npos);
  EXPECT_NE(with("/comparisons/0/kind", "win").find("gain or guard"), std::string::npos);
  EXPECT_NE(with("/comparisons/0/gates", PlanJson::array()).find("\"none\" or a list"), std::string::npos);
  EXPECT_NE(with("/family", 0).find("family"), std::string::npos);
  EXPECT_NE(with("/arms", PlanJson::array({sample_plan()["arms"][0]})).find("2 to 16 arms, found 1"), std::string::npos);
  EXPECT_NE(with("/comparisons", PlanJson::array()).find("at least one"), std::string::npos);
  EXPECT_NE(with("/arms/1/keel/arguments", {"--seed=3"}).find("--seed=3: the plan's workload says that"), std::string::npos);
  PlanJson no_gates = sample_plan();
  no_gates["comparisons"][0].erase("gates");
  EXPECT_NE(read_refusal(no_gates).find("gates is missing"), std::string::npos);
  EXPECT_NE(refusal([] { read_compare_plan("{", "plan"); }).find("plan: "), std::string::npos);
  EXPECT_NE(refusal([] { read_compare_plan(R"({"seed": 1, "seed": 2})", "plan"); }).find("seed"), std::string::npos);
}

TEST(ComparePlan, RefusesTwoArmsOnOneServerThatKeepsItsCache) {
  PlanJson plan = sample_plan();
  for (const std::size_t arm : {0, 1}) {
    plan["arms"][arm].erase("keel");
    plan["arms"][arm]["endpoint"] = {{"url", "http://127.0.0.1:1"}, {"model", "m"}};
  }
  EXPECT_NE(read_refusal(plan).find("would answer the second from its cache"), std::string::npos);
  for (const std::size_t arm : {0, 1}) plan["arms"][arm]["endpoint"]["reset"] = "/reset_prefix_cache";
  EXPECT_EQ(read_refusal(plan), "");
  plan["arms"][0]["endpoint"]["url"] = "https://a";
  EXPECT_NE(read_refusal(plan).find("TLS"), std::string::npos);
}

TEST(ComparePlan, AFrozenPlanIsReadAndAnEditedOneRefused) {
  const ComparePlan plan = frozen(sample_plan());
  EXPECT_EQ(plan.sha256.size(), 64u);
  EXPECT_EQ(plan.order.size(), 6u);
  EXPECT_NE(refusal([&] { frozen(plan.source); }).find("frozen already"), std::string::npos);
  for (const char* pointer : {"/seed", "/workload/prompts", "/timeout_s"}) {
    PlanJson edited = plan.source;
    edited[PlanJson::json_pointer(pointer)] = 5;
    EXPECT_NE(read_refusal(edited).find("edited since it was frozen"), std::string::npos) << pointer;
  }
  PlanJson order = plan.source;
  std::swap(order["order"][0], order["order"][1]);
  EXPECT_NE(read_refusal(order).find("edited since it was frozen"), std::string::npos);
  PlanJson partial = plan.source;  // with a hash of its own, but no plan
  partial["order"][2] = {"native", "native"};
  partial["frozen_sha256"] = plan_hash(partial);
  EXPECT_NE(read_refusal(partial).find("wanted each arm once"), std::string::npos);
  partial["order"].erase(2);
  partial["frozen_sha256"] = plan_hash(partial);
  EXPECT_NE(read_refusal(partial).find("wanted 6 blocks, found 5"), std::string::npos);
  PlanJson unfrozen = plan.source;
  unfrozen.erase("frozen_sha256");
  EXPECT_NE(read_refusal(unfrozen).find("frozen_sha256 is missing"), std::string::npos);
  PlanJson turned;  // the same keys in another order are the same plan
  for (const auto& [key, value] : plan.source.items()) turned = PlanJson{{key, value}}, turned.update(plan.source);
  EXPECT_EQ(read_compare_plan(turned.dump(), "plan").sha256, plan.sha256);
}

TEST(ComparePlan, FreezingTakesTheGateRecordsDigests) {
  const auto folder = std::filesystem::temp_directory_path() / ("keel_compare_gates_" + std::to_string(getpid()));
  std::filesystem::create_directories(folder);
  write_text_file(folder / "q.json", sample_record().dump());
  PlanJson plan = sample_plan();
  plan["comparisons"][0]["gates"] = {"q.json"};
  const ComparePlan read = frozen(plan, folder.string());
  std::filesystem::remove_all(folder);
  ASSERT_EQ(read.gate_digests.size(), 1u);
  EXPECT_EQ(read.gate_digests[0].second, hex(sha256(sample_record().dump())));
  EXPECT_TRUE(read.is_gated(read.arms[1]));
  EXPECT_FALSE(read.is_gated(read.arms[0]));
  plan["arms"][1].erase("keel");
  plan["arms"][1]["endpoint"] = {{"url", "http://127.0.0.1:1"}, {"model", "m"}};
  EXPECT_NE(read_refusal(plan).find("gates: small is an endpoint"), std::string::npos);
}

TEST(CounterbalancedOrder, EveryArmIsEverywhereAndAfterEveryOtherEquallyOften) {
  for (std::size_t arms = 2; arms <= 7; ++arms) {
    const std::size_t cycle = arms % 2 == 0 ? arms : 2 * arms;
    for (std::uint64_t seed = 0; seed < 5; ++seed) {
      const auto order = counterbalanced_order(arms, static_cast<std::int64_t>(2 * cycle), seed);
      std::map<std::pair<std::size_t, std::size_t>, int> places, neighbours;
      for (const auto& row : order) {
        for (std::size_t i = 0; i < arms; ++i) {
          ++places[{i, row[i]}];
          if (i > 0) ++neighbours[{row[i - 1], row[i]}];
        }
      }
      ASSERT_EQ(places.size(), arms * arms);
      for (const auto& [place, times] : places) EXPECT_EQ(times, static_cast<int>(2 * cycle / arms));
      ASSERT_EQ(neighbours.size(), arms * (arms - 1));
      for (const auto& [pair, times] : neighbours) EXPECT_EQ(times, neighbours.begin()->second);
    }
  }
}

TEST(CounterbalancedOrder, FollowsFromTheSeed) {
  EXPECT_EQ(counterbalanced_order(3, 10, 1), counterbalanced_order(3, 10, 1));
  EXPECT_NE(counterbalanced_order(4, 12, 1), counterbalanced_order(4, 12, 2));
  int native_first = 0;
  for (std::uint64_t seed = 0; seed < 100; ++seed) native_first += counterbalanced_order(2, 1, seed)[0][0] == 0;
  EXPECT_GT(native_first, 30);
  EXPECT_LT(native_first, 70);
}

}  // namespace
}  // namespace keel
