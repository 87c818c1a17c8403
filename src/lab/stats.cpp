#include "lab/stats.h"

#include <algorithm>
#include <boost/math/special_functions/beta.hpp>
#include <cmath>
#include <numeric>

#include "base/error.h"
#include "lab/stats_input.h"

namespace keel {
namespace {

constexpr std::int64_t kExactTrials = 60;  // C(60, 30) * 60 still fits 64 bits

void need_trials(std::int64_t of) {
  if (of < 1 || of > kMostItems) fail("wanted 1 to {} items, found {}", kMostItems, of);
}

// Ranks from 1, the mean of them where values are equal.
std::vector<double> ranks_of(std::span<const double> values) {
  std::vector<std::size_t> order(values.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::sort(order, {}, [&](std::size_t i) { return values[i]; });
  std::vector<double> ranks(values.size());
  for (std::size_t first = 0, last; first < order.size(); first = last) {
    last = first;
    while (last < order.size() && values[order[last]] == values[order[first]]) ++last;
    for (std::size_t i = first; i < last; ++i) ranks[order[i]] = static_cast<double>(first + 1 + last) / 2;
  }
  return ranks;
}

}  // namespace

void PairedOutcomes::add(bool control_is_right, bool candidate_is_right) {
  ++items;
  control_right += control_is_right;
  candidate_right += candidate_is_right;
  losses += control_is_right && !candidate_is_right;
  gains += !control_is_right && candidate_is_right;
}

double gross_loss_upper(std::int64_t losses, std::int64_t of, double confidence) {
  need_trials(of);
  need_confidence(confidence);
  if (losses < 0 || losses > of) fail("wanted 0 to {} losses of {} items, found {}", of, of, losses);
  if (losses == of) return 1;
  return boost::math::ibeta_inv(static_cast<double>(losses + 1), static_cast<double>(of - losses), confidence);
}

std::optional<std::int64_t> most_losses_within(double limit, std::int64_t of, double confidence) {
  need_share(limit, "the limit");
  std::int64_t passing = -1, failing = of + 1;
  while (failing - passing > 1) {
    const std::int64_t middle = std::midpoint(passing, failing);
    (gross_loss_upper(middle, of, confidence) <= limit ? passing : failing) = middle;
  }
  return passing < 0 ? std::nullopt : std::optional(passing);
}

double chance_to_pass(double limit, std::int64_t of, double loss_rate, double confidence) {
  need_share(loss_rate, "the loss rate");
  const auto most = most_losses_within(limit, of, confidence);
  if (!most) return 0;
  if (*most == of) return 1;
  return boost::math::ibetac(static_cast<double>(*most + 1), static_cast<double>(of - *most), loss_rate);
}

double sign_test_p(std::int64_t wins, std::int64_t of) {
  need_trials(of);
  if (wins < 0 || wins > of) fail("wanted 0 to {} wins of {} blocks, found {}", of, of, wins);
  if (wins == 0) return 1;
  if (of > kExactTrials) return boost::math::ibeta(static_cast<double>(wins), static_cast<double>(of - wins + 1), 0.5);
  std::uint64_t sum = 0, choose = 1;  // C(of, j)
  for (std::int64_t j = of; j >= wins; --j) {
    sum += choose;
    choose = choose * static_cast<std::uint64_t>(j) / static_cast<std::uint64_t>(of - j + 1);
  }
  return std::ldexp(static_cast<double>(sum), -static_cast<int>(of));
}

SignTest sign_test(std::span<const double> ratios) {
  need_values(ratios, "ratio");
  SignTest test;
  for (std::size_t i = 0; i < ratios.size(); ++i) {
    if (ratios[i] <= 0) fail("ratio {} is {}: wanted one above zero", i + 1, ratios[i]);
    ++(ratios[i] > 1 ? test.wins : ratios[i] == 1 ? test.ties : test.losses);
  }
  test.p = sign_test_p(test.wins, std::ssize(ratios));
  return test;
}

std::vector<double> holm(std::span<const double> p, std::int64_t family) {
  need_values(p, "p");
  for (std::size_t i = 0; i < p.size(); ++i) need_share(p[i], fmt::format("p {}", i + 1));
  if (family < std::ssize(p) || family > kMostItems) {
    fail("wanted a planned family of {} to {} comparisons, found {}", p.size(), kMostItems, family);
  }
  std::vector<std::size_t> order(p.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::sort(order, {}, [&](std::size_t i) { return p[i]; });
  std::vector<double> adjusted(p.size());
  double largest = 0;
  for (std::size_t j = 0; j < order.size(); ++j) {
    largest = std::max(largest, std::min(1.0, static_cast<double>(family - static_cast<std::int64_t>(j)) * p[order[j]]));
    adjusted[order[j]] = largest;
  }
  return adjusted;
}

double spearman(std::span<const double> x, std::span<const double> y) {
  need_values(x, "x");
  need_values(y, "y");
  if (x.size() != y.size()) fail("wanted as many y as x, found {} x and {} y", x.size(), y.size());
  const std::vector<double> x_ranks = ranks_of(x), y_ranks = ranks_of(y);
  const double middle = static_cast<double>(x.size() + 1) / 2;
  double xx = 0, yy = 0, xy = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double dx = x_ranks[i] - middle, dy = y_ranks[i] - middle;
    xx += dx * dx;
    yy += dy * dy;
    xy += dx * dy;
  }
  if (xx == 0 || yy == 0) fail("wanted values that differ, found {} equal {}", x.size(), xx == 0 ? "x" : "y");
  return std::clamp(xy / std::sqrt(xx * yy), -1.0, 1.0);
}

double SpeculationBlock::rho() const { return both / base / (quant / base * (spec / base)); }

Composition composition_of(double rho) {
  if (rho < 0.9) return Composition::sub_multiplicative;
  return rho > 1.1 ? Composition::super_multiplicative : Composition::multiplicative;
}

SpeculationRatio speculation_ratio(std::span<const SpeculationBlock> blocks, double confidence) {
  if (blocks.empty()) fail("wanted at least one block, found none");
  std::vector<double> quant, spec, both, rho;
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    const SpeculationBlock& block = blocks[i];
    for (const auto& [what, value] : {std::pair{"base", block.base}, {"quant", block.quant}, {"spec", block.spec}, {"both", block.both}}) {
      if (!(value > 0) || !std::isfinite(value)) fail("block {}: {} is {}: wanted a positive throughput", i + 1, what, value);
    }
    quant.push_back(block.quant / block.base);
    spec.push_back(block.spec / block.base);
    both.push_back(block.both / block.base);
    rho.push_back(block.rho());
    for (const double ratio : {quant.back(), spec.back(), both.back(), rho.back()}) {
      if (!(ratio > 0) || !std::isfinite(ratio)) fail("block {}: its throughputs, {}, {}, {} and {}, have no ratio that a number holds", i + 1, block.base, block.quant, block.spec, block.both);
    }
  }
  SpeculationRatio ratio{.quant = median(quant), .spec = median(spec), .both = median(both), .rho = median(rho),
                         .interval = bootstrap_median_interval(rho, confidence), .composition = {}, .settled = false};
  ratio.composition = composition_of(ratio.rho);
  ratio.settled = composition_of(ratio.interval.lower) == ratio.composition && composition_of(ratio.interval.upper) == ratio.composition;
  return ratio;
}

bool confirmed_gain(bool gates_pass, double median_ratio, double adjusted_p) {
  return gates_pass && median_ratio >= kLeastGain && adjusted_p <= kMostGainP;
}

double most_nll_rise() { return std::log(1.01); }

}  // namespace keel
