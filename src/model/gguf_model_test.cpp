// read_gguf_config and GGUF weights, on small files made here.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>

#include "model/test_models.h"
#include "model/weights.h"

namespace keel {
namespace {

using testing::as_bytes;
using testing::error_of;
using testing::expect_parts;
using testing::GgufBuilder;
using testing::TempFolder;
using testing::tiny_tensor;
using testing::tiny_value;

struct StoredType {
  std::uint32_t number;
  WeightType type;
  std::int64_t block_elements, block_bytes;
};
constexpr StoredType kF32{0, WeightType::f32, 1, 4};
constexpr StoredType kTypes[] = {
    kF32,
    {1, WeightType::f16, 1, 2},
    {30, WeightType::bf16, 1, 2},
    {8, WeightType::q8_0, 32, 34},
    {2, WeightType::q4_0, 32, 18},
    {3, WeightType::q4_1, 32, 20},
    {12, WeightType::q4_k, 256, 144},
    {13, WeightType::q5_k, 256, 176},
    {14, WeightType::q6_k, 256, 210},
};

// A file of tiny_config's sizes. The maps change or leave out entries and tensors by name.
struct TinyGguf {
  explicit TinyGguf(std::string architecture_) : architecture(std::move(architecture_)) {}

  std::string architecture;
  std::map<std::string, std::function<void(GgufBuilder&, const std::string& key)>>
      entries;                              // by the key's last part
  std::map<std::string, StoredType> types;  // F32 where not named
  std::map<std::string, std::vector<std::int64_t>> shapes;
  std::vector<std::string> absent;
  std::map<std::string, std::vector<float>>
      vectors;  // additional ones, "rope_freqs.weight" and so on
  std::map<std::string, std::vector<std::string>> tokens;

  bool is_absent(const std::string& name) const {
    return std::ranges::find(absent, name) != absent.end();
  }

  // Without its layers' tensors a file still has a config.
  std::string bytes(bool with_layers = true) const {
    GgufBuilder builder;
    builder.string("general.architecture", architecture);
    const auto u32 = [&](const std::string& key, std::uint32_t value) {
      if (!is_absent(key) && !entries.contains(key)) builder.u32(architecture + "." + key, value);
    };
    u32("block_count", 2);
    u32("embedding_length", 256);
    u32("feed_forward_length", 256);
    u32("attention.head_count", 4);
    u32("attention.head_count_kv", 2);
    u32("context_length", 512);
    if (!entries.contains("attention.layer_norm_rms_epsilon")) {
      builder.f32(architecture + ".attention.layer_norm_rms_epsilon", 1e-5f);
    }
    for (const auto& [key, write] : entries) write(builder, architecture + "." + key);
    for (const auto& [key, words] : tokens) builder.strings(key, words);
    if (!tokens.empty()) {
      builder.array<std::int32_t>("tokenizer.ggml.token_type", 5, {1, 3, 3, 1, 3});
      builder.u32("tokenizer.ggml.eos_token_id", 2);
      builder.u32("tokenizer.ggml.bos_token_id", 1);
    }

    const auto add = [&](const std::string& name, std::vector<std::int64_t> shape) {
      if (is_absent(name)) return;
      if (shapes.contains(name)) shape = shapes.at(name);
      const StoredType type = types.contains(name) ? types.at(name) : kF32;
      if (type.block_elements == 1 && type.number == 0) {
        builder.tensor(name, 0, shape, tiny_tensor(name, shape).data);
      } else {
        std::int64_t count = 1;
        for (const std::int64_t size : shape) count *= size;
        builder.tensor(
            name,
            type.number,
            shape,
            std::string(static_cast<std::size_t>(count / type.block_elements * type.block_bytes),
                        'b'));
      }
    };
    add("token_embd.weight", {24, 256});
    add("output_norm.weight", {256});
    add("output.weight", {24, 256});
    for (int i = 0; with_layers && i < 2; ++i) {
      const std::string layer = "blk." + std::to_string(i) + ".";
      add(layer + "attn_norm.weight", {256});
      add(layer + "ffn_norm.weight", {256});
      add(layer + "attn_output.weight", {256, 256});
      add(layer + "ffn_down.weight", {256, 256});
      if (architecture == "phi3") {
        add(layer + "attn_qkv.weight", {512, 256});
        add(layer + "ffn_up.weight", {512, 256});
      } else {
        add(layer + "attn_q.weight", {256, 256});
        add(layer + "attn_k.weight", {128, 256});
        add(layer + "attn_v.weight", {128, 256});
        add(layer + "ffn_gate.weight", {256, 256});
        add(layer + "ffn_up.weight", {256, 256});
      }
      if (architecture == "qwen2") {
        add(layer + "attn_q.bias", {256});
        add(layer + "attn_k.bias", {128});
        add(layer + "attn_v.bias", {128});
      }
      if (architecture == "qwen3") {
        add(layer + "attn_q_norm.weight", {64});
        add(layer + "attn_k_norm.weight", {64});
      }
    }
    for (const auto& [name, values] : vectors) {
      std::string data;
      for (const float value : values) testing::append(data, value);
      builder.tensor(name, 0, {static_cast<std::int64_t>(values.size())}, data);
    }
    return builder.bytes();
  }

  void number(const std::string& key, float value) {
    entries[key] = [value](GgufBuilder& builder, const std::string& full) {
      builder.f32(full, value);
    };
  }
  void integer(const std::string& key, std::uint32_t value) {
    entries[key] = [value](GgufBuilder& builder, const std::string& full) {
      builder.u32(full, value);
    };
  }
  void text(const std::string& key, const std::string& value) {
    entries[key] = [value](GgufBuilder& builder, const std::string& full) {
      builder.string(full, value);
    };
  }
};

ModelConfig read(const TinyGguf& gguf) {
  const std::string bytes = gguf.bytes(/*with_layers=*/false);
  return read_gguf_config(GgufFile("model.gguf", as_bytes(bytes)));
}

LoadedModel load(const TinyGguf& gguf, const LoadOptions& options = {}) {
  const TempFolder folder;
  return load_model(find_model(folder.write("model.gguf", gguf.bytes()).string()), options);
}

void expect_config_refusal(const TinyGguf& gguf, const std::vector<std::string>& parts) {
  const std::string message = error_of([&] { read(gguf); });
  expect_parts(message, {"model.gguf"});
  expect_parts(message, parts);
}

void expect_refusal(const TinyGguf& gguf, const std::vector<std::string>& parts) {
  const std::string message = error_of([&] { load(gguf); });
  expect_parts(message, {"model.gguf"});
  expect_parts(message, parts);
}

TEST(GgufConfig, ReadsGeometryOfEveryArchitecture) {
  for (const auto& [architecture, hf] : {std::pair("llama", "LlamaForCausalLM"),
                                         std::pair("qwen2", "Qwen2ForCausalLM"),
                                         std::pair("qwen3", "Qwen3ForCausalLM"),
                                         std::pair("phi3", "Phi3ForCausalLM")}) {
    const ModelConfig config = read(TinyGguf(architecture));
    EXPECT_EQ(config.architecture, hf);
    EXPECT_EQ(config.family, architecture);
    EXPECT_EQ(config.dtype, DType::f16);
    EXPECT_EQ(config.layers, 2);
    EXPECT_EQ(config.hidden, 256);
    EXPECT_EQ(config.heads, 4);
    EXPECT_EQ(config.kv_heads, 2);
    EXPECT_EQ(config.head_dim, 64);
    EXPECT_EQ(config.vocabulary, 24);
    EXPECT_EQ(config.max_positions, 512);
    EXPECT_FLOAT_EQ(config.rms_epsilon, 1e-5f);
    EXPECT_EQ(config.rope_pairs,
              architecture == std::string("llama") ? RopePairs::interleaved : RopePairs::half);
    EXPECT_EQ(config.qkv_bias, architecture == std::string("qwen2"));
    EXPECT_EQ(config.qk_norm, architecture == std::string("qwen3"));
    EXPECT_FALSE(config.tied_head);
    EXPECT_FALSE(config.context_limit);
  }
}

TEST(GgufConfig, TiesTheHeadWhereNoneIsStored) {
  TinyGguf gguf("llama");
  gguf.absent = {"output.weight", "attention.head_count_kv"};
  EXPECT_TRUE(read(gguf).tied_head);
  EXPECT_EQ(read(gguf).kv_heads, 4);
}

TEST(GgufConfig, RefusesOtherArchitecturesByName) {
  expect_config_refusal(TinyGguf("gemma2"), {"gemma2", "soft caps", "llama, qwen2, qwen3, phi3"});
  expect_config_refusal(TinyGguf("gpt-oss"), {"gpt-oss", "sinks"});
  expect_config_refusal(TinyGguf("qwen3moe"), {"qwen3moe", "mixture of experts"});
  expect_config_refusal(TinyGguf(""), {"architecture", "llama, qwen2, qwen3, phi3"});
  GgufBuilder builder;
  const std::string bytes = builder.bytes();
  expect_parts(error_of([&] { read_gguf_config(GgufFile("empty.gguf", as_bytes(bytes))); }),
               {"general.architecture"});
  TinyGguf moe("llama");
  moe.integer("expert_count", 8);
  expect_config_refusal(moe, {"llama.expert_count", "mixture of experts"});
}

TEST(GgufConfig, RefusesBadGeometry) {
  for (const char* key : {"block_count",
                          "embedding_length",
                          "feed_forward_length",
                          "attention.head_count",
                          "context_length"}) {
    TinyGguf gguf("llama");
    gguf.absent = {key};
    expect_config_refusal(gguf, {std::string("llama.") + key, "found nothing"});
    gguf.integer(key, 0);
    expect_config_refusal(gguf, {std::string("llama.") + key, "found 0"});
    gguf.text(key, "many");
    expect_config_refusal(gguf, {std::string("llama.") + key, "a string"});
  }
  TinyGguf gguf("llama");
  gguf.integer("attention.key_length", 72);
  gguf.integer("attention.value_length", 72);
  expect_config_refusal(gguf, {"multiple of 16", "72"});
  gguf.integer("attention.key_length", 64);
  gguf.integer("attention.value_length", 128);
  expect_config_refusal(gguf, {"64", "128", "the same"});
  gguf = TinyGguf("llama");
  gguf.integer("attention.head_count_kv", 3);
  expect_config_refusal(gguf, {"3 KV heads"});
  gguf = TinyGguf("llama");
  gguf.number("attention.layer_norm_rms_epsilon", std::numeric_limits<float>::quiet_NaN());
  expect_config_refusal(gguf, {"epsilon"});
}

TEST(GgufConfig, FoldsRopeScalingsIn) {
  TinyGguf gguf("llama");
  gguf.number("rope.freq_base", 500000);
  const std::vector<double> plain = read(gguf).inverse_frequencies;
  EXPECT_DOUBLE_EQ(plain[1], std::pow(500000, -2.0 / 64));

  TinyGguf linear = gguf;
  linear.text("rope.scaling.type", "linear");
  linear.number("rope.scaling.factor", 4);
  EXPECT_DOUBLE_EQ(read(linear).inverse_frequencies[3], plain[3] / 4);
  linear.entries.erase("rope.scaling.factor");
  expect_config_refusal(linear, {"llama.rope.scaling.factor"});

  TinyGguf llama3 = gguf;
  for (int i = 0; i < 32; ++i)
    llama3.vectors["rope_freqs.weight"].push_back(1 + 0.25f * static_cast<float>(i));
  EXPECT_DOUBLE_EQ(read(llama3).inverse_frequencies[8], plain[8] / 3);
  llama3.vectors["rope_freqs.weight"].pop_back();
  expect_config_refusal(llama3, {"rope_freqs.weight", "32 f32", "[31]"});
  llama3.vectors["rope_freqs.weight"].push_back(0);
  expect_config_refusal(llama3, {"rope_freqs.weight", "above 0"});

  for (const char* type : {"yarn", "dynamic"}) {
    gguf.text("rope.scaling.type", type);
    expect_config_refusal(gguf, {type, "none, linear, longrope"});
  }
  TinyGguf partial("llama");
  partial.integer("rope.dimension_count", 32);
  expect_config_refusal(partial, {"llama.rope.dimension_count", "64", "32"});
}

TEST(GgufConfig, ReadsLongropeUpToItsOriginalContext) {
  TinyGguf gguf("phi3");
  gguf.integer("rope.dimension_count", 48);
  gguf.integer("rope.scaling.original_context_length", 128);
  gguf.vectors["rope_factors_short.weight"] = std::vector<float>(24, 2.0f);
  gguf.vectors["rope_factors_long.weight"] = std::vector<float>(24, 9.0f);
  const ModelConfig config = read(gguf);
  EXPECT_EQ(config.rotary_dim, 48);
  EXPECT_DOUBLE_EQ(config.inverse_frequencies[1], std::pow(10000, -2.0 / 48) / 2);
  EXPECT_FLOAT_EQ(config.rope_magnitude,
                  static_cast<float>(std::sqrt(1 + std::log(4.0) / std::log(128.0))));
  EXPECT_EQ(config.context_limit, 128);
  gguf.number("rope.scaling.attn_factor", 1.25f);
  EXPECT_EQ(read(gguf).rope_magnitude, 1.25f);
  EXPECT_EQ(load(gguf).config.context_limit, 128) << "the long factors stay unread";
  gguf.vectors.erase("rope_factors_short.weight");
  gguf.text("rope.scaling.type", "longrope");
  expect_config_refusal(gguf, {"rope_factors_short.weight", "longrope"});
}

TEST(GgufConfig, LimitsTheContextToASlidingWindow) {
  TinyGguf gguf("phi3");
  gguf.integer("attention.sliding_window", 100);
  EXPECT_EQ(read(gguf).context_limit, 100);
  gguf.integer("attention.sliding_window", 0);
  EXPECT_FALSE(read(gguf).context_limit);
}

TEST(GgufConfig, CollectsTheTokensThatEndATurn) {
  TinyGguf gguf("llama");
  gguf.tokens["tokenizer.ggml.tokens"] = {
      "a", "<|begin|>", "<|endoftext|>", "<|end|>", "<|im_end|>"};
  const ModelConfig config = read(gguf);
  EXPECT_EQ(config.eos_ids, (std::vector<std::int32_t>{2, 4}))
      << "<|end|> is an ordinary token here";
  EXPECT_EQ(config.bos_id, 1);
}

TEST(GgufConfig, ReadsVocabularyOnlyFiles) {
  const std::filesystem::path folder = std::filesystem::path(KEEL_SHARED_DIR) / "data/tokenizers";
  if (!std::filesystem::exists(folder)) GTEST_SKIP() << folder << " is absent";
  const ModelConfig config = read_gguf_config(GgufFile(folder / "ggml-vocab-phi-3.gguf"));
  EXPECT_EQ(config.family, "phi3");
  EXPECT_EQ(config.vocabulary, 32064);
  EXPECT_EQ(config.head_dim, 96);
  EXPECT_NE(std::ranges::find(config.eos_ids, 32007), config.eos_ids.end()) << "<|end|>";
}

TEST(GgufWeights, BindsEveryArchitecture) {
  for (const char* architecture : {"llama", "qwen2", "qwen3", "phi3"}) {
    SCOPED_TRACE(architecture);
    const LoadedModel model = load(TinyGguf(architecture));
    EXPECT_EQ(model.weights.format, "gguf f32");
    ASSERT_EQ(model.weights.layers.size(), 2u);
    for (std::size_t i = 0; i < 2; ++i) {
      const LayerWeights& layer = model.weights.layers[i];
      const std::string at = "blk." + std::to_string(i) + ".";
      const auto expect_rows = [&](const WeightMatrix& matrix,
                                   const std::string& name,
                                   std::int64_t rows,
                                   std::int64_t first) {
        ASSERT_EQ(matrix.rows, rows) << name;
        ASSERT_EQ(matrix.columns, 256) << name;
        float value;
        std::memcpy(&value, matrix.data + (rows - 1) * matrix.row_bytes() + 255 * 4, 4);
        EXPECT_EQ(value, tiny_value(at + name + ".weight", (first + rows) * 256 - 1)) << name;
      };
      const bool fused = model.config.family == "phi3";
      expect_rows(layer.q, fused ? "attn_qkv" : "attn_q", 256, 0);
      expect_rows(layer.k, fused ? "attn_qkv" : "attn_k", 128, fused ? 256 : 0);
      expect_rows(layer.v, fused ? "attn_qkv" : "attn_v", 128, fused ? 384 : 0);
      expect_rows(layer.gate, fused ? "ffn_up" : "ffn_gate", 256, 0);
      expect_rows(layer.up, "ffn_up", 256, fused ? 256 : 0);
      expect_rows(layer.o, "attn_output", 256, 0);
      expect_rows(layer.down, "ffn_down", 256, 0);
      EXPECT_EQ(layer.attention_norm[3], tiny_value(at + "attn_norm.weight", 3));
      EXPECT_EQ(layer.mlp_norm[3], tiny_value(at + "ffn_norm.weight", 3));
      EXPECT_EQ(layer.k_bias != nullptr, model.config.family == "qwen2");
      EXPECT_EQ(layer.k_norm != nullptr, model.config.family == "qwen3");
      if (layer.k_bias != nullptr) {
        EXPECT_EQ(layer.k_bias[5], tiny_value(at + "attn_k.bias", 5));
      }
      if (layer.k_norm != nullptr) {
        EXPECT_EQ(layer.k_norm[5], tiny_value(at + "attn_k_norm.weight", 5));
      }
    }
  }
}

TEST(GgufWeights, TakesEveryEncodingInAnyMixture) {
  TinyGguf gguf("llama");
  const char* names[] = {
      "attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"};
  for (std::size_t i = 0; i < std::size(kTypes); ++i) {
    for (int layer = 0; layer < 2; ++layer) {
      for (std::size_t j = 0; j < std::size(names); ++j) {
        gguf.types[fmt::format("blk.{}.{}.weight", layer, names[j])] =
            kTypes[(i + j) % std::size(kTypes)];
      }
    }
    gguf.types["token_embd.weight"] = kTypes[i];
    const LoadedModel model = load(gguf);
    EXPECT_EQ(model.weights.layers[1].q.type, kTypes[i].type);
    EXPECT_EQ(model.weights.layers[1].k.type, kTypes[(i + 1) % std::size(kTypes)].type);
    EXPECT_EQ(model.weights.embedding.type, kTypes[i].type);
    EXPECT_EQ(model.weights.embedding.bytes(),
              24 * 256 / kTypes[i].block_elements * kTypes[i].block_bytes);
  }
  EXPECT_EQ(load(TinyGguf("llama"), {.dtype = DType::bf16}).config.dtype, DType::bf16);
}

TEST(GgufWeights, NamesItsEncodingsMostBytesFirst) {
  TinyGguf gguf("llama");
  for (int layer = 0; layer < 2; ++layer) {
    for (const char* name :
         {"attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"}) {
      gguf.types[fmt::format("blk.{}.{}.weight", layer, name)] = kTypes[6];
    }
  }
  gguf.types["token_embd.weight"] = gguf.types["output.weight"] = kTypes[8];
  EXPECT_EQ(load(gguf).weights.format, "gguf q4_k/q6_k");
}

TEST(GgufWeights, RefusesMissingMisshapenAndMistypedTensors) {
  for (const char* name : {"token_embd.weight",
                           "output_norm.weight",
                           "blk.1.attn_q.weight",
                           "blk.0.attn_norm.weight",
                           "blk.1.ffn_down.weight"}) {
    TinyGguf gguf("llama");
    gguf.integer("vocab_size", 24);
    gguf.absent = {name};
    expect_refusal(gguf, {name, "no such tensor"});
    gguf.absent.clear();
    gguf.shapes[name] = {23, 512};
    expect_refusal(gguf, {name, "wanted [", "found [23, 512]"});
  }
  TinyGguf gguf("llama");
  gguf.types["blk.0.attn_q.weight"] = {10, WeightType::f32, 256, 84};  // Q2_K
  expect_refusal(gguf, {"blk.0.attn_q.weight", "type number 10", "Q4_K"});
  gguf = TinyGguf("llama");
  gguf.types["blk.0.attn_norm.weight"] = kTypes[3];
  expect_refusal(gguf, {"blk.0.attn_norm.weight", "norm or bias", "q8_0"});
}

TEST(GgufWeights, RefusesTensorsThatHaveNoPlace) {
  for (const char* name :
       {"blk.0.attn_q_norm.weight", "blk.2.attn_norm.weight", "blk.0.attn_sinks.weight"}) {
    TinyGguf gguf("llama");
    gguf.vectors[name] = std::vector<float>(64, 1.0f);
    expect_refusal(gguf, {name, "no place"});
  }
}

TEST(GgufWeights, TakesTheOptionalBiasesOfLlama) {
  TinyGguf gguf("llama");
  for (int layer = 0; layer < 2; ++layer) {
    for (const auto& [name, size] : {std::pair("attn_q", 256),
                                     std::pair("attn_k", 128),
                                     std::pair("attn_v", 128),
                                     std::pair("attn_output", 256)}) {
      gguf.vectors[fmt::format("blk.{}.{}.bias", layer, name)] =
          std::vector<float>(static_cast<std::size_t>(size), 0.5f);
    }
  }
  const LoadedModel model = load(gguf);
  EXPECT_EQ(model.weights.layers[1].o_bias[255], 0.5f);
  EXPECT_EQ(model.weights.layers[1].k_bias[127], 0.5f);
  gguf.vectors.erase("blk.1.attn_v.bias");
  expect_refusal(gguf, {"blk.1.attn_v.bias", "no such tensor"});
}

TEST(GgufWeights, GiveTheirGeometryToDummyWeightsToo) {
  const LoadedModel model = load(TinyGguf("phi3"), {.format = LoadFormat::dummy});
  EXPECT_EQ(model.weights.format, "dummy f16");
  EXPECT_EQ(model.weights.layers[0].q.rows, 256);
}

}  // namespace
}  // namespace keel
