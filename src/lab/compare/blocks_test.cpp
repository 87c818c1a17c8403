#include "lab/compare/blocks.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>

#include "base/random.h"
#include "lab/compare/report.h"
#include "lab/compare/test_plans.h"

namespace keel {
namespace {

namespace fs = std::filesystem;

class CompareBlocks : public testing::Test {
 protected:
  void SetUp() override { fs::remove_all(folder_), fs::create_directories(folder_); }
  void TearDown() override { fs::remove_all(folder_); }

  std::string path(const char* name = "raw.jsonl") const { return (folder_ / name).string(); }
  static std::string bytes(const std::string& file) {
    std::ifstream in(file, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }

  fs::path folder_ = fs::temp_directory_path() / ("keel_compare_blocks_" + std::to_string(getpid()));
};

// A machine without noise of its own: the same block always gives the same figures.
ArmRun fake_run(const CompareArm& arm, std::int64_t block) {
  const double drift = 100 + 10 * random_unit(1, static_cast<std::uint64_t>(block)), gain = arm.name == "small" ? 1.03 : 1;
  return {.arm = arm.name, .error = "", .figures = {{ArmMetric::output_rate, drift * gain}, {ArmMetric::ttft_median, 50 / gain}}, .ran = {{"engine", {{"kv_cache", arm.name}}}}, .details = PlanJson::object()};
}

std::string report_of(const ComparePlan& plan, const BlockJournal& journal) {
  const CompareResult result = judge(plan, journal.blocks(), ".");
  return as_json(plan, result, journal.blocks()).dump(2) + to_html(plan, result, journal.blocks()) + to_text(plan, result);
}

TEST_F(CompareBlocks, StoppedAnywhereAndResumedGivesTheSameReport) {
  const ComparePlan plan = frozen(sample_plan());
  BlockJournal whole(path("whole.jsonl"), plan, {});
  run_blocks(plan, whole, plan.blocks, fake_run);
  const std::string wanted = report_of(plan, whole);
  EXPECT_NE(wanted.find("GAIN CONFIRMED"), std::string::npos);
  struct Stop {};
  for (int stop = 0; stop < 12; ++stop) {
    fs::remove(path());
    int runs = 0;
    const auto dying = [&](const CompareArm& arm, std::int64_t block) {
      if (runs++ == stop) throw Stop();
      return fake_run(arm, block);
    };
    {
      BlockJournal journal(path(), plan, {});
      EXPECT_THROW(run_blocks(plan, journal, plan.blocks, dying), Stop);
      EXPECT_EQ(journal.blocks().size(), static_cast<std::size_t>(stop / 2));
    }
    std::ofstream(path(), std::ios::app) << "{\"plan_sha256\":\"" << stop;  // and while a line was being written
    BlockJournal journal(path(), plan, {});
    run_blocks(plan, journal, plan.blocks, fake_run);
    EXPECT_EQ(bytes(path()), bytes(path("whole.jsonl")));
    EXPECT_EQ(report_of(plan, journal), wanted);
  }
}

TEST_F(CompareBlocks, ArmsRunInThePlannedOrder) {
  const ComparePlan plan = frozen(sample_plan());
  BlockJournal journal(path(), plan, {});
  std::vector<std::string> ran;
  run_blocks(plan, journal, plan.blocks, fake_run, [&](std::int64_t, const std::string& arm) { ran.push_back(arm); });
  std::vector<std::string> wanted;
  for (const auto& row : plan.order) wanted.insert(wanted.end(), row.begin(), row.end());
  EXPECT_EQ(ran, wanted);
}

TEST_F(CompareBlocks, WhatIsNoMeasurementFails) {
  const ComparePlan plan = frozen(sample_plan());
  std::optional<BlockJournal> journal(std::in_place, path(), plan, PlanJson());
  run_blocks(plan, *journal, plan.blocks, [](const CompareArm& arm, std::int64_t block) {
    ArmRun run = fake_run(arm, block);
    if (arm.name != "small") return run;
    if (block == 1) run.figures[ArmMetric::output_rate] = 0;
    if (block == 2) run.figures[ArmMetric::output_rate] = NAN;
    if (block == 3) run.figures[ArmMetric::ttft_median] = 1e308;
    if (block == 4) run.figures.erase(ArmMetric::output_rate);
    if (block == 6) run.ran["engine"]["kv_cache"] = "native";
    return run;
  });
  for (const bool read_back : {false, true}) {
    if (read_back) journal.reset(), journal.emplace(path(), plan, PlanJson());
    const CompareResult result = judge(plan, journal->blocks(), ".");
    ASSERT_EQ(result.failed.size(), 5u);
    EXPECT_EQ(result.failed[0].reason, "output_tokens_per_s is 0: wanted a number from 1e-9 to 1e15");
    EXPECT_EQ(result.failed[1].reason, "output_tokens_per_s is nan: wanted a number from 1e-9 to 1e15");
    EXPECT_EQ(result.failed[2].reason, "ttft_median_ms is 1e+308: wanted a number from 1e-9 to 1e15");
    EXPECT_EQ(result.failed[3].reason, "the run has no throughput");
    EXPECT_NE(result.failed[4].reason.find("in block 5 as"), std::string::npos);
    EXPECT_EQ(result.exit_code, 2);
    EXPECT_EQ(result.comparisons[0].figures.present, 1u);
    EXPECT_EQ(result.comparisons[0].adjusted_p, 1);
  }
}

TEST_F(CompareBlocks, AJournalOfAnotherPlanIsRefused) {
  const ComparePlan plan = frozen(sample_plan()), other = frozen(sample_plan(7));
  { BlockJournal journal(path(), plan, {}); }
  EXPECT_NE(refusal([&] { BlockJournal journal(path(), other, {}); }).find("belongs to the plan"), std::string::npos);
  LineJournal(path()).append({{R"({"plan_sha256":")" + plan.sha256 + R"(","block":2,"runs":[]})"}});
  EXPECT_NE(refusal([&] { BlockJournal journal(path(), plan, {}); }).find("wanted block 1, found 2"), std::string::npos);
}

TEST_F(CompareBlocks, ASecondRunOfThePlanIsRefusedAndAnEditedFigureNoticed) {
  const ComparePlan plan = frozen(sample_plan());
  {
    BlockJournal journal(path(), plan, {});
    EXPECT_EQ(refusal([&] { BlockJournal second(path(), plan, {}); }), path() + ": another run is writing it");
    run_blocks(plan, journal, plan.blocks, fake_run);
  }
  std::string text = bytes(path());
  const std::size_t third = text.find("\"block\":3"), figure = text.find("_per_s\":1", third) + 8;
  text[figure] = '9';
  std::ofstream(path(), std::ios::binary) << text;
  EXPECT_EQ(refusal([&] { BlockJournal journal(path(), plan, {}); }), path() + ":4: edited: it, or a line before it, is not what was written");
}

TEST_F(CompareBlocks, EveryRecordIsHeadedByThePlansHash) {
  const ComparePlan plan = frozen(sample_plan(2));
  BlockJournal journal(path(), plan, {{"keel_version", "x"}});
  run_blocks(plan, journal, plan.blocks, fake_run);
  std::ifstream in(path());
  int lines = 0;
  for (std::string line; std::getline(in, line); ++lines) EXPECT_TRUE(line.starts_with("{\"plan_sha256\":\"" + plan.sha256)) << line;
  EXPECT_EQ(lines, 3);
}

}  // namespace
}  // namespace keel
