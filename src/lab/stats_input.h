// What every statistic asks of its numbers.
#pragma once

#include <cmath>
#include <span>
#include <string_view>

#include "base/error.h"

namespace keel {

inline void need_values(std::span<const double> values, std::string_view what) {
  if (values.empty()) fail("wanted at least one {}, found none", what);
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (!std::isfinite(values[i])) fail("{} {} is {}: wanted a finite number", what, i + 1, values[i]);
  }
}

inline void need_share(double share, std::string_view what) {
  if (!(share >= 0 && share <= 1)) fail("{} is {}: wanted 0 to 1", what, share);
}

inline void need_confidence(double confidence) {
  if (!(confidence > 0 && confidence < 1)) fail("the confidence is {}: wanted one between 0 and 1", confidence);
}

}  // namespace keel
