#include <algorithm>
#include <filesystem>
#include <optional>
#include <utility>
#include <vector>

#include "base/error.h"
#include "files/printable.h"
#include "model/config.h"
#include "model/families/family.h"
#include "model/json_object.h"
#include "model/limits.h"
#include "model/rope_scaling.h"

namespace keel {
namespace {

constexpr double kDefaultTheta = 10000;  // what configurations without rope_theta mean

// Keys that change the computation in ways keel does not follow, should a known architecture carry one.
constexpr std::pair<const char*, const char*> kRefusedKeys[] = {
    {"attn_logit_softcapping", "a soft cap on attention scores"},
    {"final_logit_softcapping", "a soft cap on logits"},
    {"query_pre_attn_scalar", "its own attention scale"},
    {"attention_multiplier", "its own attention scale"},
    {"embedding_multiplier", "scaled embeddings"},
    {"residual_multiplier", "scaled residuals"},
    {"logits_scaling", "scaled logits"},
    {"clip_qkv", "clipped q, k and v"},
    {"no_rope_layers", "layers without RoPE"},
    {"kv_lora_rank", "latent attention (MLA)"},
    {"num_local_experts", "mixture of experts"},
    {"num_experts", "mixture of experts"},
    {"n_routed_experts", "mixture of experts"},
};

const Family& family_of(const JsonObject& json) {
  const auto architectures = json.strings("architectures");
  if (!architectures || architectures->size() != 1) {
    fail("{}: architectures: wanted one name, found {}", json.label(), json.text("architectures"));
  }
  return family_of_hf(json.label(), architectures->front());
}

void read_geometry(const JsonObject& json, const Family& family, ModelConfig& config) {
  config.layers = json.need_integer("num_hidden_layers", 1, kMostLayers);
  config.hidden = json.need_integer("hidden_size", 1, kMostHidden);
  config.intermediate = json.need_integer("intermediate_size", 1, kMostIntermediate);
  config.heads = json.need_integer("num_attention_heads", 1, kMostHeads);
  config.kv_heads = json.integer("num_key_value_heads", 1, kMostHeads).value_or(config.heads);
  config.vocabulary = json.need_integer("vocab_size", 1, kMostVocabulary);
  config.max_positions = json.need_integer("max_position_embeddings", 1, kMostPositions);
  config.rms_epsilon =
      static_cast<float>(json.number("rms_norm_eps").value_or(family.default_rms_epsilon));
  config.tied_head = json.boolean("tie_word_embeddings").value_or(false);
  const std::int64_t shared =
      family.default_head_dim > 0 ? family.default_head_dim : config.hidden / config.heads;
  config.head_dim = json.integer("head_dim", 1, kMostHidden).value_or(shared);
}

DType read_dtype(const JsonObject& json) {
  const char* key = json.has("dtype") ? "dtype" : "torch_dtype";
  const auto text = json.string(key);
  if (!text) return DType::f16;
  if (*text == "float32") return DType::f32;
  if (*text == "float16") return DType::f16;
  if (*text == "bfloat16") return DType::bf16;
  fail(
      "{}: {}: wanted float32, float16 or bfloat16, found {}", json.label(), key, printable(*text));
}

double need_positive(const JsonObject& json, std::string_view key) {
  const double value = json.need_number(key);
  if (!(value > 0)) fail("{}: {}: wanted a number above 0, found {}", json.label(), key, value);
  return value;
}

void read_longrope(const JsonObject& json, const JsonObject& rope, ModelConfig& config) {
  const JsonObject& holder = json.has("original_max_position_embeddings") ? json : rope;
  const std::int64_t original =
      holder.need_integer("original_max_position_embeddings", 2, kMostPositions);
  const auto factors = rope.numbers("short_factor");
  const std::size_t wanted = config.inverse_frequencies.size();
  if (!factors || factors->size() != wanted) {
    fail("{}: short_factor: wanted {} numbers, found {}",
         rope.label(),
         wanted,
         factors ? factors->size() : 0);
  }
  for (const double factor : *factors) {
    if (!(factor > 0))
      fail("{}: short_factor: wanted numbers above 0, found {}", rope.label(), factor);
  }
  scale_each(config.inverse_frequencies, *factors);
  const double stretch = rope.has("factor") ? need_positive(rope, "factor")
                                            : static_cast<double>(config.max_positions) /
                                                  static_cast<double>(original);
  config.rope_magnitude = static_cast<float>(
      rope.has("attention_factor") ? need_positive(rope, "attention_factor")
                                   : longrope_magnitude(stretch, static_cast<double>(original)));
  limit_context(config, original, fmt::format("longrope's long factors past {} tokens", original));
}

// rope_scaling with rope_theta beside it (up to transformers 4), or rope_parameters with all inside (from 5).
void read_rope(const JsonObject& json, const Family& family, ModelConfig& config) {
  const std::optional<JsonObject> nested = json.object("rope_parameters");
  const std::optional<JsonObject> scaling = json.object("rope_scaling");
  const JsonObject rope = scaling && !scaling->empty() ? *scaling
                          : nested                     ? *nested
                                   : JsonObject(json.label(), nlohmann::json::object());
  if (rope.holds_objects())
    fail("{}: RoPE parameters of each layer type are not supported", rope.label());

  // A value inside the RoPE object wins, as in transformers.
  const auto holder = [&](std::string_view key) -> const JsonObject& {
    return rope.has(key) ? rope : nested && nested->has(key) ? *nested : json;
  };
  const double theta = holder("rope_theta").has("rope_theta")
                           ? need_positive(holder("rope_theta"), "rope_theta")
                           : kDefaultTheta;
  const double share = holder("partial_rotary_factor").number("partial_rotary_factor").value_or(1);
  if (!(share > 0 && share <= 1) || (share != 1 && !family.partial_rotary)) {
    fail("{}: partial_rotary_factor: wanted {} for {}, found {}",
         json.label(),
         family.partial_rotary ? "a number above 0 and at most 1" : "1",
         family.architecture,
         share);
  }
  config.rotary_dim = static_cast<std::int64_t>(static_cast<double>(config.head_dim) * share);
  if (config.rotary_dim < 2 || config.rotary_dim % 2 != 0) {
    fail("{}: partial_rotary_factor {} of head_dim {} rotates {} dimensions, wanted an even number",
         json.label(),
         share,
         config.head_dim,
         config.rotary_dim);
  }
  config.inverse_frequencies = plain_frequencies(theta, config.rotary_dim);

  const auto written = rope.string("rope_type");
  const std::string type = written ? *written : rope.string("type").value_or("default");
  if (type == "default") return;
  if (type == "linear") {
    scale_linear(config.inverse_frequencies, need_positive(rope, "factor"));
  } else if (type == "llama3") {
    const Llama3Scaling llama3{
        .factor = need_positive(rope, "factor"),
        .low_frequency_factor = need_positive(rope, "low_freq_factor"),
        .high_frequency_factor = need_positive(rope, "high_freq_factor"),
        .original_positions = need_positive(rope, "original_max_position_embeddings"),
    };
    if (llama3.high_frequency_factor <= llama3.low_frequency_factor) {
      fail("{}: wanted high_freq_factor above low_freq_factor, found {} and {}",
           rope.label(),
           llama3.high_frequency_factor,
           llama3.low_frequency_factor);
    }
    scale_llama3(config.inverse_frequencies, llama3);
  } else if (type == "longrope" || type == "su") {
    read_longrope(json, rope, config);
  } else {
    fail("{}: the RoPE scaling {} is not supported; supported: default, linear, llama3, longrope",
         rope.label(),
         printable(type));
  }
}

bool read_awq(const JsonObject& json) {
  const auto quantization = json.object("quantization_config");
  if (!quantization) return false;
  const auto method = quantization->string("quant_method").value_or("none given");
  if (method != "awq") {
    fail(
        "{}: the quantization {} is not supported; supported: awq (4 bits, groups of 128, gemm, "
        "zero points)",
        quantization->label(),
        printable(method));
  }
  const auto want = [&](const char* key, const char* old_key, std::string_view wanted) {
    const char* written = quantization->has(key) ? key : old_key;
    if (quantization->text(written) != wanted) {
      fail("{}: {}: wanted {}, found {}",
           quantization->label(),
           key,
           wanted,
           quantization->text(written));
    }
  };
  want("bits", "w_bit", "'4'");
  want("group_size", "q_group_size", "'128'");
  want("zero_point", "zero_point", "'true'");
  const auto version = quantization->string("version").value_or("none given");
  if (version != "gemm" && version != "GEMM") {
    fail("{}: version: wanted gemm, found {}", quantization->label(), printable(version));
  }
  return true;
}

void add_ids(const std::vector<std::int32_t>& ids, std::vector<std::int32_t>& known) {
  for (const std::int32_t id : ids) {
    if (std::ranges::find(known, id) == known.end()) known.push_back(id);
  }
}

void read_generation_config(const std::filesystem::path& path, ModelConfig& config) {
  if (!std::filesystem::exists(path)) return;
  const JsonObject json = JsonObject::read(path);
  add_ids(json.token_ids("eos_token_id"), config.eos_ids);
  const auto within = [&](const char* key, double least, double most) {
    const auto value = json.number(key);
    if (value && !(*value >= least && *value <= most)) {
      fail("{}: {}: wanted {} to {}, found {}", json.label(), key, least, most, *value);
    }
    return value;
  };
  config.default_temperature = within("temperature", 0, 1e3);
  config.default_top_p = within("top_p", 0, 1);
  config.default_min_p = within("min_p", 0, 1);
  config.default_repetition_penalty = within("repetition_penalty", 1e-3, 1e3);
  config.default_top_k = json.integer("top_k", -1, kMostVocabulary);
}

}  // namespace

ModelConfig read_hf_config(const std::filesystem::path& config_json) {
  const JsonObject json = JsonObject::read(config_json);
  const Family& family = family_of(json);
  for (const auto& [key, meaning] : kRefusedKeys) {
    if (json.has(key)) fail("{}: {} ({}) is not supported", json.label(), key, meaning);
  }
  const auto activation = json.string("hidden_act").value_or("silu");
  if (activation != "silu" && activation != "swish") {
    fail("{}: hidden_act: wanted silu, found {}", json.label(), printable(activation));
  }

  ModelConfig config;
  config.architecture = family.architecture;
  config.family = family.name;
  config.dtype = read_dtype(json);
  config.qk_norm = family.qk_norm;
  config.qkv_bias = family.always_qkv_bias;
  read_geometry(json, family, config);
  check_geometry(json.label(), config);
  family.read_hf(json, config);
  read_rope(json, family, config);
  config.awq = read_awq(json);
  add_ids(json.token_ids("eos_token_id"), config.eos_ids);
  if (const auto bos = json.token_ids("bos_token_id"); !bos.empty()) config.bos_id = bos.front();
  read_generation_config(config_json.parent_path() / "generation_config.json", config);
  return config;
}

}  // namespace keel
