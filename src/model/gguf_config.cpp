#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>

#include "base/error.h"
#include "files/printable.h"
#include "model/config.h"
#include "model/families/family.h"
#include "model/limits.h"
#include "model/rope_scaling.h"

namespace keel {
namespace {

// Tokens that end a turn or a text, whichever of them the file calls its EOS: chat models stop at several.
constexpr std::string_view kEndTexts[] = {
    "<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "<|endoftext|>", "<|end_of_text|>"};
constexpr std::int64_t kControlToken = 3;  // tokenizer.ggml.token_type

// The keys of one architecture: "llama.block_count" and so on.
class Keys {
 public:
  Keys(const GgufFile& file, const std::string& architecture)
      : file_(file), architecture_(architecture) {}

  std::string key(std::string_view name) const { return fmt::format("{}.{}", architecture_, name); }

  std::optional<std::int64_t> integer(std::string_view name,
                                      std::int64_t least,
                                      std::int64_t most) const {
    const auto value = file_.integer(key(name));
    if (value && (*value < least || *value > most)) {
      fail("{}: metadata {}: wanted {} to {}, found {}",
           file_.label(),
           key(name),
           least,
           most,
           *value);
    }
    return value;
  }

  std::int64_t need_integer(std::string_view name, std::int64_t least, std::int64_t most) const {
    const auto value = integer(name, least, most);
    if (!value)
      fail("{}: metadata {}: wanted an integer of {} to {}, found nothing",
           file_.label(),
           key(name),
           least,
           most);
    return *value;
  }

  std::optional<double> positive(std::string_view name) const {
    const auto value = file_.number(key(name));
    if (value && !(*value > 0 && std::isfinite(*value))) {
      fail("{}: metadata {}: wanted a number above 0, found {}", file_.label(), key(name), *value);
    }
    return value;
  }

  const std::string* string(std::string_view name) const { return file_.string(key(name)); }

 private:
  const GgufFile& file_;
  const std::string& architecture_;
};

bool has_tensor(const GgufFile& file, std::string_view name) {
  return file.tensors().contains(name);
}

std::int64_t read_vocabulary(const GgufFile& file, const Keys& keys) {
  const auto embedding = file.tensors().find("token_embd.weight");
  if (embedding != file.tensors().end()) {
    const std::int64_t rows = embedding->second.shape.front();
    if (embedding->second.shape.size() != 2 || rows > kMostVocabulary) {
      fail(
          "{}: tensor token_embd.weight: wanted [vocabulary, hidden] of at most {} rows, found "
          "[{}]",
          file.label(),
          kMostVocabulary,
          fmt::join(embedding->second.shape, ", "));
    }
    return rows;
  }
  if (const auto* tokens = file.strings("tokenizer.ggml.tokens");
      tokens != nullptr && !tokens->empty()) {
    return static_cast<std::int64_t>(tokens->size());
  }
  return keys.need_integer("vocab_size", 1, kMostVocabulary);
}

// Per-frequency divisors that the converter stored as a tensor.
std::vector<double> read_factors(const GgufFile& file,
                                 const GgufTensor& tensor,
                                 std::size_t count) {
  constexpr std::uint32_t kF32 = 0;
  if (tensor.type != kF32 || tensor.bytes.size() != count * sizeof(float)) {
    fail("{}: tensor {}: wanted {} f32 values, found type {} and [{}]",
         file.label(),
         tensor.name,
         count,
         tensor.type,
         fmt::join(tensor.shape, ", "));
  }
  std::vector<double> factors(count);
  for (std::size_t i = 0; i < count; ++i) {
    float value;
    std::memcpy(&value, tensor.bytes.data() + i * sizeof(float), sizeof(float));
    if (!(value > 0) || !std::isfinite(value)) {
      fail("{}: tensor {}: wanted factors above 0, found {}", file.label(), tensor.name, value);
    }
    factors[i] = value;
  }
  return factors;
}

void read_rope(const GgufFile& file, const Keys& keys, const Family& family, ModelConfig& config) {
  config.rope_pairs = family.gguf_rope_pairs;
  config.rotary_dim =
      keys.integer("rope.dimension_count", 2, config.head_dim).value_or(config.head_dim);
  if (config.rotary_dim % 2 != 0 ||
      (config.rotary_dim != config.head_dim && !family.partial_rotary)) {
    fail("{}: metadata {}: wanted {} for {}, found {}",
         file.label(),
         keys.key("rope.dimension_count"),
         family.partial_rotary ? "an even number" : fmt::format("{}", config.head_dim),
         family.gguf_architecture,
         config.rotary_dim);
  }
  config.inverse_frequencies =
      plain_frequencies(keys.positive("rope.freq_base").value_or(10000), config.rotary_dim);

  const std::string* written = keys.string("rope.scaling.type");
  const std::string type = written != nullptr ? *written : "none";
  const bool longrope = type == "longrope" || has_tensor(file, "rope_factors_short.weight");
  if (type == "linear") {
    const auto factor = keys.positive("rope.scaling.factor");
    if (!factor)
      fail("{}: metadata {}: wanted a number, found nothing",
           file.label(),
           keys.key("rope.scaling.factor"));
    scale_linear(config.inverse_frequencies, *factor);
  } else if (type != "none" && type != "longrope") {
    fail(
        "{}: the RoPE scaling {} is not supported; supported: none, linear, longrope and stored "
        "factors",
        file.label(),
        printable(type));
  } else if (const auto scale = keys.positive("rope.scale_linear");
             scale && *scale != 1) {  // the older spelling
    scale_linear(config.inverse_frequencies, *scale);
  }

  if (longrope) {
    const auto tensor = file.tensors().find("rope_factors_short.weight");
    if (tensor == file.tensors().end() && !file.tensors().empty()) {
      fail("{}: tensor rope_factors_short.weight: wanted for longrope, found nothing",
           file.label());
    }
    if (tensor != file.tensors().end()) {
      scale_each(config.inverse_frequencies,
                 read_factors(file, tensor->second, config.inverse_frequencies.size()));
    }
    const std::int64_t original =
        keys.need_integer("rope.scaling.original_context_length", 2, kMostPositions);
    const double stretch =
        static_cast<double>(config.max_positions) / static_cast<double>(original);
    config.rope_magnitude = static_cast<float>(
        keys.positive("rope.scaling.attn_factor")
            .value_or(longrope_magnitude(stretch, static_cast<double>(original))));
    limit_context(
        config, original, fmt::format("longrope's long factors past {} tokens", original));
  }
  if (const auto factors = file.tensors().find("rope_freqs.weight");
      factors != file.tensors().end()) {
    scale_each(config.inverse_frequencies,
               read_factors(file, factors->second, config.inverse_frequencies.size()));
  }
}

void read_tokens(const GgufFile& file, ModelConfig& config) {
  const auto add = [&](std::int64_t id) {
    const auto token = static_cast<std::int32_t>(id);
    if (std::ranges::find(config.eos_ids, token) == config.eos_ids.end())
      config.eos_ids.push_back(token);
  };
  const auto id_at = [&](const char* key) {
    const auto id = file.integer(key);
    if (id && (*id < 0 || *id > kMostVocabulary)) {
      fail("{}: metadata {}: wanted a token id, found {}", file.label(), key, *id);
    }
    return id;
  };
  for (const char* key : {"tokenizer.ggml.eos_token_id",
                          "tokenizer.ggml.eot_token_id",
                          "tokenizer.ggml.eom_token_id"}) {
    if (const auto id = id_at(key)) add(*id);
  }
  if (const auto bos = id_at("tokenizer.ggml.bos_token_id"))
    config.bos_id = static_cast<std::int32_t>(*bos);
  const auto* tokens = file.strings("tokenizer.ggml.tokens");
  const auto* types = file.integers("tokenizer.ggml.token_type");
  if (tokens == nullptr || types == nullptr || types->size() != tokens->size()) return;
  for (std::size_t i = 0; i < tokens->size(); ++i) {
    const bool ends = std::ranges::find(kEndTexts, (*tokens)[i]) != std::end(kEndTexts);
    if (ends && (*types)[i] == kControlToken) add(static_cast<std::int64_t>(i));
  }
}

}  // namespace

ModelConfig read_gguf_config(const GgufFile& file) {
  const std::string* architecture = file.string("general.architecture");
  if (architecture == nullptr)
    fail("{}: metadata general.architecture: wanted a string, found nothing", file.label());
  const Family& family = family_of_gguf(file.label(), *architecture);
  const Keys keys(file, *architecture);
  if (keys.integer("expert_count", 0, INT32_MAX).value_or(0) > 0) {
    fail("{}: metadata {}: mixture of experts is not supported",
         file.label(),
         keys.key("expert_count"));
  }

  ModelConfig config;
  config.architecture = family.architecture;
  config.family = family.name;
  config.dtype = DType::f16;
  config.layers = keys.need_integer("block_count", 1, kMostLayers);
  config.hidden = keys.need_integer("embedding_length", 1, kMostHidden);
  config.intermediate = keys.need_integer("feed_forward_length", 1, kMostIntermediate);
  config.heads = keys.need_integer("attention.head_count", 1, kMostHeads);
  config.kv_heads = keys.integer("attention.head_count_kv", 1, kMostHeads).value_or(config.heads);
  config.max_positions = keys.need_integer("context_length", 1, kMostPositions);
  config.head_dim =
      keys.integer("attention.key_length", 1, kMostHidden).value_or(config.hidden / config.heads);
  const std::int64_t value_dim =
      keys.integer("attention.value_length", 1, kMostHidden).value_or(config.head_dim);
  if (value_dim != config.head_dim) {
    fail("{}: keys of {} and values of {} dimensions a head: wanted the same",
         file.label(),
         config.head_dim,
         value_dim);
  }
  const auto epsilon = keys.positive("attention.layer_norm_rms_epsilon");
  config.rms_epsilon = static_cast<float>(epsilon.value_or(family.default_rms_epsilon));
  config.vocabulary = read_vocabulary(file, keys);
  config.tied_head = !has_tensor(file, "output.weight");
  config.qk_norm = family.qk_norm;
  config.qkv_bias = family.always_qkv_bias || has_tensor(file, "blk.0.attn_q.bias");
  config.o_bias = has_tensor(file, "blk.0.attn_output.bias");
  check_geometry(file.label(), config);
  if (const auto window = keys.integer("attention.sliding_window", 0, kMostPositions);
      window && *window > 0) {
    limit_context(config, *window, fmt::format("a sliding window of {} tokens", *window));
  }
  read_rope(file, keys, family, config);
  read_tokens(file, config);
  return config;
}

}  // namespace keel
