// Phi-3, Phi-3.5, Phi-4 and Phi-4-mini: fused projections, part of each head rotated, LongRoPE.
#include "base/error.h"
#include "model/families/family.h"
#include "model/limits.h"

namespace keel {
namespace {

void read_phi3(const JsonObject& json, ModelConfig& config) {
  if (json.boolean("attention_bias").value_or(false)) {
    fail("{}: attention_bias true is not supported for Phi3ForCausalLM", json.label());
  }
  if (const auto window = json.integer("sliding_window", 1, kMostPositions)) {
    limit_context(config, *window, fmt::format("a sliding window of {} tokens", *window));
  }
}

}  // namespace

const Family kPhi3{
    .name = "phi3",
    .architecture = "Phi3ForCausalLM",
    .gguf_architecture = "phi3",
    .fused = true,
    .partial_rotary = true,
    .default_rms_epsilon = 1e-5,
    .read_hf = read_phi3,
};

}  // namespace keel
