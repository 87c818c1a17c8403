// Where numbers fall on an axis, and which of them are written beside it.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

namespace keel {

enum class Scale { linear, log10, log2 };

struct Axis {
  std::string label = {};  // what and in which unit
  Scale scale = Scale::linear;
  std::optional<double> low = {}, high = {};  // where the axis ends; else the data's ends and a little room
};

// An axis over given values, ready to be drawn.
class AxisRange {
 public:
  // Values that the scale has no place for are ignored. `ticks`: about how many there is room for.
  AxisRange(const Axis& axis, std::span<const double> values, int ticks);

  bool holds(double value) const;    // finite, positive on a logarithmic axis, and between the ends
  double place(double value) const;  // 0 at the low end, 1 at the high end
  const std::vector<double>& ticks() const { return ticks_; }
  std::string tick_label(double tick) const;

 private:
  bool drawable(double value) const;
  double along(double value) const;
  void choose_linear_ticks(int wanted);  // at least three
  void place_linear_ticks(double step);
  void choose_logarithmic_ticks(int wanted);

  Scale scale_;
  double low_, high_;
  std::vector<double> ticks_;
};

// "12,500", "0.05", "−3"; powers of ten where that would be long. As many decimals as `step` has.
std::string number_label(double value, double step);

}  // namespace keel
