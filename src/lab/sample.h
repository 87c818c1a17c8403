// What is said about many measured values: mean, spread, percentiles.
#pragma once

#include <cstddef>
#include <vector>

namespace keel {

// Of an empty sample every figure is NaN, which JSON writes as null: there is nothing to report, not a zero.
class Sample {
 public:
  Sample() = default;
  explicit Sample(std::vector<double> values);

  std::size_t size() const { return sorted_.size(); }
  double mean() const;
  double stddev() const;                   // of the population, as numpy's std
  double percentile(double percent) const; // 0 to 100; between two ranks linear, as numpy's default
  double median() const { return percentile(50); }

 private:
  std::vector<double> sorted_;
};

}  // namespace keel
