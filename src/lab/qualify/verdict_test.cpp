#include "lab/qualify/verdict.h"

#include <gtest/gtest.h>

#include <cmath>

#include "lab/stats.h"

namespace keel {
namespace {

using Json = nlohmann::json;

std::vector<Json> documents(std::vector<double> rises, double control = 3) {
  std::vector<Json> found;
  for (const double rise : rises) {
    found.push_back({{"control", control}, {"rerun", control}, {"candidate", control + rise}, {"kl_rerun", 0.0}, {"kl_candidate", 0.001}, {"same_top_rerun", 128}, {"same_top_candidate", 127}, {"targets", 128}});
  }
  return found;
}
constexpr NllRule kRule{.limit = 0.00995, .floor = 5};

TEST(NllVerdict, ComparesTheBootstrapLimitWithTheRule) {
  std::vector<double> small(32), large(32);
  for (int i = 0; i < 32; ++i) small[i] = 0.001 * (i % 5 - 2), large[i] = small[i] + 0.05;
  const GateResult passed = judge_nll(documents(small), kRule), failed = judge_nll(documents(large), kRule);
  EXPECT_EQ(passed.verdict, Verdict::pass) << passed.why;
  EXPECT_EQ(failed.verdict, Verdict::fail) << failed.why;
  std::vector<double> rises;
  for (const double x : large) rises.push_back((3 + x) - 3);
  EXPECT_EQ(failed.figures["rise_upper"], bootstrap_mean_upper(rises).upper);
  EXPECT_EQ(passed.figures["targets"], 32 * 128);
  EXPECT_DOUBLE_EQ(passed.figures["top1_agreement"].get<double>(), 127.0 / 128);
  EXPECT_EQ(passed.figures["rerun"]["mean_rise"], 0);
}

TEST(NllVerdict, AMeanWithinTheLimitFailsWhereItsUpperLimitIsNot) {
  std::vector<double> wide(8);
  for (int i = 0; i < 8; ++i) wide[i] = i % 2 == 0 ? 0.1 : -0.09;
  const GateResult result = judge_nll(documents(wide), kRule);
  EXPECT_LT(result.figures["mean_rise"], kRule.limit);
  EXPECT_EQ(result.verdict, Verdict::fail) << result.why;
  EXPECT_LT(result.figures["power"]["chance_to_pass_without_any_rise_at_this_spread"], 0.5);
}

TEST(NllVerdict, TheFloorAndNumbersThatAreNoneFailByName) {
  const GateResult floor = judge_nll(documents({0, 0}, 6), kRule);
  EXPECT_EQ(floor.verdict, Verdict::fail);
  EXPECT_NE(floor.why.find("native floor"), std::string::npos) << floor.why;
  std::vector<Json> some = documents({0, 0, 0});
  some[1]["candidate"] = nullptr;
  const GateResult none = judge_nll(some, kRule);
  EXPECT_EQ(none.verdict, Verdict::fail);
  EXPECT_NE(none.why.find("document 1"), std::string::npos) << none.why;
}

struct Answers {
  std::vector<std::string> labels;
  std::vector<Json> control, rerun, candidate;
  // The first `losses` items are lost, the next `gains` gained, of those after them the control has `wrong` wrong in all arms.
  Answers(int items, int losses, int gains, int wrong, int own_losses = 0) {
    for (int i = 0; i < items; ++i) {
      const bool gained = i >= losses && i < losses + gains, lost = i < losses, missed = i >= items - wrong;
      labels.push_back("item " + std::to_string(i));
      control.push_back({{"right", !gained && !missed}, {"finish", "stop"}, {"answer", "a"}});
      candidate.push_back({{"right", !lost && !missed}, {"finish", "stop"}, {"answer", "b"}});
      rerun.push_back({{"right", !gained && !missed && i >= own_losses}, {"finish", "stop"}, {"answer", "c"}});
    }
  }
  GateResult judge(AnswerRule rule) const { return judge_answers("questions", labels, control, rerun, candidate, rule); }
};

TEST(AnswerVerdict, JudgesLossesAloneAndNotTheNetScore) {
  const AnswerRule rule{.limit = 0.02, .floor = 0.2};
  EXPECT_EQ(Answers(1319, 17, 19, 100).judge(rule).verdict, Verdict::pass);
  const GateResult failed = Answers(1319, 18, 40, 100).judge(rule);
  EXPECT_EQ(failed.verdict, Verdict::fail);  // more right than the control, and still
  EXPECT_GT(failed.figures["candidate"]["right"], failed.figures["candidate"]["control_right"]);
  EXPECT_NEAR(failed.figures["candidate"]["gross_loss_upper"].get<double>(), 0.0201696289, 1e-9);
  EXPECT_EQ(failed.figures["power"]["most_losses_that_pass"], 17);
  EXPECT_EQ(Answers(100, 1, 0, 0).judge({.limit = 0.05, .floor = 0.5}).verdict, Verdict::pass);
  EXPECT_EQ(Answers(100, 2, 0, 0).judge({.limit = 0.05, .floor = 0.5}).verdict, Verdict::fail);
}

TEST(AnswerVerdict, TheFloorFailsByNameAndTooFewItemsCannotPass) {
  const GateResult floor = Answers(100, 0, 0, 59).judge({.limit = 0.05, .floor = 0.5});
  EXPECT_EQ(floor.verdict, Verdict::fail);
  EXPECT_NE(floor.why.find("native floor"), std::string::npos) << floor.why;
  const GateResult few = Answers(20, 0, 0, 0).judge({.limit = 0.05, .floor = 0.5});
  EXPECT_EQ(few.verdict, Verdict::fail);
  EXPECT_NE(few.why.find("cannot pass"), std::string::npos) << few.why;
  EXPECT_TRUE(few.figures["power"]["most_losses_that_pass"].is_null());
}

TEST(AnswerVerdict, ThePowerLineUsesTheControlsOwnRate) {
  const GateResult result = Answers(1319, 0, 0, 0, 13).judge({.limit = 0.02, .floor = 0.2});
  EXPECT_DOUBLE_EQ(result.figures["power"]["chance_to_pass_at_that_rate"].get<double>(), chance_to_pass(0.02, 1319, 13.0 / 1319));
}

Json item(const std::string& name, bool applies, bool passed) { return {{"name", name}, {"applies", applies}, {"passed", passed}, {"detail", Json::object()}}; }

TEST(ProductionVerdict, AnUndetectedFaultOrTooFewOfThemFail) {
  std::vector<Json> items{item("writer", true, true)};
  for (int i = 0; i < 12; ++i) items.push_back(item("fault: " + std::to_string(i), true, true));
  EXPECT_EQ(judge_production(items, 12).verdict, Verdict::pass);
  EXPECT_EQ(judge_production(items, 13).verdict, Verdict::fail);
  items.push_back(item("fault: not here", false, false));
  EXPECT_EQ(judge_production(items, 12).verdict, Verdict::pass);
  EXPECT_EQ(judge_production(items, 13).verdict, Verdict::fail);
  items[5]["passed"] = false;
  const GateResult unseen = judge_production(items, 11);
  EXPECT_EQ(unseen.verdict, Verdict::fail);
  EXPECT_NE(unseen.why.find("fault: 4 was not detected"), std::string::npos) << unseen.why;
  items[5]["passed"] = true;
  items[0]["passed"] = false;
  EXPECT_EQ(judge_production(items, 12).why, "failed: writer");
}

TEST(Overall, TheFirstGateThatDoesNotPassDecides) {
  const auto gates = [](std::vector<Verdict> verdicts) {
    std::vector<GateResult> results;
    for (const Verdict verdict : verdicts) results.push_back({.gate = "g", .verdict = verdict});
    return overall(results);
  };
  EXPECT_EQ(gates({Verdict::pass, Verdict::pass}), Verdict::pass);
  EXPECT_EQ(gates({Verdict::pass, Verdict::fail, Verdict::not_reached}), Verdict::fail);
  EXPECT_EQ(gates({Verdict::pass, Verdict::not_reached}), Verdict::not_reached);
}

}  // namespace
}  // namespace keel
