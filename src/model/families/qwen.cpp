// Qwen2 and 2.5: biases on q, k and v. Qwen3: norms on each head of q and k, no bias.
#include <algorithm>

#include "base/error.h"
#include "files/printable.h"
#include "model/families/family.h"
#include "model/limits.h"

namespace keel {
namespace {

constexpr std::int64_t kDefaultWindow = 4096;      // transformers' Qwen2Config and Qwen3Config
constexpr std::int64_t kDefaultWindowLayers = 28;  // layers below it attend fully

bool has_window_layers(const JsonObject& json, const ModelConfig& config) {
  if (const auto types = json.strings("layer_types")) {
    for (const std::string& type : *types) {
      if (type != "full_attention" && type != "sliding_attention") {
        fail("{}: layer_types: wanted full_attention or sliding_attention, found {}",
             json.label(),
             printable(type));
      }
    }
    return std::ranges::count(*types, "sliding_attention") > 0;
  }
  return json.integer("max_window_layers", 0, kMostPositions).value_or(kDefaultWindowLayers) <
         config.layers;
}

void limit_to_window(const JsonObject& json, ModelConfig& config) {
  if (!json.boolean("use_sliding_window").value_or(false) || !has_window_layers(json, config))
    return;
  if (json.contains("sliding_window") && !json.has("sliding_window")) return;
  const std::int64_t window =
      json.integer("sliding_window", 1, kMostPositions).value_or(kDefaultWindow);
  limit_context(
      config, window, fmt::format("a sliding window of {} tokens in some layers", window));
}

void read_qwen3(const JsonObject& json, ModelConfig& config) {
  config.qkv_bias = config.o_bias = json.boolean("attention_bias").value_or(false);
  limit_to_window(json, config);
}

}  // namespace

const Family kQwen2{
    .name = "qwen2",
    .architecture = "Qwen2ForCausalLM",
    .gguf_architecture = "qwen2",
    .always_qkv_bias = true,
    .read_hf = limit_to_window,
};

const Family kQwen3{
    .name = "qwen3",
    .architecture = "Qwen3ForCausalLM",
    .gguf_architecture = "qwen3",
    .qk_norm = true,
    .default_head_dim = 128,
    .read_hf = read_qwen3,
};

}  // namespace keel
