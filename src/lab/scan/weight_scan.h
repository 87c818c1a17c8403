// What config and weights alone say about keys and values that few bits cannot hold. No forward pass.
//
// A key channel with a large constant bias spends an 8-bit float's bits on the constant: E4M3's step at |x| in [2^e, 2^(e+1)) is
// 2^(e-3), 32 near 300, and what varies around the constant is lost below it. The size of the bias warns; whether it harms is
// the probe's to say (lab/scan/probe.h).
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "model/weights.h"

namespace keel {

// |bias| from which a key channel is named and the probe is due.
inline constexpr double kBiasAlarm = 5.0;

struct KeyChannel {
  std::int64_t layer, head;
  std::int64_t channel;                 // within its KV head, as the checkpoint numbers them
  std::optional<std::int64_t> partner;  // the channel that RoPE turns it with; none where it is not rotated
  double turn_tokens = 0;               // positions of a full turn; 0 where it is not rotated
  double bias = 0;                      // signed
  double times_median = 0;              // |bias| over the median |bias| of its head's channels; infinite where that is 0
  double spread = 0;                    // estimated deviation around the bias: of a white input after the layer's norm
  double e4m3_step = 0;                 // between neighbours of |bias| in E4M3 at unit scale
};

struct WeightScan {
  bool has_key_bias = false;
  std::vector<KeyChannel> largest;  // one a layer and KV head, layer by layer; empty without key biases
  std::vector<KeyChannel> alarms;   // all channels with |bias| >= kBiasAlarm, largest first
  double value_bias = 0;            // largest |bias| of the values, 0 without
  double key_norm = 0;              // QK-norm: largest |weight| of any layer's key norm, 0 without
  double key_norm_times_median = 0;
};

WeightScan scan_weights(const LoadedModel& model);

double e4m3_step(double magnitude);  // unit scale; past 448, where E4M3 saturates, the last step

}  // namespace keel
