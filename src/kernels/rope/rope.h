// Rotary position embedding (Su et al. 2021): rotates pairs of each head's first `rotary_dim` dimensions by
// position · inverse_frequency[i], in place, and multiplies them by `magnitude` (long-context scalings; else 1).
#pragma once

#include <cstdint>
#include <span>

#include "device/stream.h"

namespace keel {

// half: pair (i, i + rotary_dim/2), as Hugging Face stores weights. interleaved: (2i, 2i+1), as GGUF's llama does.
enum class RopePairs : std::uint8_t { half, interleaved };

struct RopeAnglesArgs {
  std::span<const std::int32_t> positions;  // [tokens]
  const double* inverse_frequencies;        // [rotary_dim / 2]
  std::int64_t rotary_dim;                  // even
  float magnitude;
  float* angles;  // [tokens, rotary_dim]: cosines, then sines, of a token's pairs, times magnitude
};

// Once a step: the same angles serve queries, keys and every layer.
void rope_angles(const Stream& stream, const RopeAnglesArgs& args);

struct RopeArgs {
  float* x;                 // [tokens, heads, head_dim], tokens `token_stride` floats apart
  std::int64_t tokens;
  std::int64_t token_stride;
  std::int64_t heads;
  std::int64_t head_dim;
  std::int64_t rotary_dim;  // even, <= head_dim
  RopePairs pairs;
  const float* angles;      // rope_angles() of the tokens' positions
};

void rope(const Stream& stream, const RopeArgs& args);

}  // namespace keel
