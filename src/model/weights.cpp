#include "model/weights.h"

#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "base/option_error.h"
#include "model/families/family.h"
#include "model/tensor_source.h"

namespace keel {

const TensorNames kHfNames{
    .embedding = "model.embed_tokens",
    .head = "lm_head",
    .final_norm = "model.norm",
    .layers = "model.layers",
    .attention_norm = "input_layernorm",
    .q = "self_attn.q_proj",
    .k = "self_attn.k_proj",
    .v = "self_attn.v_proj",
    .o = "self_attn.o_proj",
    .qkv = "self_attn.qkv_proj",
    .q_norm = "self_attn.q_norm",
    .k_norm = "self_attn.k_norm",
    .mlp_norm = "post_attention_layernorm",
    .gate = "mlp.gate_proj",
    .up = "mlp.up_proj",
    .gate_up = "mlp.gate_up_proj",
    .down = "mlp.down_proj",
};

const TensorNames kGgufNames{
    .embedding = "token_embd",
    .head = "output",
    .final_norm = "output_norm",
    .layers = "blk",
    .attention_norm = "attn_norm",
    .q = "attn_q",
    .k = "attn_k",
    .v = "attn_v",
    .o = "attn_output",
    .qkv = "attn_qkv",
    .q_norm = "attn_q_norm",
    .k_norm = "attn_k_norm",
    .mlp_norm = "ffn_norm",
    .gate = "ffn_gate",
    .up = "ffn_up",
    .gate_up = "ffn_up",  // Phi-3's holds both
    .down = "ffn_down",
};

float* TensorSource::copy_of(std::int64_t size) {
  copies_.emplace_back(static_cast<std::size_t>(size), "a norm or bias");
  return copies_.back().data();
}

namespace {

using KeyBiasOffsets = std::vector<std::pair<std::int64_t, float>>;

// q, k and v, or gate and up, follow one another in the rows of one stored matrix.
WeightMatrix next_rows(const WeightMatrix& fused, std::int64_t& row, std::int64_t count) {
  row += count;
  return fused.row_slice(row - count, count);
}

class Binder {
 public:
  Binder(const ModelConfig& config, const TensorNames& names, bool fused, TensorSource& source)
      : config_(config), names_(names), fused_(fused), source_(source) {}

  LayerWeights bind_layer(std::int64_t index, const KeyBiasOffsets& key_bias_offsets) {
    const auto called = [&](std::string_view role) {
      return fmt::format("{}.{}.{}", names_.layers, index, role);
    };
    const auto norm = [&](std::string_view role, std::int64_t size) {
      return source_.vector(called(role) + ".weight", size);
    };
    const auto bias = [&](bool has, std::string_view role, std::int64_t size) {
      return has ? source_.vector(called(role) + ".bias", size) : nullptr;
    };
    const std::int64_t hidden = config_.hidden;
    const std::int64_t q_rows = config_.heads * config_.head_dim;
    const std::int64_t kv_rows = config_.kv_heads * config_.head_dim;
    LayerWeights layer{};
    layer.attention_norm = norm(names_.attention_norm, hidden);
    layer.mlp_norm = norm(names_.mlp_norm, hidden);
    if (fused_) {
      const WeightMatrix qkv = source_.matrix(called(names_.qkv), q_rows + 2 * kv_rows, hidden);
      std::int64_t row = 0;
      layer.q = next_rows(qkv, row, q_rows);
      layer.k = next_rows(qkv, row, kv_rows);
      layer.v = next_rows(qkv, row, kv_rows);
      const WeightMatrix gate_up =
          source_.matrix(called(names_.gate_up), 2 * config_.intermediate, hidden);
      layer.gate = gate_up.row_slice(0, config_.intermediate);
      layer.up = gate_up.row_slice(config_.intermediate, config_.intermediate);
    } else {
      layer.q = source_.matrix(called(names_.q), q_rows, hidden);
      layer.k = source_.matrix(called(names_.k), kv_rows, hidden);
      layer.v = source_.matrix(called(names_.v), kv_rows, hidden);
      layer.gate = source_.matrix(called(names_.gate), config_.intermediate, hidden);
      layer.up = source_.matrix(called(names_.up), config_.intermediate, hidden);
    }
    layer.o = source_.matrix(called(names_.o), hidden, q_rows);
    layer.down = source_.matrix(called(names_.down), hidden, config_.intermediate);
    float* k_bias = bias(config_.qkv_bias, names_.k, kv_rows);
    offset_key_bias(k_bias, key_bias_offsets);
    layer.q_bias = bias(config_.qkv_bias, names_.q, q_rows);
    layer.k_bias = k_bias;
    layer.v_bias = bias(config_.qkv_bias, names_.v, kv_rows);
    layer.o_bias = bias(config_.o_bias, names_.o, hidden);
    if (config_.qk_norm) {
      layer.q_norm = norm(names_.q_norm, config_.head_dim);
      layer.k_norm = norm(names_.k_norm, config_.head_dim);
    }
    return layer;
  }

  ModelWeights bind(const KeyBiasOffsets& key_bias_offsets) {
    ModelWeights weights{};
    ProgressBar bar("binding weights", config_.layers);
    weights.embedding =
        source_.matrix(std::string(names_.embedding), config_.vocabulary, config_.hidden);
    weights.head =
        config_.tied_head
            ? weights.embedding
            : source_.matrix(std::string(names_.head), config_.vocabulary, config_.hidden);
    weights.final_norm =
        source_.vector(fmt::format("{}.weight", names_.final_norm), config_.hidden);
    for (std::int64_t i = 0; i < config_.layers; ++i) {
      weights.layers.push_back(bind_layer(i, key_bias_offsets));
      bar.advance(1);
    }
    return weights;
  }

 private:
  void offset_key_bias(float* bias, const KeyBiasOffsets& offsets) const {
    for (const auto& [dim, value] : offsets) {
      if (bias == nullptr)
        fail("key bias offsets want a model with key biases; {} has none", config_.architecture);
      if (dim < 0 || dim >= config_.head_dim) {
        fail("key bias offsets: wanted a dimension below {}, found {}", config_.head_dim, dim);
      }
      for (std::int64_t head = 0; head < config_.kv_heads; ++head)
        bias[head * config_.head_dim + dim] += value;
    }
  }

  const ModelConfig& config_;
  const TensorNames& names_;
  bool fused_;
  TensorSource& source_;
};

const char* name_of(ModelFiles kind) {
  switch (kind) {
    case ModelFiles::hf_folder:
      return "a folder";
    case ModelFiles::gguf:
      return "a GGUF file";
    case ModelFiles::config_json:
      return "a config.json";
  }
  return "?";
}

LoadFormat chosen_format(const ModelPath& path, LoadFormat wanted) {
  if (wanted == LoadFormat::dummy) return wanted;
  const LoadFormat fitting = path.kind == ModelFiles::gguf        ? LoadFormat::gguf
                             : path.kind == ModelFiles::hf_folder ? LoadFormat::safetensors
                                                                  : LoadFormat::automatic;
  if (fitting == LoadFormat::automatic) {
    fail("{}: a config.json has no weights: name its folder, or choose the load format dummy",
         path.path.string());
  }
  if (wanted != LoadFormat::automatic && wanted != fitting) {
    refuse_option("--load-format {}: {} is {}", wanted == LoadFormat::gguf ? "gguf" : "safetensors", path.path.string(), name_of(path.kind));
  }
  return fitting;
}

}  // namespace

LoadedModel load_model(const ModelPath& path, const LoadOptions& options) {
  if (options.dtype && bits(*options.dtype) < 16) {
    fail("dtype: wanted f32, f16 or bf16, found {}", name(*options.dtype));
  }
  const LoadFormat format = chosen_format(path, options.format);
  LoadedModel model;
  std::shared_ptr<const GgufFile> gguf;
  if (path.kind == ModelFiles::gguf) {
    gguf = std::make_shared<GgufFile>(path.path);
    model.config = read_gguf_config(*gguf);
  } else {
    const bool is_folder = path.kind == ModelFiles::hf_folder;
    model.config = read_hf_config(is_folder ? path.path / "config.json" : path.path);
  }
  if (options.dtype) model.config.dtype = *options.dtype;

  const bool fused = format != LoadFormat::dummy && family_named(model.config.family).fused;
  std::shared_ptr<TensorSource> source;
  switch (format) {
    case LoadFormat::gguf:
      source = open_gguf(gguf);
      break;
    case LoadFormat::dummy:
      source =
          make_dummy(model.config, model.config.dtype, options.dummy_seed, options.dummy_scale);
      break;
    default:
      source = open_safetensors(path.path, model.config);
  }
  const TensorNames& names = format == LoadFormat::gguf ? kGgufNames : kHfNames;
  model.weights = Binder(model.config, names, fused, *source).bind(options.key_bias_offsets);
  source->refuse_unused(model.config);
  source->read_ahead();
  model.weights.format = source->format();
  model.weights.bytes = source->bytes();
  model.weights.owners.push_back(std::move(source));
  return model;
}

}  // namespace keel
