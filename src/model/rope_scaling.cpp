#include "model/rope_scaling.h"

#include <cmath>
#include <numbers>

#include "base/error.h"

namespace keel {

std::vector<double> plain_frequencies(double theta, std::int64_t rotary_dim) {
  std::vector<double> frequencies;
  for (std::int64_t i = 0; i < rotary_dim; i += 2) {
    frequencies.push_back(
        std::pow(theta, -static_cast<double>(i) / static_cast<double>(rotary_dim)));
  }
  return frequencies;
}

void scale_linear(std::span<double> frequencies, double factor) {
  for (double& frequency : frequencies) frequency /= factor;
}

void scale_each(std::span<double> frequencies, std::span<const double> factors) {
  check(frequencies.size() == factors.size(), "one factor a frequency");
  for (std::size_t i = 0; i < frequencies.size(); ++i) frequencies[i] /= factors[i];
}

void scale_llama3(std::span<double> frequencies, const Llama3Scaling& scaling) {
  const double low = scaling.low_frequency_factor;
  const double high = scaling.high_frequency_factor;
  for (double& frequency : frequencies) {
    const double turns =
        scaling.original_positions * frequency / (2 * std::numbers::pi);  // in the original context
    if (turns > high) continue;
    if (turns < low) {
      frequency /= scaling.factor;
    } else {
      const double kept = (turns - low) / (high - low);
      frequency = (1 - kept) * frequency / scaling.factor + kept * frequency;
    }
  }
}

double longrope_magnitude(double stretch, double original_positions) {
  return stretch <= 1 ? 1 : std::sqrt(1 + std::log(stretch) / std::log(original_positions));
}

}  // namespace keel
