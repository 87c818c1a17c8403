#include "lab/sample.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/error.h"

namespace keel {

Sample::Sample(std::vector<double> values) : sorted_(std::move(values)) { std::sort(sorted_.begin(), sorted_.end()); }

double Sample::mean() const {
  return sorted_.empty() ? NAN : std::accumulate(sorted_.begin(), sorted_.end(), 0.0) / static_cast<double>(size());
}

double Sample::stddev() const {
  const double middle = mean();
  double squares = 0;
  for (const double value : sorted_) squares += (value - middle) * (value - middle);
  return sorted_.empty() ? NAN : std::sqrt(squares / static_cast<double>(size()));
}

double Sample::percentile(double percent) const {
  check(percent >= 0 && percent <= 100, "a percentile lies between 0 and 100");
  if (sorted_.empty()) return NAN;
  const double rank = percent / 100 * static_cast<double>(size() - 1);
  const auto below = static_cast<std::size_t>(rank);
  if (below + 1 == size()) return sorted_.back();
  return sorted_[below] + (rank - static_cast<double>(below)) * (sorted_[below + 1] - sorted_[below]);
}

}  // namespace keel
