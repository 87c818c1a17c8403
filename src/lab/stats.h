// The statistics that judge a cache format and a speed claim: exact where that is possible, each with one definition.
// All throw Error, naming what was wanted and found, for numbers that have no such statistic: NaN, an empty sample, more
// losses than items, a ratio of zero.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace keel {

inline constexpr double kConfidence = 0.95;
inline constexpr std::int64_t kMostItems = 1'000'000'000;  // of a proportion or a sign test

// Items that control and candidate both answered. Gains never offset losses: only `losses` is judged, of all `items`.
struct PairedOutcomes {
  std::int64_t items = 0, control_right = 0, candidate_right = 0;
  std::int64_t losses = 0;  // control right, candidate wrong
  std::int64_t gains = 0;   // control wrong, candidate right; candidate_right = control_right - losses + gains

  void add(bool control_is_right, bool candidate_is_right);
};

// The one-sided upper limit U of Clopper and Pearson (Biometrika 26, 1934): P(X <= losses | of, U) = 1 - confidence, that is
// U = BetaInv(confidence; losses + 1, of - losses), and 1 where everything is lost.
double gross_loss_upper(std::int64_t losses, std::int64_t of, double confidence = kConfidence);

// The largest loss count whose upper limit is at most `limit`; none where even no loss at all is too little evidence.
std::optional<std::int64_t> most_losses_within(double limit, std::int64_t of, double confidence = kConfidence);

// P(X <= most_losses_within(limit, of)) for X binomial(of, loss_rate): the chance that the gate passes where each item is
// lost with chance `loss_rate` by itself. That rate is the control's own losses against a rerun of itself, a share of all
// items; where losses and gains are as likely, half the share of items that differ.
double chance_to_pass(double limit, std::int64_t of, double loss_rate, double confidence = kConfidence);

// The one-sided sign test (Dixon and Mood, JASA 41, 1946) without dropping ties: a tie is no win, so that
// p = sum over j >= wins of C(of, j) / 2^of. Exact to one rounding up to 60 blocks.
double sign_test_p(std::int64_t wins, std::int64_t of);

struct SignTest {
  std::int64_t wins = 0, ties = 0, losses = 0;  // of ratios above 1, equal to 1, below 1
  double p = 1;
};
SignTest sign_test(std::span<const double> ratios);  // positive and finite

// Holm's step-down adjustment (Scand. J. Statist. 6, 1979): p sorted, adjusted_i = max over j <= i of min(1, (family - j + 1) p_j),
// given back in the order of `p`. Comparisons that were planned and have no value hold p = 1: family >= p.size().
std::vector<double> holm(std::span<const double> p, std::int64_t family);

double median(std::span<const double> values);  // the mean of the middle two of an even number

// The bootstrap distribution of the median (Efron, Ann. Statist. 7, 1979), all n^n resamples counted without drawing one.
// With the sample sorted, x_1 <= … <= x_n, and h = n / 2 rounded down:
//   n odd:  P(median <= x_i) = P(binomial(n, i/n) > h);
//   n even: the atoms are (x_i + x_j) / 2, i <= j, and for i < j
//           P = C(n, h) [(i/n)^h - ((i-1)/n)^h] [((n-j+1)/n)^h - ((n-j)/n)^h]; i = j has the rest of P(h-th smallest = x_i).
struct Atom {
  double value, probability;
};
inline constexpr std::int64_t kMostMedianValues = 1000;
std::vector<Atom> bootstrap_median(std::span<const double> values);  // by value, each value once

// The percentile interval of it. Quantile rule: the smallest atom whose cumulated probability reaches (1 - confidence) / 2,
// and 1 less that; a sum within 1e-12 of the level reaches it. Descriptive: not adjusted for several comparisons.
struct Interval {
  double lower, upper;
};
Interval bootstrap_median_interval(std::span<const double> values, double confidence = kConfidence);

// The one-sided percentile bootstrap limit of a mean, resampling whole documents (Efron and Tibshirani 1993, chapter 13).
// Draw d takes documents floor(n * random_unit(seed, d * n + i)), i = 0 … n-1 (base/random.h), adds them in that order and
// divides by n. Quantile rule: the smallest of the `draws` means that at least confidence * draws means do not exceed.
struct BootstrapPlan {
  std::int64_t draws = 100'000;
  std::uint64_t seed = 1;
  double confidence = kConfidence;
};
struct MeanLimit {
  double mean, upper;
};
MeanLimit bootstrap_mean_upper(std::span<const double> documents, const BootstrapPlan& plan = {});

// Spearman's rank correlation (Am. J. Psychol. 15, 1904): equal values share the mean of their ranks, then Pearson's
// correlation of the ranks. Not defined where all x or all y are equal.
double spearman(std::span<const double> x, std::span<const double> y);

// How speculative decoding and a smaller cache compose. Of throughputs measured in one block under the same work,
//   rho = (both / base) / ((quant / base) · (spec / base)) = both · base / (quant · spec),
// below 0.9 sub-multiplicative, 0.9 to 1.1 multiplicative, above super-multiplicative. It describes those measurements and predicts no others.
struct SpeculationBlock {
  double base, quant, spec, both;  // neither, the smaller cache alone, speculation alone, both: tokens/s
  double rho() const;
};
enum class Composition { sub_multiplicative, multiplicative, super_multiplicative };
Composition composition_of(double rho);

struct SpeculationRatio {
  double quant, spec, both;  // median within-block speed-ups over base
  double rho;                // median of the blocks'
  Interval interval;         // its exact bootstrap interval; a point where there is one block
  Composition composition;   // of the median
  bool settled;              // whether both ends of the interval are of that class
};
SpeculationRatio speculation_ratio(std::span<const SpeculationBlock> blocks, double confidence = kConfidence);

// The frozen rules. A gain is confirmed where every gate passes, the median within-block ratio is at least 1.01 and the
// adjusted p at most 0.05; the mean rise of NLL may not reach past a perplexity of 1 %.
inline constexpr double kLeastGain = 1.01, kMostGainP = 0.05;
bool confirmed_gain(bool gates_pass, double median_ratio, double adjusted_p);
double most_nll_rise();  // ln 1.01

}  // namespace keel
