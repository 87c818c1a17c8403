#include "lab/chart_axis.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>

#include "base/error.h"

namespace keel {
namespace {

// The smallest of 1, 2, 5 · 10^k that cuts `span` into at most `parts`.
double tick_step(double span, int parts) {
  const double power = std::pow(10, std::floor(std::log10(span / parts)));
  for (const double step : {1.0, 2.0, 5.0}) {
    if (span / (step * power) <= parts * (1 + 1e-9)) return step * power;
  }
  return 10 * power;
}

}  // namespace

std::string number_label(double value, double step) {
  const double size = std::abs(value);
  std::string text;
  if (size >= 1e7 || (size > 0 && size < 1e-4)) {
    text = fmt::format("{:.3g}", size);
  } else {
    const int decimals = step > 0 ? std::clamp(static_cast<int>(-std::floor(std::log10(step) + 1e-9)), 0, 6) : 0;
    text = fmt::format("{:.{}f}", size, decimals);
    const auto point = static_cast<std::ptrdiff_t>(std::min(text.find('.'), text.size()));
    for (std::ptrdiff_t at = point - 3; at > 0; at -= 3) text.insert(static_cast<std::size_t>(at), 1, ',');
  }
  return fmt::format("{}{}", value < 0 ? "−" : "", text);
}

AxisRange::AxisRange(const Axis& axis, std::span<const double> values, int ticks) : scale_(axis.scale) {
  low_ = INFINITY, high_ = -INFINITY;
  for (const double value : values) {
    if (drawable(value)) low_ = std::min(low_, value), high_ = std::max(high_, value);
  }
  for (const auto& end : {axis.low, axis.high}) check(!end || drawable(*end), "an axis ends at a number that its scale has");
  if (axis.low) low_ = *axis.low;
  if (axis.high) high_ = *axis.high;
  if (!std::isfinite(low_)) low_ = std::isfinite(high_) ? std::min(high_, 1.0) : scale_ == Scale::linear ? 0 : 1;
  if (!std::isfinite(high_) || high_ < low_) high_ = low_;
  const bool linear = scale_ == Scale::linear;
  const double largest = std::max(std::abs(low_), std::abs(high_));
  if (linear && !std::isfinite(high_ - low_)) low_ /= 4, high_ /= 4;  // what lies outside is not drawn
  if (high_ - low_ <= 1e-9 * largest) {  // one value: room on both sides
    const double room = low_ == 0 ? 1 : std::abs(low_) / 10;
    if (!axis.low || axis.high) low_ = linear ? low_ - room : low_ / 2;
    if (!axis.high) high_ = linear ? high_ + room : high_ * 2;
  }
  const double room = 0.04 * (along(high_) - along(low_));
  const double low = along(low_) - (axis.low ? 0 : room), high = along(high_) + (axis.high ? 0 : room);
  low_ = linear ? low : std::exp2(low), high_ = linear ? high : std::exp2(high);
  linear ? choose_linear_ticks(ticks) : choose_logarithmic_ticks(ticks);
}

bool AxisRange::drawable(double value) const { return std::isfinite(value) && (scale_ == Scale::linear || value > 0); }

double AxisRange::along(double value) const { return scale_ == Scale::linear ? value : std::log2(value); }

double AxisRange::place(double value) const { return (along(value) - along(low_)) / (along(high_) - along(low_)); }

bool AxisRange::holds(double value) const { return drawable(value) && place(value) > -1e-9 && place(value) < 1 + 1e-9; }

void AxisRange::choose_linear_ticks(int wanted) {
  for (int parts = std::max(wanted, 2); ticks_.size() < 3; ++parts) place_linear_ticks(tick_step(high_ - low_, parts));
}

void AxisRange::place_linear_ticks(double step) {
  ticks_.clear();
  for (double i = std::ceil(low_ / step - 1e-9); i * step <= high_ + 1e-9 * step; ++i) ticks_.push_back(i * step);
}

void AxisRange::choose_logarithmic_ticks(int wanted) {
  if (scale_ == Scale::log2) {
    const double first = std::ceil(std::log2(low_) - 1e-9), last = std::floor(std::log2(high_) + 1e-9);
    const double every = std::max(1.0, std::ceil((last - first + 1) / std::max(wanted, 1)));
    for (double power = first; power <= last; power += every) ticks_.push_back(std::exp2(power));
  } else {
    const double decades = std::log10(high_ / low_);
    const bool between = decades * 3 <= wanted * 1.5;
    const double every = between ? 1 : std::max(1.0, std::ceil(decades / std::max(wanted, 1)));
    const double first = std::floor(std::log10(low_) / every) * every, last = std::ceil(std::log10(high_));
    for (double power = first; power <= last; power += every) {
      for (const double lead : {1.0, 2.0, 5.0}) {
        const double tick = lead * std::pow(10, power);
        if ((lead == 1 || between) && holds(tick)) ticks_.push_back(tick);
      }
    }
  }
  if (ticks_.size() < 2) ticks_.clear(), choose_linear_ticks(wanted);  // too narrow for powers
}

std::string AxisRange::tick_label(double tick) const {
  const bool even = scale_ == Scale::linear || ticks_.size() < 2;
  return number_label(tick, even && ticks_.size() > 1 ? ticks_[1] - ticks_[0] : std::abs(tick));
}

}  // namespace keel
