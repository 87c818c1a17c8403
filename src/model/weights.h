// The tensors of a decoder, bound by role. Matrices are views of the mapped files; small vectors are f32 copies.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "device/buffer.h"
#include "files/model_path.h"
#include "kernels/matmul/weight_matrix.h"
#include "model/config.h"

namespace keel {

struct LayerWeights {
  const float* attention_norm;  // [hidden]
  WeightMatrix q, k, v, o;      // [heads·D, hidden], [kv_heads·D, hidden] twice, [hidden, heads·D]
  const float* q_bias = nullptr;  // [heads·D] or null; likewise k, v, o
  const float* k_bias = nullptr;
  const float* v_bias = nullptr;
  const float* o_bias = nullptr;
  const float* q_norm = nullptr;  // [head_dim] or null (Qwen3)
  const float* k_norm = nullptr;
  const float* mlp_norm;          // [hidden]
  WeightMatrix gate, up, down;    // [intermediate, hidden] twice, [hidden, intermediate]
};

struct ModelWeights {
  WeightMatrix embedding;  // [vocabulary, hidden]
  WeightMatrix head;       // [vocabulary, hidden]; the embedding where tied
  const float* final_norm;
  std::vector<LayerWeights> layers;

  std::string format;      // "safetensors bf16", "gguf q4_1/q8_0", "awq int4 g128", "dummy f16"
  std::int64_t bytes = 0;  // of all tensors a forward reads, each once
  std::vector<std::shared_ptr<const void>> owners;  // mappings and copies that the views point into
};

enum class LoadFormat { automatic, safetensors, gguf, dummy };

struct LoadOptions {
  LoadFormat format = LoadFormat::automatic;
  std::uint64_t dummy_seed = 0;     // dummy: uniform in ±dummy_scale (vLLM's 1e-3 by default), norms 1
  float dummy_scale = 1e-3f;
  std::optional<DType> dtype;       // --dtype: for dummy weights the type to make; for others the type `16` stands for
  // Added to the key bias of every layer and KV head (which must exist): {dim, value}. The "fragile twin" of the tests.
  std::vector<std::pair<std::int64_t, float>> key_bias_offsets;
};

// Shapes are checked against the config; a missing, extra-shaped or mistyped tensor throws Error naming file and tensor.
struct LoadedModel {
  ModelConfig config;
  ModelWeights weights;
};
LoadedModel load_model(const ModelPath& path, const LoadOptions& options);

}  // namespace keel
