#include "lab/hill_fit.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>

#include "base/option_error.h"
#include "base/random.h"
#include "lab/hill_fit_report.h"
#include "lab/xml_problem.h"

namespace keel {
namespace {

using Json = nlohmann::json;

Json vectors() {
  const std::filesystem::path path = std::filesystem::path(KEEL_SHARED_DIR) / "vectors/hill.json";
  return std::filesystem::exists(path) ? Json::parse(std::ifstream(path)) : Json();
}

constexpr double kBatches[] = {1, 2, 4, 8, 16, 24, 32, 48, 64, 96};

// Normal noise of a share of each value, by Box and Muller.
std::vector<SweepPoint> drawn(const Hill& hill, std::span<const double> batches, double noise, std::uint64_t seed) {
  std::vector<SweepPoint> points;
  std::uint64_t draw = 0;
  for (const double batch : batches) {
    const double u = random_unit(seed, draw++), v = random_unit(seed, draw++);
    const double normal = std::sqrt(-2 * std::log(1 - u)) * std::cos(2 * 3.14159265358979 * v);
    points.push_back({8192, batch, hill.at(batch) + noise * hill.ceiling * normal});
  }
  return points;
}

std::string refusal(const std::function<void()>& action) {
  try {
    action();
  } catch (const OptionError& error) {
    return error.what();
  }
  return "";
}

bool is_flagged(const HillFit& fit, const char* word) {
  for (const std::string& flag : fit.flags) {
    if (flag.find(word) != std::string::npos) return true;
  }
  return false;
}

TEST(HillFit, SharesBatchesAndElasticityAreThoseOfTheVectors) {
  const Json v = vectors();
  if (v.is_null()) GTEST_SKIP() << "no shared vectors here";
  const Json& share = v["share"];
  const Hill hill{1, share["half_batch"], share["gamma"]};
  for (std::size_t i = 0; i < share["batch"].size(); ++i) EXPECT_NEAR(hill.share(share["batch"][i]), share["expected"][i], 5e-6);
  const Json& wanted = v["batch_for_share"];
  for (std::size_t i = 0; i < wanted["share"].size(); ++i) EXPECT_NEAR(hill.batch_for_share(wanted["share"][i]), wanted["expected"][i], 5e-4);
  const Json& elasticity = v["elasticity"];
  const Hill plain{1, 1, elasticity["gamma"]};
  EXPECT_NEAR(plain.elasticity(plain.batch_for_share(elasticity["share"])), elasticity["expected"], 1e-12);
}

TEST(HillFit, CapacityGainsAndTokenTimesAreThoseOfTheVectors) {
  const Json v = vectors();
  if (v.is_null()) GTEST_SKIP() << "no shared vectors here";
  const Hill hill{100, 10, 1};
  for (const Json& one : v["finite_capacity_gamma1"]) {
    const double batch = hill.batch_for_share(one["start_share"]), factor = one["f"];
    EXPECT_NEAR(hill.throughput_gain(batch, factor), one["throughput_x"], 5e-7);
    EXPECT_NEAR(hill.share(batch * factor), one["new_share"], 5e-7);
    if (one.contains("tpot_x")) {
      EXPECT_NEAR(hill.token_time_gain(batch, factor), one["tpot_x"], 5e-7);
    }
    EXPECT_NEAR(hill.throughput_gain(batch, factor), factor * (hill.half_batch + batch) / (hill.half_batch + factor * batch), 1e-12);
  }
}

TEST(HillFit, ALinearStepTimeGivesGammaOneAndItsOwnConstants) {
  const double a = 0.020, b = 0.0005;  // seconds: step = a + b·B
  std::vector<SweepPoint> points;
  for (const double batch : kBatches) points.push_back({4096, batch, batch / (a + b * batch)});
  const HillFit fit = fit_hill(points);
  EXPECT_NEAR(fit.hill.gamma, 1, 1e-5);
  EXPECT_NEAR(fit.hill.ceiling * b, 1, 1e-5);
  EXPECT_NEAR(fit.hill.half_batch / (a / b), 1, 1e-4);
  EXPECT_NEAR(fit.r_squared, 1, 1e-10);
}

TEST(HillFit, ExactDataAreRecoveredOverTheWholeBox) {
  for (const double half : {0.5, 5.1, 40.0, 90.0}) {
    for (const double gamma : {0.6, 1.0, 1.32, 2.5}) {
      const Hill planted{2000, half, gamma};
      const HillFit fit = fit_hill(drawn(planted, kBatches, 0, 1));
      EXPECT_NEAR(fit.hill.ceiling / planted.ceiling, 1, 1e-3) << half << " " << gamma;
      EXPECT_NEAR(fit.hill.half_batch / half, 1, 1e-3) << half << " " << gamma;
      EXPECT_NEAR(fit.hill.gamma / gamma, 1, 1e-3) << half << " " << gamma;
    }
  }
}

TEST(HillFit, TheSizeOfTheFiguresDoesNotMatter) {
  for (const double speed : {1e-7, 1.0, 1e11}) {
    for (const double size : {1e-8, 1.0, 1e12}) {
      std::vector<SweepPoint> points = drawn({2000, 12, 1.3}, kBatches, 0.01, 4);
      for (SweepPoint& point : points) point.tokens_per_s *= speed, point.batch *= size;
      const HillFit plain = fit_hill(drawn({2000, 12, 1.3}, kBatches, 0.01, 4)), scaled = fit_hill(points);
      EXPECT_NEAR(scaled.hill.ceiling / plain.hill.ceiling / speed, 1, 1e-6) << speed << " " << size;
      EXPECT_NEAR(scaled.hill.half_batch / plain.hill.half_batch / size, 1, 1e-6) << speed << " " << size;
      EXPECT_NEAR(scaled.hill.gamma / plain.hill.gamma, 1, 1e-6) << speed << " " << size;
      ASSERT_TRUE(scaled.gamma && plain.gamma);
      EXPECT_NEAR(scaled.gamma->high / plain.gamma->high, 1, 1e-3) << speed << " " << size;
      EXPECT_EQ(scaled.flags.size(), plain.flags.size());
    }
  }
}

// The intervals' promise. 95 % of draws in the long run; 100 draws give 93 or more with probability 0.87, so the seed is part of the test.
TEST(HillFit, PlantedParametersLieWithinTheirIntervalsInNearlyAllNoisyDraws) {
  const Hill planted{1800, 12, 1.2};
  int ceiling = 0, half = 0, gamma = 0;
  for (std::uint64_t draw = 0; draw < 100; ++draw) {
    const HillFit fit = fit_hill(drawn(planted, kBatches, 0.015, 1000 + draw));
    const auto covers = [](const HillInterval& range, double value) { return range.low <= value && value <= range.high; };
    ceiling += covers(*fit.ceiling, planted.ceiling);
    half += covers(*fit.half_batch, planted.half_batch);
    gamma += covers(*fit.gamma, planted.gamma);
    EXPECT_TRUE(covers(*fit.ceiling, fit.hill.ceiling) && covers(*fit.half_batch, fit.hill.half_batch) && covers(*fit.gamma, fit.hill.gamma));
  }
  EXPECT_GE(ceiling, 93);
  EXPECT_GE(half, 93);
  EXPECT_GE(gamma, 93);
  // and they are intervals of 95 %, not of everything
  EXPECT_LT(ceiling + half + gamma, 300);
}

TEST(HillFit, TheFitIsNoWorseThanAFineGrid) {
  for (std::uint64_t seed = 0; seed < 5; ++seed) {
    const auto points = drawn({1000, 20, 0.9}, kBatches, 0.1, seed);
    const HillFit fit = fit_hill(points);
    double fitted = 0, grid = 1e300;
    for (const double residual : fit.residuals) fitted += residual * residual;
    for (double half = 0.2; half < 5000; half *= 1.07) {
      for (double gamma = 0.11; gamma < 5; gamma *= 1.07) {
        const Hill shape{1, half, gamma};
        double both = 0, square = 0, sum = 0;
        for (const SweepPoint& p : points) both += shape.share(p.batch) * p.tokens_per_s, square += shape.share(p.batch) * shape.share(p.batch);
        for (const SweepPoint& p : points) sum += std::pow(p.tokens_per_s - both / square * shape.share(p.batch), 2);
        grid = std::min(grid, sum);
      }
    }
    EXPECT_LE(fitted, grid * (1 + 1e-9)) << seed;
  }
}

TEST(HillFit, ACeilingThatTheDataDoNotReachIsFlagged) {
  constexpr double kFew[] = {1, 2, 3, 4, 5, 6};
  const HillFit fit = fit_hill(drawn({5000, 80, 1}, kFew, 0.0005, 3));
  EXPECT_TRUE(is_flagged(fit, "the ceiling is not reached"));
  EXPECT_TRUE(is_flagged(fit, "no upper limit to Smax"));
  EXPECT_FALSE(is_flagged(fit_hill(drawn({1800, 12, 1.2}, kBatches, 0.01, 3)), "ceiling"));
}

TEST(HillFit, AParameterAtItsBoundIsFlagged) {
  std::vector<SweepPoint> step;  // steeper than any curve in the box
  for (const double batch : kBatches) step.push_back({1024, batch, batch < 12 ? 1.0 : 1000.0});
  EXPECT_TRUE(is_flagged(fit_hill(step), "γ lies at its upper bound 5"));
}

TEST(HillFit, ThroughputThatFallsIsFlaggedAndRepeatsAreAveragedFirst) {
  auto points = drawn({1800, 12, 1.2}, kBatches, 0, 1);
  EXPECT_FALSE(is_flagged(fit_hill(points), "monotone"));
  points.push_back({8192, 32, points[6].tokens_per_s * 0.999});  // a repeat below its twin, above its neighbour
  EXPECT_FALSE(is_flagged(fit_hill(points), "monotone"));
  points.back() = {8192, 128, points[9].tokens_per_s * 0.9};
  EXPECT_TRUE(is_flagged(fit_hill(points), "not monotone"));
}

TEST(HillFit, FewBatchesAreFlaggedAndTwoAreRefused) {
  constexpr double kThree[] = {1, 8, 64};
  const HillFit fit = fit_hill(drawn({1000, 8, 1}, kThree, 0, 1));
  EXPECT_TRUE(is_flagged(fit, "3 distinct batches"));
  EXPECT_TRUE(is_flagged(fit, "no interval"));
  EXPECT_FALSE(fit.ceiling);
  constexpr double kTwo[] = {1, 8, 8, 8};
  EXPECT_NE(refusal([&] { fit_hill(drawn({1000, 8, 1}, kTwo, 0, 1)); }).find("2 distinct batches"), std::string::npos);
}

TEST(HillFit, EachContextIsFittedByItself) {
  auto points = drawn({1800, 12, 1.2}, kBatches, 0, 1);
  for (SweepPoint p : drawn({900, 6, 1}, kBatches, 0, 1)) points.push_back({1024, p.batch, p.tokens_per_s});
  const auto fits = fit_contexts(points);
  ASSERT_EQ(fits.size(), 2u);
  EXPECT_EQ(fits[0].context, 1024);
  EXPECT_NEAR(fits[0].hill.ceiling, 900, 1);
  EXPECT_NEAR(fits[1].hill.ceiling, 1800, 2);
}

TEST(HillFit, CsvAndJsonLinesSayTheSame) {
  const auto csv = read_sweep("batch,context,tokens/s,note\r\n# pilot\n1,1024,100,a\n\n2, 1024 ,180,b\n", "x.csv", false);
  const auto json = read_sweep("{\"context\":1024,\"batch\":1,\"tokens_per_s\":100,\"note\":\"a\"}\n{\"context\":1024,\"batch\":2,\"tokens_per_s\":180}\n", "x.jsonl", true);
  ASSERT_EQ(csv.size(), 2u);
  ASSERT_EQ(json.size(), 2u);
  for (std::size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(csv[i].context, json[i].context);
    EXPECT_EQ(csv[i].batch, json[i].batch);
    EXPECT_EQ(csv[i].tokens_per_s, json[i].tokens_per_s);
  }
}

TEST(HillFit, WrongFilesAreRefusedWithTheirLine) {
  const std::string head = "context,batch,tokens_per_s\n";
  struct Case {
    std::string text;
    bool json;
    const char* said;
  };
  for (const Case& one : {Case{"", false, "no measured points"}, Case{head, false, "no measured points"}, Case{"context,batch\n1,2\n", false, "x:1: the header"},
                          Case{head + "1,2,3\n1,2\n", false, "x:3: wanted 3 columns"}, Case{head + "1,2,many\n", false, "found 'many'"},
                          Case{head + "1,2,nan\n", false, "x:2: tokens_per_s: wanted a number from 1e-09 to 1e+15, found nan"}, Case{head + "1,0,3\n", false, "x:2: batch: wanted a number from"},
                          Case{head + "1,2,-3\n", false, "found -3"}, Case{head + "1,2,inf\n", false, "found inf"}, Case{head + "1,2,3\n1,4,1e308\n", false, "x:3: tokens_per_s: wanted a number from 1e-09 to 1e+15, found 1e+308"},
                          Case{head + "1e308,2,3\n", false, "x:2: context: wanted"}, Case{head + "1,1e-300,3\n", false, "x:2: batch: wanted"}, Case{head + "1,2,1e999\n", false, "x:2: tokens_per_s: wanted a number, found '1e999'"},
                          Case{"{\"context\":1,\"batch\":2,\"tokens_per_s\":1e308}\n", true, "x:1: tokens_per_s: wanted a number from"}, Case{"{\"context\":1,\"batch\":2,\"tokens_per_s\":1e999}\n", true, "x:1: "}, Case{"{\"context\":1}\n", true, "x:1: batch is missing"},
                          Case{"[1]\n", true, "wanted an object"}, Case{"{\"context\":\n", true, "x:1:"}, Case{"{\"context\":\"1\"}\n", true, "wanted one number"}}) {
    const std::string said = refusal([&] { read_sweep(one.text, "x", one.json); });
    EXPECT_NE(said.find(one.said), std::string::npos) << one.text << "\n" << said;
  }
}

TEST(HillFit, ACurveIsReadBackFromItsJsonAtItsContextAlone) {
  const HillFit fits[] = {fit_hill(drawn({1800, 12, 1.2}, kBatches, 0.01, 3))};
  const std::string json = as_json(fits, {}).dump();
  const MeasuredCurve curve = read_curve(json, "x", 8192);
  EXPECT_EQ(curve.hill.ceiling, fits[0].hill.ceiling);
  EXPECT_EQ(curve.hill.half_batch, fits[0].hill.half_batch);
  EXPECT_EQ(curve.hill.gamma, fits[0].hill.gamma);
  EXPECT_EQ(curve.largest_batch, 96);
  EXPECT_NE(refusal([&] { read_curve(json, "x", 1024); }).find("no fit at context 1024; there are fits at 8192"), std::string::npos);
  EXPECT_NE(refusal([&] { read_curve("{}", "x", 1024); }).find("keel fit --json"), std::string::npos);
  EXPECT_NE(refusal([&] { read_curve("[", "x", 1024); }).find("x: "), std::string::npos);
  const auto with = [&](const char* pointer, const Json& value) {
    Json edited = Json::parse(json);
    edited[Json::json_pointer(pointer)] = value;
    return refusal([&] { read_curve(edited.dump(), "x", 8192); });
  };
  EXPECT_NE(with("/fits/0/ceiling/value", 1e308).find("x: ceiling: wanted a number from"), std::string::npos);
  EXPECT_NE(with("/fits/0/half_batch/value", -1).find("x: half_batch: wanted"), std::string::npos);
  EXPECT_NE(with("/fits/0/gamma/value", 1e3).find("x: gamma: wanted"), std::string::npos);
  EXPECT_NE(with("/fits/0/gamma/value", "1").find("x: gamma: wanted"), std::string::npos);
  EXPECT_NE(with("/fits/0/points/3/batch", 1e308).find("x: batch: wanted"), std::string::npos);
  EXPECT_NE(with("/fits/0/points", Json::array()).find("has no points"), std::string::npos);
  EXPECT_NE(with("/fits/0/points", 7).find("x: "), std::string::npos);
  EXPECT_NE(with("/fits/0/flags", 7).find("x: wanted what"), std::string::npos);
  EXPECT_NE(with("/fits", 7).find("x: "), std::string::npos);
}

TEST(HillFit, TableJsonAndPlotShowEveryPointAndFlag) {
  constexpr double kFew[] = {1, 2, 3, 4, 5, 6};
  const HillFit fits[] = {fit_hill(drawn({5000, 80, 1}, kFew, 0.0005, 3))};
  EXPECT_NE(to_table(fits, {}).find("! the ceiling is not reached"), std::string::npos);
  EXPECT_EQ(as_json(fits, {})["fits"][0]["points"].size(), 6u);
  EXPECT_EQ(as_json(fits, {})["fits"][0]["flags"].size(), fits[0].flags.size());
  const std::string svg = to_svg(fits, "a < b & c"), html = to_html(fits, {}, "a < b & c");
  for (const std::string* text : {&svg, &html}) {
    EXPECT_EQ(xml_problem(*text), std::nullopt) << *xml_problem(*text);
    EXPECT_EQ(occurrences(*text, "<title>context 8192, batch"), 6);
    EXPECT_EQ(occurrences(*text, " %</title>"), 6);  // residuals
    EXPECT_GE(occurrences(*text, "a &lt; b &amp; c"), 1);
    EXPECT_EQ(occurrences(*text, "nan"), 0);
  }
  EXPECT_EQ(occurrences(html, "context 8192: the ceiling is not reached"), 1);
}

TEST(HillFit, BandHoldsTheTrueCurveInNinetyFiveOfAHundredDraws) {
  constexpr double kBatches[] = {1, 2, 4, 8, 16, 32, 64, 96};
  const Hill truth{4000, 12, 1.2};
  int held = 0;
  for (std::uint64_t seed = 0; seed < 150; ++seed) {
    const HillFit fit = fit_hill(drawn(truth, kBatches, 0.02, seed));
    const std::optional<Interval> band = curve_interval(fit, 24);
    ASSERT_TRUE(band);
    held += band->lower <= truth.at(24) && truth.at(24) <= band->upper;
  }
  EXPECT_GE(held, 133);  // 142.5 within 3.6 standard deviations
  EXPECT_LT(held, 150);
}

TEST(HillFit, BandIsAbsentWithoutPointsToSpare) {
  constexpr double kThree[] = {1, 4, 16};
  EXPECT_FALSE(curve_interval(fit_hill(drawn({4000, 12, 1.2}, kThree, 0.01, 1)), 4));
}

}  // namespace
}  // namespace keel
