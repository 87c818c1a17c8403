#include <gtest/gtest.h>

#include <cmath>

#include "model/config.h"
#include "model/rope_golden.h"
#include "model/test_models.h"

namespace keel {
namespace {

using testing::error_of;
using testing::expect_parts;
using testing::Json;
using testing::TempFolder;
using testing::tiny_config;

ModelConfig read(const Json& config, const Json& generation = nullptr) {
  const TempFolder folder;
  if (!generation.is_null()) folder.write("generation_config.json", generation.dump());
  return read_hf_config(folder.write("config.json", config.dump()));
}

Json with(Json config, const std::string& key, const Json& value) {
  config[key] = value;
  return config;
}

Json without(Json config, const std::string& key) {
  config.erase(key);
  return config;
}

void expect_refusal(const Json& config, const std::vector<std::string>& parts) {
  const std::string message = error_of([&] { read(config); });
  expect_parts(message, {"config.json"});
  expect_parts(message, parts);
}

const Json kLlamaConfig = tiny_config("LlamaForCausalLM");

TEST(HfConfig, ReadsGeometry) {
  const ModelConfig config = read(kLlamaConfig);
  EXPECT_EQ(config.architecture, "LlamaForCausalLM");
  EXPECT_EQ(config.family, "llama");
  EXPECT_EQ(config.dtype, DType::f32);
  EXPECT_EQ(config.layers, 2);
  EXPECT_EQ(config.hidden, 256);
  EXPECT_EQ(config.intermediate, 256);
  EXPECT_EQ(config.heads, 4);
  EXPECT_EQ(config.kv_heads, 2);
  EXPECT_EQ(config.head_dim, 64);
  EXPECT_EQ(config.rotary_dim, 64);
  EXPECT_EQ(config.vocabulary, 24);
  EXPECT_EQ(config.max_positions, 512);
  EXPECT_FLOAT_EQ(config.rms_epsilon, 1e-5f);
  EXPECT_EQ(config.rope_pairs, RopePairs::half);
  EXPECT_FALSE(config.tied_head || config.qk_norm || config.qkv_bias || config.o_bias ||
               config.awq);
  EXPECT_FALSE(config.context_limit);
  EXPECT_EQ(config.eos_ids, (std::vector<std::int32_t>{2}));
  EXPECT_FALSE(config.bos_id);
}

TEST(HfConfig, DerivesWhatOlderFilesLeaveOut) {
  Json old =
      without(without(without(kLlamaConfig, "head_dim"), "num_key_value_heads"), "rope_theta");
  old["max_position_embeddings"] = 2048;
  const ModelConfig config = read(old);
  EXPECT_EQ(config.head_dim, 64);
  EXPECT_EQ(config.kv_heads, 4);
  EXPECT_DOUBLE_EQ(config.inverse_frequencies[1], std::pow(10000, -2.0 / 64));
  EXPECT_EQ(read(without(tiny_config("Qwen3ForCausalLM"), "head_dim")).head_dim, 128)
      << "Qwen3's own default";
  EXPECT_FLOAT_EQ(read(without(kLlamaConfig, "rms_norm_eps")).rms_epsilon, 1e-6f);
  EXPECT_FLOAT_EQ(read(without(tiny_config("Phi3ForCausalLM"), "rms_norm_eps")).rms_epsilon, 1e-5f);
}

TEST(HfConfig, KnowsEachFamilysBiasesAndNorms) {
  EXPECT_TRUE(read(tiny_config("Qwen2ForCausalLM")).qkv_bias);
  EXPECT_FALSE(read(tiny_config("Qwen2ForCausalLM")).o_bias);
  EXPECT_TRUE(read(tiny_config("Qwen3ForCausalLM")).qk_norm);
  EXPECT_FALSE(read(tiny_config("Qwen3ForCausalLM")).qkv_bias);
  const ModelConfig biased = read(with(kLlamaConfig, "attention_bias", true));
  EXPECT_TRUE(biased.qkv_bias && biased.o_bias);
  expect_refusal(with(kLlamaConfig, "mlp_bias", true), {"mlp_bias"});
  expect_refusal(with(tiny_config("Phi3ForCausalLM"), "attention_bias", true),
                 {"attention_bias", "Phi3ForCausalLM"});
  EXPECT_EQ(read(tiny_config("MistralForCausalLM")).family, "mistral");
}

TEST(HfConfig, ReadsBothSpellingsOfTheType) {
  EXPECT_EQ(read(with(kLlamaConfig, "torch_dtype", "bfloat16")).dtype, DType::bf16);
  EXPECT_EQ(read(with(kLlamaConfig, "dtype", "float16")).dtype, DType::f16);
  EXPECT_EQ(read(without(kLlamaConfig, "torch_dtype")).dtype, DType::f16);
  expect_refusal(with(kLlamaConfig, "dtype", "float8_e4m3fn"),
                 {"dtype", "bfloat16", "float8_e4m3fn"});
}

TEST(HfConfig, RefusesArchitecturesByName) {
  const std::string supported =
      "LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM, Phi3ForCausalLM";
  const std::pair<const char*, const char*> refused[] = {
      {"Gemma2ForCausalLM", "soft caps"},
      {"GptOssForCausalLM", "sinks"},
      {"MixtralForCausalLM", "mixture of experts"},
      {"Qwen3MoeForCausalLM", "mixture of experts"},
      {"DeepseekV3ForCausalLM", "latent attention"},
      {"BertModel", "not supported"},
  };
  for (const auto& [architecture, reason] : refused) {
    expect_refusal(tiny_config(architecture), {architecture, reason, supported});
  }
  expect_refusal(without(kLlamaConfig, "architectures"), {"architectures", "nothing"});
  expect_refusal(with(kLlamaConfig, "architectures", {"LlamaForCausalLM", "Other"}),
                 {"architectures", "Other"});
}

TEST(HfConfig, RefusesKeysThatWouldChangeTheComputation) {
  for (const char* key : {"attn_logit_softcapping",
                          "final_logit_softcapping",
                          "num_local_experts",
                          "num_experts",
                          "n_routed_experts",
                          "kv_lora_rank",
                          "no_rope_layers",
                          "attention_multiplier"}) {
    expect_refusal(with(kLlamaConfig, key, 8), {key, "not supported"});
    EXPECT_NO_THROW(read(with(kLlamaConfig, key, nullptr)));
  }
  expect_refusal(with(kLlamaConfig, "hidden_act", "gelu"), {"hidden_act", "silu", "gelu"});
}

TEST(HfConfig, RefusesBadGeometry) {
  for (const char* key : {"hidden_size",
                          "intermediate_size",
                          "num_hidden_layers",
                          "num_attention_heads",
                          "vocab_size",
                          "max_position_embeddings"}) {
    expect_refusal(without(kLlamaConfig, key), {key, "found nothing"});
    for (const Json& value :
         {Json(0), Json(-1), Json(1.5), Json("4"), Json(1e300), Json(UINT64_MAX)}) {
      expect_refusal(with(kLlamaConfig, key, value), {key, "wanted an integer"});
    }
  }
  expect_refusal(with(kLlamaConfig, "num_key_value_heads", 3), {"4 query heads", "3 KV heads"});
  for (const int dim : {8, 72, 100, 272, 512}) {
    expect_refusal(with(kLlamaConfig, "head_dim", dim),
                   {"multiple of 16 up to 256", std::to_string(dim)});
  }
  for (const int dim : {16, 64, 80, 96, 128, 256})
    EXPECT_EQ(read(with(kLlamaConfig, "head_dim", dim)).head_dim, dim);
  expect_refusal(with(kLlamaConfig, "rms_norm_eps", 0), {"epsilon"});
  expect_refusal(with(kLlamaConfig, "tie_word_embeddings", 1),
                 {"tie_word_embeddings", "true or false"});
}

TEST(HfConfig, RefusesFilesThatAreNoObject) {
  const TempFolder folder;
  for (const char* text : {"", "[", "[]", "1", "{\"a\":}", "\xff"}) {
    const auto path = folder.write("config.json", text);
    expect_parts(error_of([&] { read_hf_config(path); }), {path.string()});
  }
  const auto absent = folder.path() / "none" / "config.json";
  expect_parts(error_of([&] { read_hf_config(absent); }), {absent.string()});
}

// Naming such a value in a message would take more stack than there is.
TEST(HfConfig, RefusesDeepValues) {
  std::string config = kLlamaConfig.dump();
  config.insert(1, "\"hidden_size\":" + std::string(200'000, '[') + std::string(200'000, ']') + ",");
  const TempFolder folder;
  const std::string message = error_of([&] { read_hf_config(folder.write("config.json", config)); });
  expect_parts(message, {"config.json", "nested deeper"});
}

TEST(HfConfig, MatchesTransformersFrequencies) {
  ASSERT_EQ(kRopeGolden.size(), 6u);
  for (const RopeGolden& golden : kRopeGolden) {
    const ModelConfig config = read(Json::parse(golden.config));
    ASSERT_EQ(config.inverse_frequencies.size(), golden.inverse_frequencies.size()) << golden.name;
    EXPECT_EQ(config.rotary_dim, static_cast<std::int64_t>(2 * golden.inverse_frequencies.size()))
        << golden.name;
    EXPECT_FLOAT_EQ(config.rope_magnitude, golden.magnitude) << golden.name;
    for (std::size_t i = 0; i < golden.inverse_frequencies.size(); ++i) {
      const double wanted =
          golden.inverse_frequencies
              [i];  // a handful of f32 roundings; the power's grows with log theta
      EXPECT_NEAR(config.inverse_frequencies[i], wanted, 2e-6 * wanted) << golden.name << " " << i;
    }
  }
}

TEST(HfConfig, ReadsRopeParametersAsRopeScaling) {
  for (const RopeGolden& golden : kRopeGolden) {
    Json config = Json::parse(golden.config);
    const ModelConfig old = read(config);
    Json rope = config.value("rope_scaling", Json::object());
    if (rope.contains("type")) {
      rope["rope_type"] = rope["type"];
      rope.erase("type");
    }
    if (!rope.contains("rope_type")) rope["rope_type"] = "default";
    for (const char* key :
         {"rope_theta", "partial_rotary_factor", "original_max_position_embeddings"}) {
      if (config.contains(key)) rope[key] = config[key];
      config.erase(key);
    }
    config.erase("rope_scaling");
    config["rope_parameters"] = rope;
    const ModelConfig now = read(config);
    EXPECT_EQ(now.inverse_frequencies, old.inverse_frequencies) << golden.name;
    EXPECT_EQ(now.rope_magnitude, old.rope_magnitude) << golden.name;
    EXPECT_EQ(now.context_limit, old.context_limit) << golden.name;
  }
}

TEST(HfConfig, RefusesOtherRopeScalings) {
  for (const char* type : {"yarn", "dynamic", "mrope", "proportional"}) {
    const Json rope = {{"rope_type", type}, {"factor", 2.0}};
    expect_refusal(with(kLlamaConfig, "rope_scaling", rope),
                   {type, "default, linear, llama3, longrope"});
    expect_refusal(with(kLlamaConfig, "rope_parameters", rope), {type});
    expect_refusal(with(kLlamaConfig, "rope_scaling", {{"type", type}}), {type});
  }
  expect_refusal(with(kLlamaConfig, "rope_scaling", {{"type", "linear"}}),
                 {"rope_scaling", "factor"});
  expect_refusal(with(kLlamaConfig, "rope_scaling", {{"type", "linear"}, {"factor", -1}}),
                 {"factor", "above 0"});
  expect_refusal(with(kLlamaConfig, "rope_scaling", "linear"), {"rope_scaling", "object"});
  expect_refusal(with(kLlamaConfig, "rope_parameters", {{"full_attention", {{"rope_theta", 1}}}}),
                 {"layer type"});
  expect_refusal(with(kLlamaConfig, "rope_theta", 0), {"rope_theta", "above 0"});
  expect_refusal(with(kLlamaConfig, "partial_rotary_factor", 0.5),
                 {"partial_rotary_factor", "LlamaForCausalLM"});
  const Json phi = tiny_config("Phi3ForCausalLM");
  expect_refusal(with(phi, "partial_rotary_factor", 1.5), {"partial_rotary_factor"});
  expect_refusal(with(phi, "partial_rotary_factor", 0.05),
                 {"partial_rotary_factor", "even number"});
  Json llama3 = {
      {"rope_type", "llama3"}, {"factor", 8}, {"low_freq_factor", 4}, {"high_freq_factor", 4}};
  llama3["original_max_position_embeddings"] = 8192;
  expect_refusal(with(kLlamaConfig, "rope_scaling", llama3),
                 {"high_freq_factor above low_freq_factor"});
  Json longrope = {{"type", "longrope"}, {"short_factor", {1, 2, 3}}};
  expect_refusal(with(phi, "rope_scaling", longrope), {"original_max_position_embeddings"});
  longrope["original_max_position_embeddings"] = 128;
  expect_refusal(with(phi, "rope_scaling", longrope), {"short_factor", "wanted 32", "found 3"});
  longrope["short_factor"] = std::vector<double>(32, 0.0);
  expect_refusal(with(phi, "rope_scaling", longrope), {"short_factor", "above 0"});
}

TEST(HfConfig, LimitsTheContextToLongropesShortFactors) {
  const auto golden =
      std::ranges::find(kRopeGolden, std::string_view("longrope"), [](const RopeGolden& g) {
        return std::string_view(g.name);
      });
  const ModelConfig config = read(Json::parse(golden->config));
  EXPECT_EQ(config.max_positions, 131072);
  EXPECT_EQ(config.context_limit, 4096);
  expect_parts(config.context_limit_reason, {"longrope", "4096"});
}

TEST(HfConfig, LimitsTheContextToSlidingWindows) {
  Json mistral = with(tiny_config("MistralForCausalLM"), "max_position_embeddings", 32768);
  EXPECT_FALSE(read(mistral).context_limit) << "null means no window";
  EXPECT_EQ(read(without(mistral, "sliding_window")).context_limit, 4096)
      << "transformers' default";
  const ModelConfig windowed = read(with(mistral, "sliding_window", 1024));
  EXPECT_EQ(windowed.context_limit, 1024);
  expect_parts(windowed.context_limit_reason, {"sliding window", "1024"});
  EXPECT_FALSE(read(with(mistral, "sliding_window", 32768)).context_limit)
      << "as wide as the context";
  EXPECT_EQ(read(with(tiny_config("Phi3ForCausalLM"), "sliding_window", 100)).context_limit, 100);
  expect_refusal(with(mistral, "sliding_window", 0), {"sliding_window"});

  Json qwen = with(tiny_config("Qwen2ForCausalLM"), "max_position_embeddings", 32768);
  qwen["sliding_window"] = 1024;
  qwen["max_window_layers"] = 1;
  EXPECT_FALSE(read(qwen).context_limit) << "use_sliding_window is false";
  qwen["use_sliding_window"] = true;
  EXPECT_EQ(read(qwen).context_limit, 1024);
  EXPECT_FALSE(read(with(qwen, "max_window_layers", 2)).context_limit)
      << "no layer lies past max_window_layers";
  EXPECT_EQ(read(without(qwen, "sliding_window")).context_limit, 4096);
  EXPECT_FALSE(read(with(qwen, "layer_types", {"full_attention", "full_attention"})).context_limit);
  EXPECT_EQ(read(with(qwen, "layer_types", {"full_attention", "sliding_attention"})).context_limit,
            1024);
  expect_refusal(with(qwen, "layer_types", {"linear_attention"}),
                 {"layer_types", "linear_attention"});
}

TEST(HfConfig, TakesOnlyAwqOf4BitsGroups128) {
  const Json awq = {{"quant_method", "awq"},
                    {"bits", 4},
                    {"group_size", 128},
                    {"zero_point", true},
                    {"version", "gemm"}};
  EXPECT_TRUE(read(with(kLlamaConfig, "quantization_config", awq)).awq);
  const Json old = {{"quant_method", "awq"},
                    {"w_bit", 4},
                    {"q_group_size", 128},
                    {"zero_point", true},
                    {"version", "GEMM"}};
  EXPECT_TRUE(read(with(kLlamaConfig, "quantization_config", old)).awq);
  EXPECT_FALSE(read(with(kLlamaConfig, "quantization_config", nullptr)).awq);
  const auto refuse =
      [&](const char* key, const Json& value, const std::vector<std::string>& parts) {
        expect_refusal(with(kLlamaConfig, "quantization_config", with(awq, key, value)), parts);
      };
  refuse("bits", 8, {"bits", "8"});
  refuse("group_size", 64, {"group_size", "64"});
  refuse("zero_point", false, {"zero_point", "false"});
  refuse("version", "gemv", {"version", "gemv"});
  for (const char* method : {"gptq", "fp8", "bitsandbytes", "compressed-tensors"}) {
    refuse("quant_method", method, {method, "awq"});
  }
}

TEST(HfConfig, JoinsEndTokensAndReadsSamplingDefaults) {
  Json config = with(kLlamaConfig, "eos_token_id", {5, 6});
  config["bos_token_id"] = 1;
  const ModelConfig read_config = read(config,
                                       {{"eos_token_id", {6, 7}},
                                        {"temperature", 0.7},
                                        {"top_p", 0.8},
                                        {"top_k", 20},
                                        {"min_p", 0.05},
                                        {"repetition_penalty", 1.05}});
  EXPECT_EQ(read_config.eos_ids, (std::vector<std::int32_t>{5, 6, 7}));
  EXPECT_EQ(read_config.bos_id, 1);
  EXPECT_EQ(read_config.default_temperature, 0.7);
  EXPECT_EQ(read_config.default_top_p, 0.8);
  EXPECT_EQ(read_config.default_top_k, 20);
  EXPECT_EQ(read_config.default_min_p, 0.05);
  EXPECT_EQ(read_config.default_repetition_penalty, 1.05);
  EXPECT_FALSE(read(config).default_temperature);
  for (const Json& ids : {Json(-1), Json("2"), Json(1.5), Json({1, "x"}), Json(1LL << 40)}) {
    expect_refusal(with(kLlamaConfig, "eos_token_id", ids), {"eos_token_id", "token id"});
  }
  expect_parts(error_of([&] {
                 read(config, {{"temperature", -1}});
               }),
               {"generation_config.json", "temperature"});
  expect_parts(error_of([&] {
                 read(config, {{"top_p", 2}});
               }),
               {"generation_config.json", "top_p"});
  expect_parts(error_of([&] {
                 read(config, {{"top_k", 1.5}});
               }),
               {"generation_config.json", "top_k"});
}

TEST(HfConfig, ReadsPublishedConfigs) {
  const std::filesystem::path folder = std::filesystem::path(KEEL_SHARED_DIR) / "data/configs";
  if (!std::filesystem::exists(folder)) GTEST_SKIP() << folder << " is absent";
  const ModelConfig qwen = read_hf_config(folder / "Qwen3-8B.config.json");
  EXPECT_EQ(qwen.family, "qwen3");
  EXPECT_EQ(qwen.layers, 36);
  EXPECT_EQ(qwen.heads / qwen.kv_heads, 4);
  EXPECT_EQ(qwen.head_dim, 128);
  EXPECT_EQ(qwen.max_positions, 40960);
  EXPECT_TRUE(qwen.qk_norm);
  EXPECT_FALSE(qwen.context_limit);
  EXPECT_EQ(qwen.eos_ids, (std::vector<std::int32_t>{151645}));
  const ModelConfig smol = read_hf_config(folder / "SmolLM2-135M-Instruct.config.json");
  EXPECT_EQ(smol.family, "llama");
  EXPECT_EQ(smol.heads, 9);
  EXPECT_EQ(smol.kv_heads, 3);
  EXPECT_TRUE(smol.tied_head);
  EXPECT_DOUBLE_EQ(smol.inverse_frequencies[1], std::pow(100000, -2.0 / 64))
      << "theta lies in rope_parameters";
}

TEST(HfConfig, ReadsEveryGeometryOfTheModelList) {
  const std::filesystem::path path =
      std::filesystem::path(KEEL_SHARED_DIR) / "data/configs/geometry.json";
  if (!std::filesystem::exists(path)) GTEST_SKIP() << path << " is absent";
  std::ifstream file(path);
  const Json geometries = Json::parse(file);
  int read_count = 0;
  for (const auto& [name, g] : geometries.items()) {
    if (!g.contains("intermediate") || g.contains("attn_layers"))
      continue;  // MoE and linear attention
    const std::string architecture = g["qkv_bias"]     ? "Qwen2ForCausalLM"
                                     : g["qk_norm"]    ? "Qwen3ForCausalLM"
                                     : name == "Phi-4" ? "Phi3ForCausalLM"
                                                       : "LlamaForCausalLM";
    Json config = tiny_config(architecture);
    config["hidden_size"] = g["hidden"];
    config["intermediate_size"] = g["intermediate"];
    config["num_hidden_layers"] = g["layers"];
    config["num_attention_heads"] = g["heads"];
    config["num_key_value_heads"] = g["kv_heads"];
    config["head_dim"] = g["head_dim"];
    config["vocab_size"] = g["vocab"];
    config["max_position_embeddings"] = g["max_pos"];
    config["rope_theta"] = g["rope_theta"];
    config["tie_word_embeddings"] = g["tie"];
    const ModelConfig result = read(config);
    EXPECT_EQ(result.layers * result.kv_heads * result.head_dim * 2 * 2,
              g["kv_bytes_per_token_f16"])
        << name;
    EXPECT_EQ(result.qkv_bias, g["qkv_bias"].get<bool>()) << name;
    EXPECT_EQ(result.qk_norm, g["qk_norm"].get<bool>()) << name;
    ++read_count;
  }
  EXPECT_GE(read_count, 11);
}

}  // namespace
}  // namespace keel
