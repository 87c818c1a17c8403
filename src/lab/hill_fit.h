// Decode throughput over the batch: S(B) = Smax · B^γ / (B½^γ + B^γ), fitted at one context, and what follows from it.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lab/stats.h"

namespace keel {

struct Hill {
  double ceiling;     // Smax, tokens/s
  double half_batch;  // B½
  double gamma;

  double at(double batch) const;
  double share(double batch) const;            // of the ceiling
  double batch_for_share(double share) const;  // 0 < share < 1
  double elasticity(double batch) const;       // d ln S / d ln B
  // What `factor` times the batch does to throughput and, as B / S, to time per token.
  double throughput_gain(double batch, double factor) const { return at(batch * factor) / at(batch); }
  double token_time_gain(double batch, double factor) const { return factor / throughput_gain(batch, factor); }
};

struct SweepPoint {
  double context, batch, tokens_per_s;
};
// Of all three: what no machine reaches, and squares of it are still numbers.
inline constexpr double kLeastFigure = 1e-9, kMostFigure = 1e15;

// Interval of a parameter: all values whose best refit of the others is not worse than the F-test of `kConfidence` allows. An end
// that reaches the bound of the search is no limit found, which the flag says.
struct HillInterval {
  double low, high;
  bool low_open, high_open;
};

// The box of the search: the ceiling and B½ as multiples of the largest throughput and batch measured.
inline constexpr double kLeastCeiling = 0.5, kMostCeiling = 100, kLeastHalf = 1e-3, kMostHalf = 1000, kLeastGamma = 0.1, kMostGamma = 5;

struct HillFit {
  double context;
  std::vector<SweepPoint> points;  // by batch
  std::size_t batches;             // distinct
  Hill hill;
  std::optional<HillInterval> ceiling, half_batch, gamma;  // none with no more points than parameters
  double r_squared;
  double residual_deviation;       // sqrt(sum of squares / (points - 3)); 0 with three points
  std::vector<double> residuals;   // measured - fitted
  std::vector<std::string> flags;  // what keeps the fit from being trusted
};

// Least squares in tokens/s, from several starts. Throws OptionError for fewer than three distinct batches.
HillFit fit_hill(std::span<const SweepPoint> points);

// Pointwise interval of the fitted curve at `batch`, from the curve's slopes at the optimum (Wald, Student's t with points - 3
// degrees): where the mean throughput lies, not where a new measurement would. None with no more points than parameters, and
// where the points do not tell the parameters apart.
std::optional<Interval> curve_interval(const HillFit& fit, double batch);

// A fit a context, ascending.
std::vector<HillFit> fit_contexts(std::vector<SweepPoint> points);

// A curve of `keel fit --json`, to plan with.
struct MeasuredCurve {
  Hill hill;
  double context, largest_batch;
  std::vector<std::string> flags;
};
// Of the fit at `context`. Throws OptionError where there is none.
MeasuredCurve read_curve(const std::string& text, const std::string& label, double context);

// CSV with a header, or JSON lines; columns or keys context, batch and tokens_per_s (also tokens/s). Throws OptionError naming the line.
std::vector<SweepPoint> read_sweep(const std::string& text, const std::string& label, bool json_lines);

}  // namespace keel
