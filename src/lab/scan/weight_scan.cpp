#include "lab/scan/weight_scan.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

#include "kernels/matmul/matmul.h"
#include "lab/stats.h"

namespace keel {
namespace {

std::vector<double> magnitudes(const float* values, std::int64_t count) {
  std::vector<double> result(count);
  std::transform(values, values + count, result.begin(), [](float value) { return std::abs(static_cast<double>(value)); });
  return result;
}

double ratio(double value, double base) {
  if (base > 0) return value / base;
  return value > 0 ? std::numeric_limits<double>::infinity() : 1;
}

// Deviation of row · (g ∘ x) for x of independent elements with mean square 1, which is what RMSNorm hands on.
double white_deviation(const WeightMatrix& weights, std::int64_t row, const float* gain, std::vector<float>& scratch) {
  scratch.resize(weights.columns);
  dequantize_row(weights, row, scratch.data());
  double sum = 0;
  for (std::int64_t i = 0; i < weights.columns; ++i) sum += std::pow(static_cast<double>(scratch[i]) * gain[i], 2);
  return std::sqrt(sum);
}

class LayerScan {
 public:
  LayerScan(const LoadedModel& model, std::int64_t layer)
      : config_(model.config), weights_(model.weights.layers[layer]), layer_(layer) {}

  void add_to(WeightScan& scan) {
    const std::int64_t dim = config_.head_dim;
    for (std::int64_t head = 0; head < config_.kv_heads; ++head) {
      const std::vector<double> sizes = magnitudes(weights_.k_bias + head * dim, dim);
      const double middle = median(sizes);
      const auto largest = std::ranges::max_element(sizes) - sizes.begin();
      scan.largest.push_back(channel(head, largest, middle));
      for (std::int64_t i = 0; i < dim; ++i) {
        if (sizes[i] >= kBiasAlarm) scan.alarms.push_back(channel(head, i, middle));
      }
    }
  }

 private:
  KeyChannel channel(std::int64_t head, std::int64_t index, double middle) {
    const std::int64_t row = head * config_.head_dim + index;
    const double bias = weights_.k_bias[row];
    KeyChannel found{.layer = layer_, .head = head, .channel = index, .partner = {}, .bias = bias,
                     .times_median = ratio(std::abs(bias), middle),
                     .spread = white_deviation(weights_.k, row, weights_.attention_norm, scratch_),
                     .e4m3_step = e4m3_step(bias)};
    if (index < config_.rotary_dim) {
      const std::int64_t pairs = config_.rotary_dim / 2;
      const bool halves = config_.rope_pairs == RopePairs::half;
      const std::int64_t pair = halves ? index % pairs : index / 2;
      found.partner = halves ? (index + pairs) % config_.rotary_dim : index ^ 1;
      found.turn_tokens = 2 * std::numbers::pi / config_.inverse_frequencies[pair];
    }
    return found;
  }

  const ModelConfig& config_;
  const LayerWeights& weights_;
  std::int64_t layer_;
  std::vector<float> scratch_;
};

}  // namespace

double e4m3_step(double magnitude) {
  magnitude = std::abs(magnitude);
  const int exponent = magnitude > 0 ? std::ilogb(magnitude) : -6;
  return std::ldexp(1.0, std::clamp(exponent, -6, 8) - 3);
}

WeightScan scan_weights(const LoadedModel& model) {
  const ModelConfig& config = model.config;
  WeightScan scan;
  for (std::int64_t layer = 0; layer < config.layers; ++layer) {
    const LayerWeights& weights = model.weights.layers[layer];
    if (weights.k_bias != nullptr) {
      scan.has_key_bias = true;
      LayerScan(model, layer).add_to(scan);
    }
    if (weights.v_bias != nullptr) {
      scan.value_bias = std::max(scan.value_bias, std::ranges::max(magnitudes(weights.v_bias, config.kv_heads * config.head_dim)));
    }
    if (weights.k_norm != nullptr) {
      const std::vector<double> sizes = magnitudes(weights.k_norm, config.head_dim);
      if (const double largest = std::ranges::max(sizes); largest > scan.key_norm) {
        scan.key_norm = largest;
        scan.key_norm_times_median = ratio(largest, median(sizes));
      }
    }
  }
  std::ranges::stable_sort(scan.alarms, std::greater(), [](const KeyChannel& channel) { return std::abs(channel.bias); });
  return scan;
}

}  // namespace keel
