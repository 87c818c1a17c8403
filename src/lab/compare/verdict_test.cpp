#include "lab/compare/verdict.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "base/sha256.h"
#include "lab/compare/report.h"
#include "lab/compare/test_plans.h"
#include "lab/xml_problem.h"

namespace keel {
namespace {

// Blocks in which native runs at 100 and small at the given ratios; 0 is a run that failed.
std::vector<CompareBlock> blocks_of(const std::vector<double>& ratios) {
  std::vector<CompareBlock> blocks;
  for (const double ratio : ratios) {
    CompareBlock block{.number = static_cast<std::int64_t>(blocks.size()) + 1, .runs = {}};
    block.runs.push_back({.arm = "native", .error = "", .figures = {{ArmMetric::output_rate, 100}, {ArmMetric::tpot_p95, 10}}, .ran = {{"engine", {{"kv_cache", "k16v16"}, {"key_type", "f16"}, {"value_type", "f16"}}}}, .details = {}});
    ArmRun small{.arm = "small", .error = "", .figures = {{ArmMetric::output_rate, 100 * ratio}, {ArmMetric::tpot_p95, 10 / ratio}}, .ran = {{"engine", {{"kv_cache", "k16v8"}, {"key_type", "f16"}, {"value_type", "fp8_e4m3"}}}}, .details = {}};
    if (ratio == 0) small.error = "exit code 3: <gone>", small.figures.clear();
    block.runs.push_back(small);
    blocks.push_back(block);
  }
  return blocks;
}

CompareResult result_of(const PlanJson& json, const std::vector<double>& ratios, const std::string& folder = ".") {
  return judge(frozen(json, folder), blocks_of(ratios), folder);
}

TEST(CompareVerdict, AGainNeedsTheMedianAndTheTest) {
  const CompareResult gain = result_of(sample_plan(), {1.02, 1.03, 1.01, 1.04, 1.05, 1.02});
  EXPECT_EQ(gain.comparisons[0].verdict, ComparisonVerdict::gain);
  EXPECT_DOUBLE_EQ(gain.comparisons[0].adjusted_p, 1.0 / 64);
  EXPECT_DOUBLE_EQ(*gain.comparisons[0].figures.median, 1.025);
  EXPECT_NEAR(*gain.comparisons[0].beside.at(ArmMetric::tpot_p95).median, 1.025, 1e-12);  // control / candidate
  EXPECT_EQ(gain.exit_code, 0);
  EXPECT_EQ(gain.headline, "1 of 1 planned gains are confirmed");

  const CompareResult small = result_of(sample_plan(), {1.002, 1.003, 1.001, 1.004, 1.005, 1.002});
  EXPECT_EQ(small.comparisons[0].verdict, ComparisonVerdict::no_gain);
  EXPECT_EQ(small.comparisons[0].reasons, (std::vector<std::string>{"the median ratio 1.0025 is below 1.01"}));
  EXPECT_EQ(small.exit_code, 1);
  EXPECT_EQ(small.headline, "No confirmed gain");

  const CompareResult tie = result_of(sample_plan(), {1.05, 1.05, 1.05, 1.05, 1.05, 1});  // a tie is no win
  EXPECT_EQ(tie.comparisons[0].verdict, ComparisonVerdict::no_gain);
  EXPECT_DOUBLE_EQ(tie.comparisons[0].p, 7.0 / 64);
  EXPECT_EQ(tie.comparisons[0].reasons.size(), 1u);
}

TEST(CompareVerdict, TheFamilyCountsEveryPlannedGain) {
  PlanJson plan = sample_plan();
  plan["family"] = 4;
  const CompareResult result = result_of(plan, {1.02, 1.03, 1.01, 1.04, 1.05, 1.02});
  EXPECT_DOUBLE_EQ(result.comparisons[0].adjusted_p, 4.0 / 64);
  EXPECT_EQ(result.comparisons[0].verdict, ComparisonVerdict::no_gain);
}

TEST(CompareVerdict, AFailedBlockIsNeverAveragedAway) {
  const CompareResult result = result_of(sample_plan(), {1.02, 1.03, 0, 1.04, 1.05, 1.02});
  const ComparisonResult& one = result.comparisons[0];
  EXPECT_EQ(one.verdict, ComparisonVerdict::not_reached);
  EXPECT_EQ(one.figures.present, 5u);
  EXPECT_FALSE(one.figures.ratios[2]);
  EXPECT_FALSE(one.sign);
  EXPECT_EQ(one.adjusted_p, 1);
  EXPECT_EQ(one.reasons, (std::vector<std::string>{"block 3: small failed: exit code 3: <gone>"}));
  EXPECT_EQ(result.exit_code, 2);
  ASSERT_EQ(result.failed.size(), 1u);
  EXPECT_EQ(result.failed[0].block, 3);
}

TEST(CompareVerdict, WhatHasNotRunIsNotReached) {
  const CompareResult result = result_of(sample_plan(), {1.02, 1.03});
  EXPECT_EQ(result.comparisons[0].reasons, (std::vector<std::string>{"blocks 3 to 6 are not run yet"}));
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_EQ(result_of(sample_plan(), {}).exit_code, 2);
}

TEST(CompareVerdict, AMissingComparisonHoldsOneInTheFamily) {
  PlanJson plan = sample_plan();
  plan["comparisons"].push_back({{"name", "prefill"}, {"candidate", "small"}, {"control", "native"}, {"metric", "prefill_tokens_per_s"}, {"gates", "none"}});
  const CompareResult result = result_of(plan, {1.02, 1.03, 1.01, 1.04, 1.05, 1.02});
  EXPECT_DOUBLE_EQ(result.comparisons[0].adjusted_p, 2.0 / 64);
  EXPECT_EQ(result.comparisons[0].verdict, ComparisonVerdict::gain);
  EXPECT_EQ(result.comparisons[1].adjusted_p, 1);
  EXPECT_EQ(result.comparisons[1].verdict, ComparisonVerdict::not_reached);
  EXPECT_EQ(result.comparisons[1].reasons[0], "block 1: small has no prefill_tokens_per_s");
  EXPECT_EQ(result.exit_code, 2);
}

TEST(CompareVerdict, GuardsStandApart) {
  PlanJson plan = sample_plan();
  plan["comparisons"].push_back({{"name", "guard"}, {"kind", "guard"}, {"candidate", "small"}, {"control", "native"}, {"metric", "tpot_p95_ms"}, {"gates", "none"}});
  const CompareResult both = result_of(plan, {1.02, 1.03, 1.01, 1.04, 1.05, 1.02});
  EXPECT_DOUBLE_EQ(both.comparisons[0].adjusted_p, 1.0 / 64);  // not of the family
  EXPECT_EQ(both.comparisons[1].verdict, ComparisonVerdict::guard_holds);
  EXPECT_EQ(both.exit_code, 0);
  plan["comparisons"].erase(0);
  EXPECT_EQ(result_of(plan, {0.995, 0.99, 0.991, 0.992, 0.993, 0.995}).exit_code, 0);
  const CompareResult harm = result_of(plan, {0.98, 0.99, 0.98, 0.98, 0.98, 1.2});
  EXPECT_EQ(harm.comparisons[0].verdict, ComparisonVerdict::guard_fails);
  EXPECT_EQ(harm.exit_code, 1);
}

TEST(CompareVerdict, NoGainBehindAGateThatDoesNotPass) {
  const auto folder = std::filesystem::temp_directory_path() / ("keel_compare_verdict_" + std::to_string(getpid()));
  std::filesystem::create_directories(folder);
  PlanJson plan = sample_plan();
  plan["comparisons"][0]["gates"] = {"q.json"};
  const std::vector<double> ratios{1.02, 1.03, 1.01, 1.04, 1.05, 1.02};
  const auto with = [&](const std::string& record) {
    std::ofstream(folder / "q.json") << record;
    return result_of(plan, ratios, folder.string()).comparisons[0];
  };
  const auto record = [](const char* verdict, const char* candidate) {
    PlanJson json{{"record", "keel-qualification"}, {"verdict", verdict}, {"plan", {{"subject", {{"model", "tiny"}, {"candidate", candidate}}}}}};
    json["plan_sha256"] = hex(sha256(nlohmann::json(json["plan"]).dump()));
    return json;
  };
  const PlanJson good = record("pass", "k=f16,v=fp8_e4m3");
  EXPECT_EQ(with(good.dump()).verdict, ComparisonVerdict::gain);
  EXPECT_EQ(with(good.dump()).gates[0].words, "k=f16,v=fp8_e4m3 on tiny: pass");
  EXPECT_EQ(with(record("fail", "k=f16,v=fp8_e4m3").dump()).reasons, (std::vector<std::string>{"gate q.json: k=f16,v=fp8_e4m3 on tiny: fail"}));
  EXPECT_EQ(with(record("not reached", "k=f16,v=fp8_e4m3").dump()).verdict, ComparisonVerdict::no_gain);
  EXPECT_EQ(with(record("pass", "k=bf16,v=fp8_e4m3").dump()).gates[0].words, "it qualifies k=bf16,v=fp8_e4m3, and the candidate ran k=f16,v=fp8_e4m3");
  PlanJson edited = good;
  edited["plan"]["subject"]["model"] = "other";
  EXPECT_EQ(with(edited.dump()).gates[0].words, "its plan is not what it was scored by");
  PlanJson broken = good;
  broken["plan"]["broken_on_purpose"] = "swapped pages";
  broken["plan_sha256"] = hex(sha256(nlohmann::json(broken["plan"]).dump()));
  EXPECT_EQ(with(broken.dump()).gates[0].words, "broken on purpose");
  EXPECT_EQ(with(broken.dump()).verdict, ComparisonVerdict::no_gain);
  for (const char* nothing : {"[]", "nonsense", "{}", R"({"verdict": "pass"})"}) EXPECT_EQ(with(nothing).gates[0].words, "no qualification record") << nothing;
  with(good.dump());
  const ComparePlan kept = frozen(plan, folder.string());
  std::ofstream(folder / "q.json") << good.dump(1);
  EXPECT_EQ(judge(kept, blocks_of(ratios), folder.string()).comparisons[0].gates[0].words, "not the record that was there when the plan was frozen");
  std::filesystem::remove_all(folder);
  EXPECT_EQ(judge(kept, blocks_of(ratios), folder.string()).comparisons[0].gates[0].words, "the record cannot be read");
}

TEST(CompareReport, SaysEveryVerdictPlainly) {
  const PlanJson json = sample_plan();
  const ComparePlan plan = frozen(json);
  for (const auto& [ratios, words] : std::vector<std::pair<std::vector<double>, std::string>>{{{1.02, 1.03, 1.01, 1.04, 1.05, 1.02}, "GAIN CONFIRMED"},
                                                                                           {{1, 1, 1, 1, 1, 1}, "no confirmed gain"},
                                                                                           {{1.02, 0, 1.01, 1.04, 1.05, 1.02}, "not reached"}}) {
    const auto blocks = blocks_of(ratios);
    const CompareResult result = judge(plan, blocks, ".");
    EXPECT_NE(to_text(plan, result).find("small over native: " + words), std::string::npos) << to_text(plan, result);
    const std::string html = to_html(plan, result, blocks);
    EXPECT_EQ(xml_problem(html), std::nullopt) << *xml_problem(html);
    EXPECT_EQ(occurrences(html, "&lt;gone&gt;") > 0, ratios[1] == 0);
    const PlanJson report = as_json(plan, result, blocks);
    EXPECT_EQ(report["plan_sha256"], plan.sha256);
    EXPECT_EQ(report["ran"]["small"]["engine"]["kv_cache"], "k16v8");
    EXPECT_EQ(report["comparisons"][0]["judged"]["ratios"].size(), 6u);
    EXPECT_EQ(report["comparisons"][0]["gates"], "none");
  }
}

TEST(CompareReport, SaysWhenAPlanCanConfirmNothing) {
  const ComparePlan plan = frozen(sample_plan(3));
  const auto blocks = blocks_of({1.1, 1.1, 1.1});
  const CompareResult result = judge(plan, blocks, ".");
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_NE(as_json(plan, result, blocks)["limits"].dump().find("even all wins give an adjusted p of 0.125"), std::string::npos);
}

}  // namespace
}  // namespace keel
