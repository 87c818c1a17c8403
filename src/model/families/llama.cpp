// Llama 2 and 3, SmolLM2 and the many models saved as LlamaForCausalLM; Mistral differs in its sliding window.
#include "base/error.h"
#include "model/families/family.h"
#include "model/limits.h"

namespace keel {
namespace {

void limit_to_window(const JsonObject& json, ModelConfig& config) {
  if (const auto window = json.integer("sliding_window", 1, kMostPositions)) {
    limit_context(config, *window, fmt::format("a sliding window of {} tokens", *window));
  }
}

void read_llama(const JsonObject& json, ModelConfig& config) {
  config.qkv_bias = config.o_bias = json.boolean("attention_bias").value_or(false);
  if (json.boolean("mlp_bias").value_or(false)) {
    fail("{}: mlp_bias true is not supported (only projections without bias in the MLP)",
         json.label());
  }
  limit_to_window(json, config);
}

void read_mistral(const JsonObject& json, ModelConfig& config) {
  // Where the key is missing, transformers' MistralConfig has a window of 4,096; null means none.
  if (!json.contains("sliding_window")) {
    limit_context(
        config,
        4096,
        "Mistral's default sliding window of 4096 tokens (config.json has no sliding_window)");
  }
  limit_to_window(json, config);
}

}  // namespace

const Family kLlama{
    .name = "llama",
    .architecture = "LlamaForCausalLM",
    .gguf_architecture = "llama",
    .gguf_rope_pairs = RopePairs::interleaved,
    .read_hf = read_llama,
};

// GGUF files of Mistral models say "llama".
const Family kMistral{
    .name = "mistral",
    .architecture = "MistralForCausalLM",
    .read_hf = read_mistral,
};

}  // namespace keel
