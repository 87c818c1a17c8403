#include "lab/compare/verdict.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "base/text_file.h"
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
    ArmRun small{.arm = "small", .error = "", .figures = {{ArmMetric::output_rate, 100 * ratio}, {ArmMetric::tpot_p95, 10 / ratio}}, .ran = {{"engine", {{"kv_cache", "k16v8"}, {"key_type", "f16"}, {"value_type", "fp8_e4m3"}}}, {"subject", sample_subject()}}, .details = {}};
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

TEST(CompareVerdict, AMissingFigureIsNamedWithTheArmThatHasNone) {
  std::vector<CompareBlock> blocks = blocks_of({1.02, 1.03, 1.01, 1.04, 1.05, 1.02});
  blocks[1].runs[0].figures.erase(ArmMetric::output_rate);
  blocks[3].runs[1].figures.erase(ArmMetric::output_rate);
  EXPECT_EQ(judge(frozen(sample_plan()), blocks, ".").comparisons[0].reasons,
            (std::vector<std::string>{"block 2: native has no output_tokens_per_s", "block 4: small has no output_tokens_per_s"}));
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

class CompareGate : public testing::Test {
 protected:
  CompareGate() {
    std::filesystem::create_directories(folder_);
    plan_["comparisons"][0]["gates"] = {"q.json"};
  }
  ~CompareGate() override { std::filesystem::remove_all(folder_); }

  void write(const std::string& record) const { write_text_file(folder_ / "q.json", record); }
  std::string freezing(const PlanJson& record) const {
    write(record.dump());
    return refusal([&] { frozen(plan_, folder_.string()); });
  }
  ComparisonResult judged(const ComparePlan& plan) const { return judge(plan, blocks_of({1.02, 1.03, 1.01, 1.04, 1.05, 1.02}), folder_.string()).comparisons[0]; }

  std::filesystem::path folder_ = std::filesystem::temp_directory_path() / ("keel_compare_gate_" + std::to_string(getpid()));
  PlanJson plan_ = sample_plan();
};

TEST_F(CompareGate, AGainStandsBehindARecordOfTheSameSubject) {
  write(sample_record().dump());
  const ComparisonResult result = judged(frozen(plan_, folder_.string()));
  EXPECT_EQ(result.verdict, ComparisonVerdict::gain);
  EXPECT_EQ(result.gates[0].words, "k=f16,v=fp8_e4m3 on tiny: pass, up to 640 tokens");
}

TEST_F(CompareGate, ContextsThatTheRecordDoesNotCoverAreTold) {
  write(sample_record().dump());
  plan_["workload"]["input_tokens"] = 637;
  EXPECT_EQ(judged(frozen(plan_, folder_.string())).gates[0].words, "k=f16,v=fp8_e4m3 on tiny: pass, up to 640 tokens");
  plan_["workload"]["input_tokens"] = 638;
  const ComparisonResult result = judged(frozen(plan_, folder_.string()));
  EXPECT_TRUE(result.gates[0].passes);
  EXPECT_TRUE(result.gates[0].words.ends_with("pass, up to 640 tokens, and the workload's contexts have up to 641: nothing is known of it beyond")) << result.gates[0].words;
}

TEST_F(CompareGate, NoPlanIsFrozenBehindARecordOfSomethingElse) {
  for (const auto& [key, what] : std::vector<std::pair<std::string, std::string>>{{"model_digest", "the model"}, {"tokenizer_digest", "the tokenizer"}, {"weights", "the weights"}, {"control", "the control's format"}, {"candidate", "the cache's format"}, {"scales_digest", "the scales"}, {"device_class", "the device"}, {"build_line", "the build"}}) {
    PlanJson other = sample_subject();
    other[key] = "another";
    const std::string wanted = what + " is another there and " + sample_subject()[key].get<std::string>() + " here";
    EXPECT_NE(freezing(sample_record(other)).find("gate q.json does not pass for small: " + wanted + "."), std::string::npos) << freezing(sample_record(other));
    // Nor does a gain stand behind it when the arm turns out to be something else than it said before.
    const ComparisonResult result = judged(frozen(plan_, folder_.string(), other));
    EXPECT_EQ(result.verdict, ComparisonVerdict::no_gain);
    EXPECT_EQ(result.reasons, std::vector<std::string>{"gate q.json: " + wanted});
    other.erase(key);
    EXPECT_NE(freezing(sample_record(other)).find("/plan/subject/" + key), std::string::npos) << freezing(sample_record(other));
  }
  PlanJson three = sample_subject();
  three["model_digest"] = "d8", three["device_class"] = "cuda sm_90", three["page_size"] = 32;
  EXPECT_NE(freezing(sample_record(three)).find("the model is d8 there and d1 here; the device is cuda sm_90 there and cpu here; the page size is 32 there and 16 here"), std::string::npos);
}

TEST_F(CompareGate, NoPlanIsFrozenBehindARecordThatDoesNotPass) {
  PlanJson record = sample_record();
  record["verdict"] = record["gates"][1]["verdict"] = "fail";
  EXPECT_NE(freezing(record).find("its verdict is fail"), std::string::npos) << freezing(record);
  record["verdict"] = "pass";
  EXPECT_NE(freezing(record).find("its verdict is not what its gates say"), std::string::npos);
  record = sample_record(), record["plan"]["subject"]["model"] = "other";
  EXPECT_NE(freezing(record).find("edited"), std::string::npos);
  record = sample_record(), record["plan"]["broken_on_purpose"] = "swapped pages", record["plan_sha256"] = plan_hash(record["plan"]);
  EXPECT_NE(freezing(record).find("its run was broken on purpose"), std::string::npos);
  for (const char* nothing : {"[]", "{}", R"({"verdict": "pass"})", "3", R"({"record": "keel-qualification", "version": 2})"}) EXPECT_NE(freezing(PlanJson::parse(nothing)).find("no qualification record"), std::string::npos) << nothing;
  std::filesystem::remove(folder_ / "q.json");
  EXPECT_NE(refusal([&] { frozen(plan_, folder_.string()); }).find("q.json: cannot be read"), std::string::npos);
}

TEST_F(CompareGate, ARecordThatChangedSinceOrIsGoneDoesNotPass) {
  write(sample_record().dump());
  const ComparePlan plan = frozen(plan_, folder_.string());
  write(sample_record().dump(1));
  EXPECT_EQ(judged(plan).gates[0].words, "not the record that was there when the plan was frozen");
  EXPECT_EQ(judged(plan).verdict, ComparisonVerdict::no_gain);
  std::filesystem::remove(folder_ / "q.json");
  EXPECT_NE(judged(plan).gates[0].words.find("cannot be read"), std::string::npos);
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
