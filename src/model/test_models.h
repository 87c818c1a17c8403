// For tests: small checkpoints of every family, as configs and tensors to write, spoil and load.
#pragma once

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "files/test_files.h"

namespace keel::testing {

using Json = nlohmann::json;

// 2 layers, hidden 256, 4 query and 2 KV heads of 64, FFN 256, 24 words.
inline Json tiny_config(const std::string& architecture) {
  return {{"architectures", {architecture}},
          {"hidden_size", 256},
          {"intermediate_size", 256},
          {"num_hidden_layers", 2},
          {"num_attention_heads", 4},
          {"num_key_value_heads", 2},
          {"head_dim", 64},
          {"vocab_size", 24},
          {"max_position_embeddings", 512},
          {"rms_norm_eps", 1e-5},
          {"rope_theta", 10000.0},
          {"sliding_window", nullptr},
          {"torch_dtype", "float32"},
          {"eos_token_id", 2}};
}

struct TinyTensor {
  std::string dtype;
  std::vector<std::int64_t> shape;
  std::string data;
};
using TinyTensors = std::map<std::string, TinyTensor>;

// `name` decides the values, so that a tensor taken for another is noticed.
inline std::uint32_t tiny_seed(const std::string& name) {
  std::uint32_t hash = 17;
  for (const char c : name) hash = hash * 31 + static_cast<unsigned char>(c);
  return hash % 977;
}
inline float tiny_value(std::uint32_t seed, std::int64_t i) {
  return static_cast<float>((seed + static_cast<std::uint32_t>(i) * 7) % 251) / 256;
}
inline float tiny_value(const std::string& name, std::int64_t i) {
  return tiny_value(tiny_seed(name), i);
}

// F32 values, or BF16 or F16 codes of them (all are exact in the three types but BF16's last bits: 251/256 fits 8 bits).
inline TinyTensor tiny_tensor(const std::string& name,
                              const std::vector<std::int64_t>& shape,
                              const std::string& dtype = "F32") {
  std::int64_t count = 1;
  for (const std::int64_t size : shape) count *= size;
  const std::uint32_t seed = tiny_seed(name);
  std::string data;
  for (std::int64_t i = 0; i < count; ++i) {
    const float value = tiny_value(seed, i);
    if (dtype == "F32") append(data, value);
    if (dtype == "F16") append(data, to_half(value));
    if (dtype == "BF16") append(data, to_bf16(value));
  }
  return {dtype, shape, data};
}

// The tensors that `config` (of tiny_config's sizes) asks for.
inline TinyTensors tiny_tensors(const Json& config, const std::string& dtype = "F32") {
  TinyTensors tensors;
  const auto add = [&](const std::string& name, const std::vector<std::int64_t>& shape) {
    tensors[name] = tiny_tensor(name, shape, dtype);
  };
  const std::string architecture = config["architectures"][0];
  add("model.embed_tokens.weight", {24, 256});
  add("model.norm.weight", {256});
  if (!config.value("tie_word_embeddings", false)) add("lm_head.weight", {24, 256});
  for (int i = 0; i < 2; ++i) {
    const std::string layer = "model.layers." + std::to_string(i) + ".";
    add(layer + "input_layernorm.weight", {256});
    add(layer + "post_attention_layernorm.weight", {256});
    add(layer + "self_attn.o_proj.weight", {256, 256});
    add(layer + "mlp.down_proj.weight", {256, 256});
    if (architecture == "Phi3ForCausalLM") {
      add(layer + "self_attn.qkv_proj.weight", {512, 256});
      add(layer + "mlp.gate_up_proj.weight", {512, 256});
    } else {
      add(layer + "self_attn.q_proj.weight", {256, 256});
      add(layer + "self_attn.k_proj.weight", {128, 256});
      add(layer + "self_attn.v_proj.weight", {128, 256});
      add(layer + "mlp.gate_proj.weight", {256, 256});
      add(layer + "mlp.up_proj.weight", {256, 256});
    }
    const bool all_biases = config.value("attention_bias", false);
    if (architecture == "Qwen2ForCausalLM" || all_biases) {
      add(layer + "self_attn.q_proj.bias", {256});
      add(layer + "self_attn.k_proj.bias", {128});
      add(layer + "self_attn.v_proj.bias", {128});
    }
    if (all_biases) add(layer + "self_attn.o_proj.bias", {256});
    if (architecture == "Qwen3ForCausalLM") {
      add(layer + "self_attn.q_norm.weight", {64});
      add(layer + "self_attn.k_norm.weight", {64});
    }
  }
  return tensors;
}

inline void write_hf_model(const TempFolder& folder,
                           const Json& config,
                           const TinyTensors& tensors) {
  SafetensorsBuilder builder;
  for (const auto& [name, tensor] : tensors)
    builder.add(name, tensor.dtype, tensor.shape, tensor.data);
  folder.write("config.json", config.dump());
  folder.write("model.safetensors", builder.bytes());
}

}  // namespace keel::testing
