#include <array>
#include <boost/math/distributions/students_t.hpp>
#include <cmath>

#include "lab/hill_fit.h"

namespace keel {
namespace {

using Vector = std::array<double, 3>;

// d S / d (ln Smax, ln B½, ln γ).
Vector slopes(const Hill& hill, double batch) {
  const double speed = hill.at(batch), change = speed * (1 - hill.share(batch)) * hill.gamma;
  return {speed, -change, change * std::log(batch / hill.half_batch)};
}

}  // namespace

std::optional<Interval> curve_interval(const HillFit& fit, double batch) {
  if (fit.points.size() <= 3) return std::nullopt;
  // L·Lᵀ of the normal matrix scaled to a unit diagonal; then the variance is |L⁻¹ slope|².
  std::array<Vector, 3> normal{};
  for (const SweepPoint& point : fit.points) {
    const Vector slope = slopes(fit.hill, point.batch);
    for (std::size_t i = 0; i < 3; ++i) {
      for (std::size_t j = 0; j < 3; ++j) normal[i][j] += slope[i] * slope[j];
    }
  }
  Vector size;
  for (std::size_t i = 0; i < 3; ++i) size[i] = std::sqrt(normal[i][i]);
  std::array<Vector, 3> lower{};
  Vector solved = slopes(fit.hill, batch);
  double square = 0;
  for (std::size_t i = 0; i < 3; ++i) {
    if (!(size[i] > 0)) return std::nullopt;
    for (std::size_t j = 0; j <= i; ++j) {
      double rest = normal[i][j] / (size[i] * size[j]);
      for (std::size_t k = 0; k < j; ++k) rest -= lower[i][k] * lower[j][k];
      if (i == j && !(rest > 1e-10)) return std::nullopt;
      lower[i][j] = i == j ? std::sqrt(rest) : rest / lower[j][j];
    }
    solved[i] /= size[i];
    for (std::size_t k = 0; k < i; ++k) solved[i] -= lower[i][k] * solved[k];
    solved[i] /= lower[i][i];
    square += solved[i] * solved[i];
  }
  const boost::math::students_t student(static_cast<double>(fit.points.size()) - 3);
  const double half = quantile(student, (1 + kConfidence) / 2) * fit.residual_deviation * std::sqrt(square);
  return Interval{fit.hill.at(batch) - half, fit.hill.at(batch) + half};
}

}  // namespace keel
