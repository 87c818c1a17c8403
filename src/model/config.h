// What a checkpoint says of its architecture, whichever file format it came from.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "files/gguf.h"
#include "kernels/rope/rope.h"

namespace keel {

struct ModelConfig {
  std::string architecture;  // "LlamaForCausalLM", "Qwen2ForCausalLM", …; for GGUF the same names
  std::string family;        // "llama", "mistral", "qwen2", "qwen3", "phi3"
  DType dtype = DType::f16;  // the checkpoint's own: f32, f16 or bf16 (GGUF: f16)
  std::int64_t layers = 0;
  std::int64_t hidden = 0;
  std::int64_t intermediate = 0;
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;
  std::int64_t head_dim = 0;
  std::int64_t vocabulary = 0;
  std::int64_t max_positions = 0;
  float rms_epsilon = 1e-6f;
  bool tied_head = false;
  bool qk_norm = false;
  bool qkv_bias = false;
  bool o_bias = false;
  bool awq = false;

  // RoPE with every supported scaling (none, linear, llama3, longrope's short factors) already folded in.
  RopePairs rope_pairs = RopePairs::half;
  std::int64_t rotary_dim = 0;
  std::vector<double> inverse_frequencies;  // [rotary_dim / 2]
  float rope_magnitude = 1;

  // A sliding window (or longrope's original context) that keel does not implement: contexts up to it are exact, so
  // max-model-len may not pass it. Named in the refusal.
  std::optional<std::int64_t> context_limit;
  std::string context_limit_reason;

  std::vector<std::int32_t> eos_ids;  // config and generation_config together
  std::optional<std::int32_t> bos_id;

  // Default sampling of generation_config.json, where given.
  std::optional<double> default_temperature, default_top_p, default_min_p, default_repetition_penalty;
  std::optional<std::int64_t> default_top_k;
};

// From config.json (generation_config.json beside it where present). Throws Error naming the file, the key, what is
// supported and what was found: unknown architectures, MoE, soft caps, sinks, other rope scalings are refused by name.
ModelConfig read_hf_config(const std::filesystem::path& config_json);
ModelConfig read_gguf_config(const GgufFile& file);

}  // namespace keel
