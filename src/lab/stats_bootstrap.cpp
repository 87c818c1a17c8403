#include <algorithm>
#include <boost/math/special_functions/beta.hpp>
#include <boost/math/special_functions/binomial.hpp>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/error.h"
#include "base/random.h"
#include "lab/stats.h"
#include "lab/stats_input.h"

namespace keel {
namespace {

constexpr double kReached = 1e-12;  // a cumulated sum this close to a level reaches it
constexpr std::int64_t kMostDraws = 10'000'000;

std::vector<double> sorted(std::span<const double> values) {
  std::vector<double> result(values.begin(), values.end());
  std::ranges::sort(result);
  return result;
}

// P(the k-th smallest of n draws from n values is at most the i-th smallest value) = P(binomial(n, i/n) >= k).
double order_cdf(std::int64_t k, std::int64_t i, std::int64_t n) {
  if (i == 0) return 0;
  if (i == n) return 1;
  return boost::math::ibeta(static_cast<double>(k), static_cast<double>(n - k + 1), static_cast<double>(i) / static_cast<double>(n));
}

double quantile(std::span<const Atom> atoms, double level) {
  double sum = 0;
  for (const Atom& atom : atoms) {
    sum += atom.probability;
    if (sum >= level - kReached) return atom.value;
  }
  return atoms.back().value;
}

}  // namespace

double median(std::span<const double> values) {
  need_values(values, "value");
  const std::vector<double> x = sorted(values);
  return std::midpoint(x[(x.size() - 1) / 2], x[x.size() / 2]);
}

std::vector<Atom> bootstrap_median(std::span<const double> values) {
  need_values(values, "value");
  const std::int64_t n = std::ssize(values), h = n / 2;
  if (n > kMostMedianValues) fail("wanted at most {} values for the exact bootstrap of a median, found {}", kMostMedianValues, n);
  const std::vector<double> x = sorted(values);
  const auto order_is = [&](std::int64_t k, std::int64_t i) { return order_cdf(k, i, n) - order_cdf(k, i - 1, n); };
  std::vector<Atom> atoms;
  if (n % 2 == 1) {
    for (std::int64_t i = 1; i <= n; ++i) atoms.push_back({x[i - 1], order_is(h + 1, i)});
  } else {
    const double ways = boost::math::binomial_coefficient<double>(static_cast<unsigned>(n), static_cast<unsigned>(h));
    std::vector<double> step(n + 1, 0.0);  // (i/n)^h - ((i-1)/n)^h: h draws of the i smallest values, the i-th among them
    for (std::int64_t i = 1; i <= n; ++i) {
      const double size = static_cast<double>(n), power = static_cast<double>(h);
      step[i] = std::pow(static_cast<double>(i) / size, power) - std::pow(static_cast<double>(i - 1) / size, power);
    }
    for (std::int64_t i = 1; i <= n; ++i) {
      double rest = order_is(h, i);
      for (std::int64_t j = i + 1; j <= n; ++j) {
        const double probability = ways * step[i] * step[n - j + 1];
        atoms.push_back({std::midpoint(x[i - 1], x[j - 1]), probability});
        rest -= probability;
      }
      atoms.push_back({x[i - 1], std::max(rest, 0.0)});
    }
  }
  std::ranges::sort(atoms, {}, &Atom::value);
  std::vector<Atom> merged;
  for (const Atom& atom : atoms) {
    if (!merged.empty() && merged.back().value == atom.value) {
      merged.back().probability += atom.probability;
    } else {
      merged.push_back(atom);
    }
  }
  return merged;
}

Interval bootstrap_median_interval(std::span<const double> values, double confidence) {
  need_confidence(confidence);
  const std::vector<Atom> atoms = bootstrap_median(values);
  const double tail = (1 - confidence) / 2;
  return {quantile(atoms, tail), quantile(atoms, 1 - tail)};
}

MeanLimit bootstrap_mean_upper(std::span<const double> documents, const BootstrapPlan& plan) {
  need_values(documents, "value");
  need_confidence(plan.confidence);
  if (plan.draws < 1 || plan.draws > kMostDraws) fail("wanted 1 to {} bootstrap draws, found {}", kMostDraws, plan.draws);
  const double n = static_cast<double>(documents.size());
  for (const double value : documents) {
    if (!(std::abs(value) <= std::numeric_limits<double>::max() / n)) fail("{} values as large as {} have no sum that a number holds", documents.size(), value);
  }
  std::vector<double> means(plan.draws);
  std::uint64_t counter = 0;
  for (double& mean : means) {
    double sum = 0;
    for (std::size_t i = 0; i < documents.size(); ++i) {
      sum += documents[static_cast<std::size_t>(n * random_unit(plan.seed, counter++))];
    }
    mean = sum / n;
  }
  const double wanted = std::ceil(plan.confidence * static_cast<double>(plan.draws) * (1 - kReached));
  const auto at = means.begin() + std::clamp<std::int64_t>(static_cast<std::int64_t>(wanted) - 1, 0, plan.draws - 1);
  std::ranges::nth_element(means, at);
  return {std::accumulate(documents.begin(), documents.end(), 0.0) / n, *at};
}

}  // namespace keel
