// The model families that keel runs: one shape of decoder, told apart by these few rules. Each family's own reading of
// config.json lies in a file of its own.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "model/config.h"
#include "model/json_object.h"

namespace keel {

struct Family {
  std::string_view name;
  std::string_view architecture;  // config.json's architectures[0]
  std::string_view
      gguf_architecture;  // GGUF's general.architecture; empty where another family's stands for it
  RopePairs gguf_rope_pairs = RopePairs::half;
  bool fused = false;  // q, k, v are rows of one stored matrix; gate and up of another
  bool qk_norm = false;
  bool always_qkv_bias = false;
  bool partial_rotary = false;        // may rotate less than the whole head
  std::int64_t default_head_dim = 0;  // 0: hidden / heads
  double default_rms_epsilon = 1e-6;
  void (*read_hf)(const JsonObject& json, ModelConfig& config);  // biases and windows
};

extern const Family kLlama;
extern const Family kMistral;
extern const Family kQwen2;
extern const Family kQwen3;
extern const Family kPhi3;

std::span<const Family* const> families();
const Family& family_named(std::string_view name);  // ModelConfig::family; must exist

// Throw Error naming what is supported where there is no such family.
const Family& family_of_hf(const std::string& label, std::string_view architecture);
const Family& family_of_gguf(const std::string& label, std::string_view architecture);

// Contexts past `tokens` would not be exact; the smallest such limit stays.
void limit_context(ModelConfig& config, std::int64_t tokens, const std::string& reason);

}  // namespace keel
