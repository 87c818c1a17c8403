#include "lab/scan/round_trip.h"

#include <algorithm>
#include <cmath>

#include "base/dtype.h"

namespace keel {
namespace {

void round_to_integers(int bits, std::span<float> head) {
  const float most = static_cast<float>((1 << (bits - 1)) - 1);
  float largest = 0;
  bool finite = true;
  for (const float x : head) {
    largest = std::max(largest, std::abs(x));
    finite &= std::isfinite(x);
  }
  const float scale = largest / most;
  if (!finite || scale == 0) return;
  constexpr float kInteger = 0x1.8p23f;  // a sum with it is rounded to whole numbers, ties to even
  for (float& x : head) x = scale * (x / scale + kInteger - kInteger);
}

}  // namespace

std::string_view name(Rounding rounding) {
  switch (rounding) {
    case Rounding::none: return "16-bit";
    case Rounding::int4: return "INT4";
    case Rounding::int6: return "INT6";
    case Rounding::int8: return "INT8";
    case Rounding::e4m3: return "E4M3";
  }
  return "?";
}

void round_trip(Rounding rounding, float scale, std::span<float> head) {
  switch (rounding) {
    case Rounding::none: return;
    case Rounding::int4: return round_to_integers(4, head);
    case Rounding::int6: return round_to_integers(6, head);
    case Rounding::int8: return round_to_integers(8, head);
    case Rounding::e4m3:
      for (float& x : head) x = scale * to_float(to_e4m3(x / scale));
  }
}

}  // namespace keel
