// A look into each layer's attention of a step, and a way to do it wrong on purpose: what checks of the real path stand on.
#pragma once

#include <cstdint>
#include <span>

namespace keel {

struct StepRows;

// Numbers are the device's own, widened to f32 on the host; rows are the step's.
struct AttentionCall {
  std::int64_t layer;
  const StepRows& rows;
  std::span<float> q;           // [T, heads, head_dim], as attention reads it
  std::span<const float> k, v;  // [T, kv_heads, head_dim], as they were given to the cache's writer
  std::span<const float> out;   // [T, heads, head_dim]; empty before the call

  // Faults, set before the call.
  bool q_changed = false;         // q was overwritten: attention takes it
  std::int64_t read_layer = 0;    // whose pages attention reads; `layer` unless changed
  bool values_are_keys = false;   // attention finds its values where the keys are
  bool native_refuses = false;    // CUDA: cuDNN runs no call of this layer
};

class AttentionProbe {
 public:
  virtual ~AttentionProbe() = default;
  virtual void before(AttentionCall& call) = 0;  // the step's keys and values are stored, attention has not run
  virtual void after(const AttentionCall& call) = 0;
};

}  // namespace keel
