// out = silu(gate) · up, silu(x) = x / (1 + e^-x): the SwiGLU of gated feed-forward layers (Shazeer 2020).
#pragma once

#include <cstdint>

#include "device/stream.h"

namespace keel {

struct SiluMulArgs {
  const float* gate;  // [rows, in_stride], width used
  const float* up;    // [rows, in_stride], width used
  std::int64_t in_stride;
  float* out;         // [rows, out_stride]; may be gate
  std::int64_t out_stride;
  std::int64_t rows;
  std::int64_t width;
};

void silu_mul(const Stream& stream, const SiluMulArgs& args);

}  // namespace keel
