#include "lab/hill_fit.h"

#include <algorithm>
#include <array>
#include <boost/math/distributions/fisher_f.hpp>
#include <cmath>
#include <limits>

#include "base/option_error.h"

namespace keel {
namespace {

// Parameters in the search: ln Smax, ln B½, ln γ; there the box is a box and every step is relative.
using Vector = std::array<double, 3>;
enum Parameter : std::size_t { kCeiling, kHalf, kGamma };

class Problem {
 public:
  explicit Problem(std::span<const SweepPoint> points) : points_(points) {
    double most = 0, batch = 0;
    for (const SweepPoint& point : points) most = std::max(most, point.tokens_per_s), batch = std::max(batch, point.batch);
    low = {std::log(most * kLeastCeiling), std::log(batch * kLeastHalf), std::log(kLeastGamma)};
    high = {std::log(most * kMostCeiling), std::log(batch * kMostHalf), std::log(kMostGamma)};
  }

  double error(const Vector& at) const {
    double sum = 0;
    for (const SweepPoint& point : points_) {
      const double off = point.tokens_per_s - value(at, point.batch);
      sum += off * off;
    }
    return sum;
  }

  // The best ceiling for a B½ and a γ is a plain regression.
  double best_ceiling(double log_half, double log_gamma) const {
    double both = 0, square = 0;
    for (const SweepPoint& point : points_) {
      const double share = value({0, log_half, log_gamma}, point.batch);
      both += share * point.tokens_per_s;
      square += share * share;
    }
    return std::clamp(std::log(both / square), low[kCeiling], high[kCeiling]);
  }

  // Levenberg-Marquardt within the box from `at`, with the parameter `held` kept.
  Vector descend(Vector at, std::optional<Parameter> held) const {
    double best = error(at), damping = 1e-3;
    for (int step = 0; step < 200 && damping < 1e12; ++step) {
      std::array<Vector, 3> curvature{};
      Vector slope{};
      for (const SweepPoint& point : points_) {
        const double fitted = value(at, point.batch), share = fitted * std::exp(-at[kCeiling]), gamma = std::exp(at[kGamma]);
        const double change = fitted * (1 - share) * gamma;
        const Vector derivative{fitted, -change, change * (std::log(point.batch) - at[kHalf])};
        for (std::size_t i = 0; i < 3; ++i) {
          slope[i] += derivative[i] * (point.tokens_per_s - fitted);
          for (std::size_t j = 0; j < 3; ++j) curvature[i][j] += derivative[i] * derivative[j];
        }
      }
      std::array<bool, 3> moves;
      for (std::size_t i = 0; i < 3; ++i) {
        moves[i] = i != held && !(at[i] <= low[i] && slope[i] < 0) && !(at[i] >= high[i] && slope[i] > 0);
      }
      bool better = false;
      while (!better && damping < 1e12) {
        Vector next = at;
        const Vector change = solve(curvature, slope, moves, damping);
        for (std::size_t i = 0; i < 3; ++i) next[i] = std::clamp(at[i] + std::clamp(change[i], -1.0, 1.0), low[i], high[i]);
        const double now = error(next);
        better = now < best;
        damping *= better ? 0.2 : 5;
        if (!better) continue;
        if (best - now < 1e-13 * best) return next;
        at = next, best = now;
      }
    }
    return at;
  }

  // From several starts, and from `near`.
  Vector fit(std::optional<Parameter> held = {}, Vector near = {}) const {
    Vector best{};
    double least = std::numeric_limits<double>::infinity();
    const auto start = [&](Vector from) {
      for (std::size_t i = 0; i < 3; ++i) from[i] = std::clamp(from[i], low[i], high[i]);
      const Vector at = descend(from, held);
      if (const double found = error(at); found < least) least = found, best = at;
    };
    if (held) start(near);
    const double middle = high[kHalf] - std::log(kMostHalf);  // the largest batch
    for (const double half : {middle - 4, middle - 2, middle - 0.7, middle + 1.5}) {
      for (const double gamma : {-1.0, 0.0, 0.9}) {
        Vector from{best_ceiling(half, gamma), half, gamma};
        if (held) from[*held] = near[*held];
        start(from);
      }
    }
    return best;
  }

  Vector low, high;

 private:
  static double value(const Vector& at, double batch) {
    return std::exp(at[kCeiling]) / (1 + std::exp(std::exp(at[kGamma]) * (at[kHalf] - std::log(batch))));
  }

  // (curvature + damping · its diagonal) x = slope over the parameters that move, by elimination; it is positive definite.
  static Vector solve(std::array<Vector, 3> m, Vector right, const std::array<bool, 3>& moves, double damping) {
    for (std::size_t i = 0; i < 3; ++i) {
      m[i][i] = m[i][i] * (1 + damping) + 1e-300;
      if (moves[i]) continue;
      for (std::size_t j = 0; j < 3; ++j) m[i][j] = m[j][i] = 0;
      m[i][i] = 1, right[i] = 0;
    }
    for (std::size_t i = 0; i < 3; ++i) {
      for (std::size_t k = i + 1; k < 3; ++k) {
        const double by = m[k][i] / m[i][i];
        for (std::size_t j = i; j < 3; ++j) m[k][j] -= by * m[i][j];
        right[k] -= by * right[i];
      }
    }
    Vector x{};
    for (std::size_t i = 3; i-- > 0;) {
      double sum = right[i];
      for (std::size_t j = i + 1; j < 3; ++j) sum -= m[i][j] * x[j];
      x[i] = sum / m[i][i];
    }
    return x;
  }

  std::span<const SweepPoint> points_;
};

// From the optimum outwards, twice as far each time, then by halves: where `error_at` first passes `limit`.
template <class ErrorAt>
std::pair<double, bool> limit_of(double from, double bound, double limit, const ErrorAt& error_at) {
  double inside = from, step = (bound > from ? 1 : -1) * 0.01, outside = bound;
  bool found = false;
  while (!found) {
    const double next = from + step;
    const bool past = bound > from ? next >= bound : next <= bound;
    if (past) {
      if (error_at(bound) <= limit) return {bound, true};
      outside = bound, found = true;
    } else if (error_at(next) > limit) {
      outside = next, found = true;
    } else {
      inside = next, step *= 2;
    }
  }
  while (std::abs(outside - inside) > 1e-5) {
    const double middle = (inside + outside) / 2;
    (error_at(middle) > limit ? outside : inside) = middle;
  }
  return {outside, false};
}

HillInterval interval(const Problem& problem, const Vector& best, Parameter parameter, double limit) {
  Vector near = best;
  const auto error_at = [&](double value) {
    near[parameter] = value;
    near = problem.fit(parameter, near);
    return problem.error(near);
  };
  const auto [low, low_open] = limit_of(best[parameter], problem.low[parameter], limit, error_at);
  near = best;
  const auto [high, high_open] = limit_of(best[parameter], problem.high[parameter], limit, error_at);
  return {std::exp(low), std::exp(high), low_open, high_open};
}

void add_flags(HillFit& fit, const Problem& problem, const Vector& best, double measured_share) {
  const auto flag = [&]<class... Args>(fmt::format_string<Args...> format, Args&&... args) {
    fit.flags.push_back(fmt::format(format, std::forward<Args>(args)...));
  };
  constexpr double kReached = 0.8, kAtBound = 1e-3;
  if (fit.batches < 4) flag("{} distinct batches: at least four are wanted for three parameters", fit.batches);
  if (measured_share < kReached) {
    flag("the ceiling is not reached: the largest batch has {:.0f} % of the fitted ceiling, which is extrapolated", 100 * measured_share);
  }
  constexpr const char* kNames[] = {"Smax", "B½", "γ"};
  for (const Parameter i : {kCeiling, kHalf, kGamma}) {
    if (best[i] - problem.low[i] < kAtBound) flag("{} lies at its lower bound {:.4g}", kNames[i], std::exp(problem.low[i]));
    if (problem.high[i] - best[i] < kAtBound) flag("{} lies at its upper bound {:.4g}", kNames[i], std::exp(problem.high[i]));
  }
  double previous = 0, previous_batch = 0;
  for (std::size_t i = 0; i < fit.points.size();) {  // means of equal batches
    double sum = 0;
    const std::size_t first = i;
    for (; i < fit.points.size() && fit.points[i].batch == fit.points[first].batch; ++i) sum += fit.points[i].tokens_per_s;
    const double mean = sum / static_cast<double>(i - first);
    if (mean < previous) {
      flag("not monotone: {:.6g} tokens/s at batch {:.6g} after {:.6g} at {:.6g}; the law only rises", mean, fit.points[first].batch, previous, previous_batch);
    }
    previous = mean, previous_batch = fit.points[first].batch;
  }
  const auto open = [&](const char* name, const std::optional<HillInterval>& range) {
    if (range && range->low_open) flag("the data set no lower limit to {}", name);
    if (range && range->high_open) flag("the data set no upper limit to {}", name);
  };
  open("Smax", fit.ceiling);
  open("B½", fit.half_batch);
  open("γ", fit.gamma);
  if (!fit.ceiling) flag("no interval: {} points for three parameters", fit.points.size());
}

}  // namespace

double Hill::share(double batch) const { return 1 / (1 + std::pow(half_batch / batch, gamma)); }
double Hill::at(double batch) const { return ceiling * share(batch); }
double Hill::batch_for_share(double share) const { return half_batch * std::pow(share / (1 - share), 1 / gamma); }
double Hill::elasticity(double batch) const { return gamma * (1 - share(batch)); }

HillFit fit_hill(std::span<const SweepPoint> points) {
  check(!points.empty(), "a fit has points");
  HillFit fit{.context = points.front().context, .points = {points.begin(), points.end()}, .batches = 1, .hill = {}, .r_squared = 0, .residual_deviation = 0, .residuals = {}, .flags = {}};
  std::ranges::stable_sort(fit.points, {}, &SweepPoint::batch);
  for (std::size_t i = 1; i < fit.points.size(); ++i) fit.batches += fit.points[i].batch != fit.points[i - 1].batch;
  if (fit.batches < 3) {
    refuse_option("context {}: {} distinct batch{} cannot fix the curve's three parameters: wanted at least three, better six", fit.context, fit.batches,
                  fit.batches == 1 ? "" : "es");
  }
  const Problem problem(fit.points);
  const Vector best = problem.fit();
  const double least = problem.error(best);
  fit.hill = {std::exp(best[kCeiling]), std::exp(best[kHalf]), std::exp(best[kGamma])};

  double mean = 0, total = 0;
  const auto count = static_cast<double>(fit.points.size());
  for (const SweepPoint& point : fit.points) mean += point.tokens_per_s / count;
  for (const SweepPoint& point : fit.points) {
    total += (point.tokens_per_s - mean) * (point.tokens_per_s - mean);
    fit.residuals.push_back(point.tokens_per_s - fit.hill.at(point.batch));
  }
  fit.r_squared = total > 0 ? 1 - least / total : 0;
  const double freedom = count - 3;
  if (freedom > 0) {
    fit.residual_deviation = std::sqrt(least / freedom);
    // An exact fit leaves rounding alone; the limit must stay above it.
    const double floor = 1e-18 * total;
    const double limit = std::max(least, floor) * (1 + boost::math::quantile(boost::math::fisher_f(1, freedom), kConfidence) / freedom);
    fit.ceiling = interval(problem, best, kCeiling, limit);
    fit.half_batch = interval(problem, best, kHalf, limit);
    fit.gamma = interval(problem, best, kGamma, limit);
  }
  add_flags(fit, problem, best, fit.hill.share(fit.points.back().batch));
  return fit;
}

std::vector<HillFit> fit_contexts(std::vector<SweepPoint> points) {
  std::ranges::stable_sort(points, {}, &SweepPoint::context);
  std::vector<HillFit> fits;
  for (std::size_t first = 0, last = 0; first < points.size(); first = last) {
    while (last < points.size() && points[last].context == points[first].context) ++last;
    fits.push_back(fit_hill(std::span(points).subspan(first, last - first)));
  }
  return fits;
}

}  // namespace keel
