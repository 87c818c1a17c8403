// out[t] = x[t] / sqrt(mean(x[t]²) + epsilon) · weight, the mean over `width` elements. (Zhang & Sennrich 2019)
#pragma once

#include <cstdint>

#include "device/stream.h"

namespace keel {

struct RmsNormArgs {
  const float* x;       // [rows, x_stride], width used
  std::int64_t x_stride;
  const float* weight;  // [width]
  float* out;           // [rows, out_stride]; may be x
  std::int64_t out_stride;
  std::int64_t rows;
  std::int64_t width;
  float epsilon;
};

void rms_norm(const Stream& stream, const RmsNormArgs& args);

}  // namespace keel
