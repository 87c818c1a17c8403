#include "lab/stats.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/random.h"

namespace keel {
namespace {

using Values = std::vector<double>;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

// P(X <= most) for X binomial(n, p), added term by term: no quantile, no incomplete beta.
double binomial_cdf(std::int64_t most, std::int64_t n, double p) {
  double sum = 0;
  for (std::int64_t k = 0; k <= most; ++k) {
    const double a = static_cast<double>(k), b = static_cast<double>(n - k);
    sum += std::exp(std::lgamma(a + b + 1) - std::lgamma(a + 1) - std::lgamma(b + 1) + a * std::log(p) + b * std::log1p(-p));
  }
  return sum;
}

Values random_values(std::uint64_t seed, std::size_t count) {
  Values values(count);
  for (std::size_t i = 0; i < count; ++i) values[i] = random_unit(seed, i);
  return values;
}

const Values kQwen3{0.9935141, 1.0046516, 1.0002696, 1.0014335, 1.0058214, 1.0016846, 1.0039351, 1.0036023, 1.0068204, 1.0015314};
const Values kPhi4{0.9736099, 0.9712515, 0.9746203, 0.9733828, 0.9734810, 0.9757707, 0.9715308, 0.9759696, 0.9730844, 0.9755253};

TEST(GrossLoss, TheUpperLimitSolvesItsDefinition) {
  struct Case {
    std::int64_t losses, of;
  };
  for (const auto& [losses, of] : {Case{0, 1}, Case{3, 5}, Case{0, 100}, Case{1, 100}, Case{99, 100}, Case{17, 1319}, Case{700, 1319}}) {
    for (const double confidence : {0.5, 0.95, 0.999}) {
      EXPECT_NEAR(binomial_cdf(losses, of, gross_loss_upper(losses, of, confidence)), 1 - confidence, 1e-10) << losses << " of " << of;
    }
  }
  EXPECT_NEAR(gross_loss_upper(0, 1319), 1 - std::pow(0.05, 1.0 / 1319), 1e-15);
  EXPECT_EQ(gross_loss_upper(7, 7), 1);
}

// Percent, to every digit.
TEST(GrossLoss, TheUpperLimitReproducesPublishedOnes) {
  struct Case {
    std::int64_t losses, of;
    double percent;
  };
  for (const Case& one : {Case{2, 100, 6.16192004}, Case{20, 1319, 2.19575905}, Case{42, 1319, 4.09924333}}) {
    EXPECT_NEAR(100 * gross_loss_upper(one.losses, one.of), one.percent, 0.5e-8);
  }
}

TEST(GrossLoss, TheUpperLimitCoversTheTruthAsOftenAsItSays) {
  constexpr std::int64_t kItems = 100, kRuns = 10'000;
  Values upper(kItems + 1);
  for (std::int64_t k = 0; k <= kItems; ++k) upper[k] = gross_loss_upper(k, kItems);
  std::uint64_t counter = 0;
  for (const double rate : {0.005, 0.02, 0.05, 0.1, 0.3, 0.5, 0.9}) {
    std::int64_t covered = 0;
    for (std::int64_t run = 0; run < kRuns; ++run) {
      std::int64_t losses = 0;
      for (std::int64_t i = 0; i < kItems; ++i) losses += random_unit(5, counter++) < rate;
      covered += upper[losses] >= rate;
    }
    const double four_sigma = 4 * std::sqrt(0.95 * 0.05 / kRuns);
    EXPECT_GE(static_cast<double>(covered) / kRuns, 0.95 - four_sigma) << rate;
    if (rate >= 0.1) {  // coarse counts make it cover more than it says, never much more in the middle
      EXPECT_LE(static_cast<double>(covered) / kRuns, 0.99) << rate;
    }
  }
}

TEST(GrossLoss, TheMostLossesThatPassAreThoseOfTheFrozenGates) {
  EXPECT_EQ(most_losses_within(0.02, 1319), 17);
  EXPECT_EQ(most_losses_within(0.05, 100), 1);
  EXPECT_EQ(most_losses_within(0.02, 100), std::nullopt);  // no loss at all of 100 still leaves 2.95 %
  EXPECT_EQ(most_losses_within(1, 10), 10);
  for (std::int64_t of : {150, 399, 1319, 100'000}) {
    const std::int64_t most = most_losses_within(0.02, of).value();
    EXPECT_LE(gross_loss_upper(most, of), 0.02);
    EXPECT_GT(gross_loss_upper(most + 1, of), 0.02);
  }
}

TEST(GrossLoss, TheChanceToPassIsTheBinomialOne) {
  for (const double rate : {0.001, 0.0129, 0.02, 0.1}) {
    EXPECT_NEAR(chance_to_pass(0.02, 1319, rate), binomial_cdf(17, 1319, rate), 1e-12);
  }
  EXPECT_NEAR(chance_to_pass(0.02, 1319, gross_loss_upper(17, 1319, 0.2)), 0.8, 1e-12);
  EXPECT_EQ(chance_to_pass(0.02, 1319, 0), 1);
  EXPECT_EQ(chance_to_pass(0.02, 1319, 1), 0);
  EXPECT_EQ(chance_to_pass(0.02, 100, 0), 0);
  EXPECT_EQ(chance_to_pass(1, 100, 1), 1);
}

TEST(GrossLoss, GainsDoNotOffsetLosses) {
  PairedOutcomes outcomes;
  outcomes.add(true, true);
  outcomes.add(true, false);
  outcomes.add(false, true);
  outcomes.add(false, true);
  outcomes.add(false, false);
  EXPECT_EQ(outcomes.items, 5);
  EXPECT_EQ(outcomes.losses, 1);
  EXPECT_EQ(outcomes.gains, 2);
  EXPECT_EQ(outcomes.control_right, 2);
  EXPECT_EQ(outcomes.candidate_right, outcomes.control_right - outcomes.losses + outcomes.gains);
}

TEST(SignTest, CountsEveryPatternOfWins) {
  for (int n = 1; n <= 12; ++n) {
    for (int wins = 0; wins <= n; ++wins) {
      int patterns = 0;
      for (unsigned bits = 0; bits < 1u << n; ++bits) patterns += __builtin_popcount(bits) >= wins;
      EXPECT_EQ(sign_test_p(wins, n), patterns / std::ldexp(1.0, n));
    }
  }
}

TEST(SignTest, IsTheSameOnBothSidesOfExactCounting) {
  for (const std::int64_t n : {59, 60, 61, 200}) {
    for (const std::int64_t wins : {n / 2, n - 3}) {
      EXPECT_NEAR(sign_test_p(wins, n) / binomial_cdf(n - wins, n, 0.5), 1, 1e-11);
    }
  }
}

TEST(SignTest, ATieIsNoWin) {
  const SignTest test = sign_test(Values{1.2, 1, 0.9, 1.0000001});
  EXPECT_EQ(test.wins, 2);
  EXPECT_EQ(test.ties, 1);
  EXPECT_EQ(test.losses, 1);
  EXPECT_EQ(test.p, 11.0 / 16);
  EXPECT_EQ(sign_test(kQwen3).p, 0.0107421875);
  EXPECT_EQ(sign_test(kPhi4).p, 1);
}

TEST(Holm, MissingComparisonsCountAsOnesOfP) {
  const Values p{0.01, 0.002, 0.2, 0.002};
  Values filled = p;
  filled.resize(24, 1.0);
  const Values all = holm(filled, 24), given = holm(p, 24);
  EXPECT_TRUE(std::ranges::equal(given, std::span(all).first(p.size())));
  EXPECT_EQ(all.back(), 1);
  EXPECT_EQ(given, (Values{0.22, 0.048, 1, 0.048}));
}

TEST(Holm, IsMonotone) {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    Values p = random_values(seed, 1 + seed % 9);
    for (double& one : p) one = one * one * one;  // some small
    const std::int64_t family = std::ssize(p) + static_cast<std::int64_t>(seed % 4);
    const Values adjusted = holm(p, family), wider = holm(p, family + 1);
    for (std::size_t i = 0; i < p.size(); ++i) {
      EXPECT_GE(adjusted[i], p[i]);
      EXPECT_LE(adjusted[i], std::min(1.0, static_cast<double>(family) * p[i]));  // Bonferroni's
      EXPECT_GE(wider[i], adjusted[i]);
      for (std::size_t j = 0; j < p.size(); ++j) {
        if (p[i] <= p[j]) {
          EXPECT_LE(adjusted[i], adjusted[j]);
        }
      }
      Values raised = p;
      raised[i] = std::min(1.0, 2 * raised[i]);
      const Values after = holm(raised, family);
      for (std::size_t j = 0; j < p.size(); ++j) EXPECT_GE(after[j], adjusted[j]);
    }
  }
}

// The medians of all n^n resamples, counted.
std::map<double, std::int64_t> counted_medians(const Values& values) {
  std::map<double, std::int64_t> counts;
  std::vector<std::size_t> pick(values.size(), 0);
  for (std::size_t place = 0; place < pick.size();) {
    Values resample;
    for (const std::size_t i : pick) resample.push_back(values[i]);
    ++counts[median(resample)];
    for (place = 0; place < pick.size() && ++pick[place] == values.size(); ++place) pick[place] = 0;
  }
  return counts;
}

TEST(BootstrapMedian, IsThatOfAllResamples) {
  for (std::size_t n = 1; n <= 6; ++n) {
    for (std::uint64_t seed = 0; seed < 4; ++seed) {
      Values values = random_values(seed, n);
      if (seed > 1) {
        for (double& value : values) value = std::floor(3 * value);  // ties
      }
      const std::map<double, std::int64_t> counts = counted_medians(values);
      const double all = std::pow(n, n);
      const std::vector<Atom> atoms = bootstrap_median(values);
      ASSERT_EQ(atoms.size(), counts.size());
      std::size_t at = 0;
      for (const auto& [value, count] : counts) {
        EXPECT_EQ(atoms[at].value, value);
        EXPECT_NEAR(atoms[at++].probability, static_cast<double>(count) / all, 1e-14);
      }
      for (const double confidence : {0.5, 0.8, 0.95, 0.99}) {
        const Interval interval = bootstrap_median_interval(values, confidence);
        const auto reaching = [&](double level) {
          double sum = 0;
          for (const auto& [value, count] : counts) {
            sum += static_cast<double>(count);
            if (sum / all >= level - 1e-12) return value;
          }
          return kNan;
        };
        EXPECT_EQ(interval.lower, reaching((1 - confidence) / 2));
        EXPECT_EQ(interval.upper, reaching((1 + confidence) / 2));
      }
    }
  }
}

TEST(BootstrapMedian, ReproducesPublishedIntervals) {
  const Interval qwen3 = bootstrap_median_interval(kQwen3), phi4 = bootstrap_median_interval(kPhi4);
  EXPECT_NEAR(median(kQwen3), 1.00264345, 1e-12);
  EXPECT_NEAR(qwen3.lower, 1.0009005, 1e-12);
  EXPECT_NEAR(qwen3.upper, 1.00487825, 1e-12);
  EXPECT_NEAR(median(kPhi4), 0.97354545, 1e-12);
  EXPECT_NEAR(phi4.lower, 0.9724568, 1e-12);
  EXPECT_NEAR(phi4.upper, 0.9755253, 1e-12);
}

TEST(BootstrapMedian, AddsUpAtItsLargestSizes) {
  for (const std::size_t n : {999, 1000}) {
    double sum = 0;
    for (const Atom& atom : bootstrap_median(random_values(3, n))) sum += atom.probability;
    EXPECT_NEAR(sum, 1, 1e-9);
  }
  EXPECT_THROW(bootstrap_median(Values(1001, 1.0)), Error);
}

TEST(BootstrapMean, IsTheQuantileOfAllResamplesWithinItsNoise) {
  const Values values{0.3, -0.1, 0.05, 0.9, 0.2, -0.4};
  std::vector<std::size_t> pick(values.size(), 0);
  Values means;
  for (std::size_t place = 0; place < pick.size();) {
    double sum = 0;
    for (const std::size_t i : pick) sum += values[i];
    means.push_back(sum / static_cast<double>(values.size()));
    for (place = 0; place < pick.size() && ++pick[place] == values.size(); ++place) pick[place] = 0;
  }
  std::ranges::sort(means);
  const MeanLimit limit = bootstrap_mean_upper(values);
  EXPECT_NEAR(limit.mean, 0.95 / 6, 1e-15);
  const auto below = std::ranges::upper_bound(means, limit.upper + 1e-9) - means.begin();
  EXPECT_NEAR(static_cast<double>(below) / static_cast<double>(means.size()), 0.95, 0.006);
}

TEST(BootstrapMean, KeepsItsDrawsAndItsQuantileRule) {
  const Values values{4, 8, 15, 16, 23, 42};
  EXPECT_EQ(bootstrap_mean_upper(values).upper, bootstrap_mean_upper(values).upper);
  // Twenty draws, one apart: the 19th smallest is what 95 % of them do not exceed.
  const BootstrapPlan plan{.draws = 20, .seed = 9};
  Values means;
  for (std::uint64_t draw = 0; draw < 20; ++draw) {
    double sum = 0;
    for (std::uint64_t i = 0; i < 6; ++i) sum += values[static_cast<std::size_t>(6 * random_unit(9, 6 * draw + i))];
    means.push_back(sum / 6);
  }
  std::ranges::sort(means);
  EXPECT_EQ(bootstrap_mean_upper(values, plan).upper, means[18]);
  EXPECT_EQ(bootstrap_mean_upper(Values{7, 7, 7}).upper, 7);
  EXPECT_EQ(bootstrap_mean_upper(Values{-0.25}).upper, -0.25);
}

TEST(BootstrapMean, CoversTheTruthOfThirtyTwoDocumentsNearlyAsOftenAsItSays) {
  constexpr int kRuns = 2000;
  int covered = 0;
  for (std::uint64_t run = 0; run < kRuns; ++run) {
    Values documents(32);
    for (std::size_t i = 0; i < documents.size(); ++i) {  // standard normal, by Box and Muller
      const double u = 1 - random_unit(77, 2 * (32 * run + i)), v = random_unit(77, 2 * (32 * run + i) + 1);
      documents[i] = std::sqrt(-2 * std::log(u)) * std::cos(6.283185307179586 * v);
    }
    covered += bootstrap_mean_upper(documents, {.draws = 1000, .seed = run}).upper >= 0;
  }
  RecordProperty("covered_of_2000", covered);
  EXPECT_GE(covered, kRuns * 0.92);
  EXPECT_LE(covered, kRuns * 0.97);
}

TEST(Spearman, IsTheFormulaOfRankDifferencesWhereNothingTies) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    const std::size_t n = 3 + seed;
    const Values x = random_values(seed, n), y = random_values(seed + 100, n);
    const auto rank = [](const Values& values, double value) { return std::ranges::count_if(values, [&](double v) { return v <= value; }); };
    double squares = 0;
    for (std::size_t i = 0; i < n; ++i) squares += std::pow(rank(x, x[i]) - rank(y, y[i]), 2);
    const double size = static_cast<double>(n);
    EXPECT_NEAR(spearman(x, y), 1 - 6 * squares / (size * (size * size - 1)), 1e-14);
    Values curved = x, falling = x;
    for (double& value : curved) value = std::exp(5 * value);
    for (double& value : falling) value = -value;
    EXPECT_EQ(spearman(curved, y), spearman(x, y));
    EXPECT_EQ(spearman(x, curved), 1);
    EXPECT_EQ(spearman(x, falling), -1);
  }
}

TEST(Spearman, EqualValuesShareTheMeanOfTheirRanks) {
  EXPECT_DOUBLE_EQ(spearman(Values{1, 2, 2, 3}, Values{1, 3, 2, 2}), 0.5);  // ranks 1, 2.5, 2.5, 4 and 1, 4, 2.5, 2.5
  EXPECT_DOUBLE_EQ(spearman(Values{1, 2, 2, 3}, Values{10, 20, 20, 30}), 1);
  EXPECT_DOUBLE_EQ(spearman(Values{1, 1, 2}, Values{1, 2, 3}), std::sqrt(3) / 2);
}

TEST(Stats, NumbersWithoutAStatisticAreRefused) {
  EXPECT_THROW(gross_loss_upper(12, 11), Error);
  EXPECT_THROW(gross_loss_upper(-1, 11), Error);
  EXPECT_THROW(gross_loss_upper(0, 0), Error);
  EXPECT_THROW(gross_loss_upper(0, kMostItems + 1), Error);
  EXPECT_THROW(gross_loss_upper(1, 10, 1), Error);
  EXPECT_THROW(gross_loss_upper(1, 10, kNan), Error);
  EXPECT_THROW(most_losses_within(kNan, 10), Error);
  EXPECT_THROW(chance_to_pass(0.02, 1319, 1.3), Error);
  EXPECT_THROW(sign_test_p(11, 10), Error);
  EXPECT_THROW(sign_test_p(0, 0), Error);
  for (const double bad : {0.0, -1.0, kNan, kInfinity}) EXPECT_THROW(sign_test(Values{1.1, bad}), Error) << bad;
  for (const double bad : {-0.1, 1.1, kNan}) EXPECT_THROW(holm(Values{0.5, bad}, 2), Error) << bad;
  EXPECT_THROW(holm(Values{0.1, 0.2, 0.3}, 2), Error);
  const Values none, with_nan{1, kNan};
  EXPECT_THROW(sign_test(none), Error);
  EXPECT_THROW(holm(none, 2), Error);
  EXPECT_THROW(median(none), Error);
  EXPECT_THROW(median(with_nan), Error);
  EXPECT_THROW(bootstrap_median_interval(none), Error);
  EXPECT_THROW(bootstrap_median_interval(with_nan), Error);
  EXPECT_THROW(bootstrap_median_interval(kPhi4, 0), Error);
  EXPECT_THROW(bootstrap_mean_upper(none), Error);
  EXPECT_THROW(bootstrap_mean_upper(with_nan), Error);
  EXPECT_THROW(bootstrap_mean_upper(kPhi4, {.draws = 0}), Error);
  EXPECT_THROW(spearman(none, none), Error);
  EXPECT_THROW(spearman(Values{1, 2}, Values{1, 2, 3}), Error);
  EXPECT_THROW(spearman(Values{1, 2}, with_nan), Error);
  EXPECT_THROW(spearman(Values{1, 2}, Values{3, 3}), Error);
}

TEST(Speculation, RhoIsOneWhereSpeedUpsMultiply) {
  for (int i = 0; i < 100; ++i) {
    const double base = 1 + 1000 * random_unit(3, 4 * i), quant = 0.5 + random_unit(3, 4 * i + 1), spec = 0.5 + 2 * random_unit(3, 4 * i + 2), rho = 0.2 + 2 * random_unit(3, 4 * i + 3);
    const SpeculationBlock block{base, base * quant, base * spec, base * quant * spec * rho};
    EXPECT_NEAR(block.rho(), rho, 1e-12);
    const double unit = 7.5;  // whatever throughput is counted in
    EXPECT_NEAR((SpeculationBlock{unit * block.base, unit * block.quant, unit * block.spec, unit * block.both}.rho()), rho, 1e-12);
    EXPECT_NEAR((SpeculationBlock{block.base, block.spec, block.quant, block.both}.rho()), rho, 1e-12);  // the two are alike
  }
}

TEST(Speculation, TheMedianBlockIsJudgedAndItsIntervalToo) {
  const auto of = [](const Values& rhos) {
    std::vector<SpeculationBlock> blocks;
    for (const double rho : rhos) blocks.push_back({100, 120, 150, 180 * rho});
    return speculation_ratio(blocks);
  };
  const SpeculationRatio one = of({0.62});
  EXPECT_EQ(one.composition, Composition::sub_multiplicative);
  EXPECT_EQ(one.interval.lower, one.interval.upper);
  const SpeculationRatio some = of({1.3, 1.5, 1.0, 1.95, 1.4});
  EXPECT_NEAR(some.rho, 1.4, 1e-12);
  EXPECT_EQ(some.composition, Composition::super_multiplicative);
  EXPECT_NEAR(some.interval.lower, 1.0, 1e-12);
  EXPECT_FALSE(some.settled);
  EXPECT_NEAR(some.quant, 1.2, 1e-12);
  EXPECT_NEAR(some.spec, 1.5, 1e-12);
  EXPECT_TRUE(of({0.95, 1.0, 1.05, 0.97, 1.02}).settled);
  EXPECT_EQ(composition_of(0.9), Composition::multiplicative);
  EXPECT_EQ(composition_of(1.1), Composition::multiplicative);
  EXPECT_EQ(composition_of(std::nextafter(0.9, 0)), Composition::sub_multiplicative);
  EXPECT_EQ(composition_of(std::nextafter(1.1, 2)), Composition::super_multiplicative);
}

TEST(Speculation, ThroughputsThatAreNoneAreRefused) {
  EXPECT_THROW(speculation_ratio({}), Error);
  for (const double wrong : {0.0, -1.0, kNan, kInfinity}) {
    for (const SpeculationBlock& block : {SpeculationBlock{wrong, 1, 1, 1}, SpeculationBlock{1, wrong, 1, 1}, SpeculationBlock{1, 1, wrong, 1}, SpeculationBlock{1, 1, 1, wrong}}) {
      EXPECT_THROW(speculation_ratio({&block, 1}), Error);
    }
  }
  for (const SpeculationBlock& block : {SpeculationBlock{1e308, 1e-308, 1e-308, 1e308}, SpeculationBlock{1e-308, 1e308, 1, 1}, SpeculationBlock{1, 1e-200, 1e-200, 1e200}}) {
    EXPECT_THROW(speculation_ratio({&block, 1}), Error);
  }
}

TEST(Speculation, ReproducesTheSharedVector) {
  const std::filesystem::path path = std::filesystem::path(KEEL_SHARED_DIR) / "vectors/hill.json";
  if (!std::filesystem::exists(path)) GTEST_SKIP() << "no " << path.string() << " here";
  std::ifstream in(path);
  const nlohmann::json one = nlohmann::json::parse(in).at("speculation_rho");
  const SpeculationBlock block{one["base"], one["quant"], one["spec"], one["both"]};
  EXPECT_NEAR(block.rho(), one["expected"].get<double>(), 1e-15);
  EXPECT_EQ(speculation_ratio({&block, 1}).composition, Composition::multiplicative);
}

TEST(Stats, ReproduceTheSharedVectors) {
  const std::filesystem::path path = std::filesystem::path(KEEL_SHARED_DIR) / "vectors/statistics.json";
  if (!std::filesystem::exists(path)) GTEST_SKIP() << "no " << path.string() << " here";
  std::ifstream in(path);
  const nlohmann::json vectors = nlohmann::json::parse(in);
  const auto all = [&](const char* name) {
    EXPECT_FALSE(vectors.at(name).empty());
    return vectors.at(name);
  };
  for (const auto& one : all("gross_loss_upper_percent")) {
    EXPECT_NEAR(100 * gross_loss_upper(one["losses"], one["of"]), one["expected"].get<double>(), 0.5e-8) << one;
  }
  EXPECT_NEAR(most_nll_rise(), vectors.at("nll_limit").get<double>(), 0.5e-15);
  for (const auto& one : all("sign_test_one_sided")) EXPECT_EQ(sign_test_p(one["wins"], one["of"]), one["p"].get<double>()) << one;
  for (const auto& one : all("holm")) EXPECT_EQ(holm(one["p"].get<Values>(), one["family"]), one["adjusted"].get<Values>()) << one;
  for (const auto& one : all("median_and_exact_bootstrap_ci")) {
    const Values ratios = one["ratios"];
    const Interval interval = bootstrap_median_interval(ratios);
    EXPECT_NEAR(median(ratios), one["median"].get<double>(), 1e-12) << one;
    EXPECT_NEAR(interval.lower, one["ci95"][0].get<double>(), 1e-12) << one;
    EXPECT_NEAR(interval.upper, one["ci95"][1].get<double>(), 1e-12) << one;
  }
  const auto& medians = all("ratio_of_medians_is_not_median_of_ratios");
  EXPECT_NEAR(medians["arm_medians"][1].get<double>() / medians["arm_medians"][0].get<double>(), medians["ratio_of_medians"].get<double>(), 0.5e-5);
  EXPECT_NEAR(median(kQwen3), medians["median_of_ratios"].get<double>(), 1e-12);
  for (const auto& one : all("gain_rule")) EXPECT_EQ(confirmed_gain(one["gates"], one["median"], one["holm_p"]), one["gain"].get<bool>()) << one;
  for (const auto& one : all("identity_candidate_equals_native_minus_losses_plus_gains")) {
    const std::int64_t native = one[0], losses = one[1], gains = one[2];
    PairedOutcomes outcomes;
    for (std::int64_t i = 0; i < native; ++i) outcomes.add(true, i >= losses);
    for (std::int64_t i = 0; i < gains; ++i) outcomes.add(false, true);
    EXPECT_EQ(outcomes.candidate_right, one[3].get<std::int64_t>()) << one;
    EXPECT_EQ(outcomes.losses, losses);
  }
}

}  // namespace
}  // namespace keel
