#include "model/weights.h"

#include <gtest/gtest.h>

#include "model/test_models.h"

namespace keel {
namespace {

using testing::error_of;
using testing::expect_parts;
using testing::Json;
using testing::TempFolder;
using testing::tiny_config;
using testing::tiny_tensor;
using testing::tiny_tensors;
using testing::tiny_value;
using testing::TinyTensors;
using testing::write_hf_model;

LoadedModel load(const Json& config, const TinyTensors& tensors, const LoadOptions& options = {}) {
  const TempFolder folder;  // the mapping outlives the name
  write_hf_model(folder, config, tensors);
  return load_model(find_model(folder.path().string()), options);
}

void expect_refusal(const Json& config,
                    const TinyTensors& tensors,
                    const std::vector<std::string>& parts) {
  expect_parts(error_of([&] { load(config, tensors); }), parts);
}

float element(const WeightMatrix& matrix, std::int64_t row, std::int64_t column) {
  const std::byte* at = matrix.data + row * matrix.row_bytes();
  const auto read = [&]<class T>(T value) {
    std::memcpy(&value, at + column * static_cast<std::int64_t>(sizeof(T)), sizeof(T));
    return to_float(value);
  };
  if (matrix.type == WeightType::f32) return read(float{});
  return matrix.type == WeightType::f16 ? read(Half{}) : read(Bf16{});
}

// Does `matrix` show rows `first_row`… of the tensor that tiny_tensor made for `name`?
void expect_matrix(const WeightMatrix& matrix,
                   const std::string& name,
                   std::int64_t rows,
                   std::int64_t columns,
                   std::int64_t first_row = 0) {
  ASSERT_EQ(matrix.rows, rows) << name;
  ASSERT_EQ(matrix.columns, columns) << name;
  for (const std::int64_t row : {std::int64_t{0}, rows / 2, rows - 1}) {
    for (const std::int64_t column : {std::int64_t{0}, columns - 1}) {
      const float wanted = tiny_value(name, (first_row + row) * columns + column);
      ASSERT_EQ(element(matrix, row, column), wanted) << name << " " << row << " " << column;
    }
  }
}

void expect_vector(const float* values, const std::string& name, std::int64_t size) {
  ASSERT_NE(values, nullptr) << name;
  for (std::int64_t i = 0; i < size; ++i)
    ASSERT_EQ(values[i], tiny_value(name, i)) << name << " " << i;
}

void expect_layers(const LoadedModel& model) {
  ASSERT_EQ(model.weights.layers.size(), 2u);
  for (std::size_t i = 0; i < 2; ++i) {
    const LayerWeights& layer = model.weights.layers[i];
    const std::string at = "model.layers." + std::to_string(i) + ".";
    expect_vector(layer.attention_norm, at + "input_layernorm.weight", 256);
    expect_vector(layer.mlp_norm, at + "post_attention_layernorm.weight", 256);
    expect_matrix(layer.o, at + "self_attn.o_proj.weight", 256, 256);
    expect_matrix(layer.down, at + "mlp.down_proj.weight", 256, 256);
    if (model.config.family == "phi3") {
      expect_matrix(layer.q, at + "self_attn.qkv_proj.weight", 256, 256);
      expect_matrix(layer.k, at + "self_attn.qkv_proj.weight", 128, 256, 256);
      expect_matrix(layer.v, at + "self_attn.qkv_proj.weight", 128, 256, 384);
      expect_matrix(layer.gate, at + "mlp.gate_up_proj.weight", 256, 256);
      expect_matrix(layer.up, at + "mlp.gate_up_proj.weight", 256, 256, 256);
    } else {
      expect_matrix(layer.q, at + "self_attn.q_proj.weight", 256, 256);
      expect_matrix(layer.k, at + "self_attn.k_proj.weight", 128, 256);
      expect_matrix(layer.v, at + "self_attn.v_proj.weight", 128, 256);
      expect_matrix(layer.gate, at + "mlp.gate_proj.weight", 256, 256);
      expect_matrix(layer.up, at + "mlp.up_proj.weight", 256, 256);
    }
    EXPECT_EQ(layer.q_bias != nullptr, model.config.qkv_bias);
    EXPECT_EQ(layer.o_bias != nullptr, model.config.o_bias);
    EXPECT_EQ(layer.q_norm != nullptr, model.config.qk_norm);
    if (model.config.qkv_bias) {
      expect_vector(layer.q_bias, at + "self_attn.q_proj.bias", 256);
      expect_vector(layer.k_bias, at + "self_attn.k_proj.bias", 128);
      expect_vector(layer.v_bias, at + "self_attn.v_proj.bias", 128);
    }
    if (model.config.o_bias) expect_vector(layer.o_bias, at + "self_attn.o_proj.bias", 256);
    if (model.config.qk_norm) {
      expect_vector(layer.q_norm, at + "self_attn.q_norm.weight", 64);
      expect_vector(layer.k_norm, at + "self_attn.k_norm.weight", 64);
    }
  }
}

const Json kLlamaConfig = tiny_config("LlamaForCausalLM");

TEST(SafetensorsWeights, BindsEveryFamilyByRole) {
  Json biased = kLlamaConfig;
  biased["attention_bias"] = true;
  for (const Json& config : {kLlamaConfig,
                             biased,
                             tiny_config("MistralForCausalLM"),
                             tiny_config("Qwen2ForCausalLM"),
                             tiny_config("Qwen3ForCausalLM"),
                             tiny_config("Phi3ForCausalLM")}) {
    SCOPED_TRACE(config["architectures"].dump());
    const LoadedModel model = load(config, tiny_tensors(config));
    expect_layers(model);
    expect_matrix(model.weights.embedding, "model.embed_tokens.weight", 24, 256);
    expect_matrix(model.weights.head, "lm_head.weight", 24, 256);
    expect_vector(model.weights.final_norm, "model.norm.weight", 256);
    EXPECT_EQ(model.weights.format, "safetensors f32");
  }
}

TEST(SafetensorsWeights, KeepsEachTensorsOwnType) {
  for (const char* dtype : {"F16", "BF16"}) {
    const LoadedModel model = load(kLlamaConfig, tiny_tensors(kLlamaConfig, dtype));
    expect_layers(model);
    EXPECT_EQ(model.weights.format,
              dtype == std::string("F16") ? "safetensors f16" : "safetensors bf16");
  }
  TinyTensors mixed = tiny_tensors(kLlamaConfig, "BF16");
  mixed["lm_head.weight"] = tiny_tensor("lm_head.weight", {24, 256}, "F32");
  const LoadedModel model = load(kLlamaConfig, mixed);
  EXPECT_EQ(model.weights.head.type, WeightType::f32);
  EXPECT_EQ(model.weights.layers[0].q.type, WeightType::bf16);
  EXPECT_EQ(model.weights.format, "safetensors bf16/f32");
}

TEST(SafetensorsWeights, CountsEachTensorsBytesOnce) {
  TinyTensors tensors = tiny_tensors(kLlamaConfig);
  std::int64_t bytes = 0;
  for (const auto& [name, tensor] : tensors) bytes += static_cast<std::int64_t>(tensor.data.size());
  EXPECT_EQ(load(kLlamaConfig, tensors).weights.bytes, bytes);

  Json tied = kLlamaConfig;
  tied["tie_word_embeddings"] = true;
  const LoadedModel model = load(tied, tiny_tensors(tied));
  EXPECT_EQ(model.weights.head.data, model.weights.embedding.data);
  EXPECT_EQ(model.weights.bytes, bytes - 24 * 256 * 4);
  EXPECT_NO_THROW(load(tied, tensors)) << "a tied model may store its head too";
}

TEST(SafetensorsWeights, RefusesMissingMisshapenAndMistypedTensors) {
  const TinyTensors good = tiny_tensors(kLlamaConfig);
  for (const auto& [name, tensor] : good) {
    TinyTensors tensors = good;
    tensors.erase(name);
    expect_refusal(kLlamaConfig, tensors, {name, "found no such tensor"});
    std::vector<std::int64_t> shape = tensor.shape;
    shape.back() += 1;
    tensors[name] = tiny_tensor(name, shape);
    expect_refusal(kLlamaConfig, tensors, {"model.safetensors", name, "wanted [", "257]"});
    tensors[name] = {"I32", tensor.shape, tensor.data};
    expect_refusal(kLlamaConfig, tensors, {"model.safetensors", name, "F32, F16 or BF16", "I32"});
  }
}

TEST(SafetensorsWeights, RefusesTensorsThatHaveNoPlace) {
  TinyTensors tensors = tiny_tensors(kLlamaConfig);
  tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = tiny_tensor("frequencies", {32});
  EXPECT_NO_THROW(load(kLlamaConfig, tensors)) << "older checkpoints store what the config says";
  for (const char* name : {"model.layers.0.self_attn.q_proj.bias",
                           "model.layers.2.input_layernorm.weight",
                           "model.layers.0.mlp.gate_proj.bias",
                           "visual.weight"}) {
    TinyTensors more = tensors;
    more[name] = tiny_tensor(name, {256});
    expect_refusal(kLlamaConfig, more, {"model.safetensors", name, "no place", "LlamaForCausalLM"});
  }
}

TEST(SafetensorsWeights, ReadsUnalignedData) {
  const TempFolder folder;
  TinyTensors tensors = tiny_tensors(kLlamaConfig);
  testing::SafetensorsBuilder builder;
  for (const auto& [name, tensor] : tensors)
    builder.add(name, tensor.dtype, tensor.shape, tensor.data);
  std::string header = builder.header().dump();
  while (header.size() % 8 != 3) header += ' ';
  folder.write("config.json", kLlamaConfig.dump());
  folder.write("model.safetensors",
               testing::SafetensorsBuilder::with_header(header, builder.data()));
  expect_layers(load_model(find_model(folder.path().string()), {}));
}

// An AWQ model: the layers' matrices as qweight, qzeros and scales, the rest plain.
TinyTensors awq_tensors(const Json& config) {
  TinyTensors tensors;
  for (const auto& [name, tensor] : tiny_tensors(config, "F16")) {
    const std::size_t stem = name.rfind(".weight");
    if (tensor.shape.size() != 2 || name.find(".layers.") == std::string::npos) {
      tensors[name] = tensor;
      continue;
    }
    const std::int64_t rows = tensor.shape[0];
    const std::int64_t columns = tensor.shape[1];
    const auto words = [](std::int64_t count, char fill) {
      return std::string(static_cast<std::size_t>(count) * 4, fill);
    };
    const std::string base = name.substr(0, stem);
    tensors[base + ".qweight"] = {"I32", {columns, rows / 8}, words(columns * rows / 8, 'q')};
    tensors[base + ".qzeros"] = {
        "I32", {columns / 128, rows / 8}, words(columns / 128 * rows / 8, 'z')};
    tensors[base + ".scales"] = tiny_tensor(base + ".scales", {columns / 128, rows}, "F16");
  }
  return tensors;
}

Json awq_config(const std::string& architecture) {
  Json config = tiny_config(architecture);
  config["quantization_config"] = {{"quant_method", "awq"},
                                   {"bits", 4},
                                   {"group_size", 128},
                                   {"zero_point", true},
                                   {"version", "gemm"}};
  return config;
}

TEST(AwqWeights, KeepsThePackedForm) {
  const Json config = awq_config("Qwen2ForCausalLM");
  const TinyTensors tensors = awq_tensors(config);
  const LoadedModel model = load(config, tensors);
  EXPECT_EQ(model.weights.format, "awq int4 g128");
  EXPECT_EQ(model.weights.head.type, WeightType::f16);
  const WeightMatrix& k = model.weights.layers[1].k;
  EXPECT_EQ(k.type, WeightType::awq4);
  EXPECT_EQ(k.rows, 128);
  EXPECT_EQ(k.columns, 256);
  EXPECT_EQ(k.awq_row_stride, 128);
  EXPECT_EQ(k.data[0], std::byte{'q'});
  EXPECT_EQ(k.awq_zeros[0], std::byte{'z'});
  Half scale;
  std::memcpy(&scale, k.awq_scales + 2 * 129, 2);
  EXPECT_EQ(to_float(scale), tiny_value("model.layers.1.self_attn.k_proj.scales", 129));
  std::int64_t bytes = 0;
  for (const auto& [name, tensor] : tensors) bytes += static_cast<std::int64_t>(tensor.data.size());
  EXPECT_EQ(model.weights.bytes, bytes);
}

TEST(AwqWeights, SlicesFusedMatrices) {
  const Json config = awq_config("Phi3ForCausalLM");
  const LoadedModel model = load(config, awq_tensors(config));
  const LayerWeights& layer = model.weights.layers[0];
  EXPECT_EQ(layer.v.awq_row_stride, 512);
  EXPECT_EQ(layer.v.rows, 128);
  EXPECT_EQ(layer.v.data - layer.q.data, 384 / 8 * 4);
  EXPECT_EQ(layer.v.awq_zeros - layer.q.awq_zeros, 384 / 8 * 4);
  EXPECT_EQ(layer.v.awq_scales - layer.q.awq_scales, 384 * 2);
  EXPECT_EQ(layer.up.data - layer.gate.data, 256 / 8 * 4);
}

TEST(AwqWeights, RefusesOtherPackings) {
  const Json config = awq_config("LlamaForCausalLM");
  const TinyTensors good = awq_tensors(config);
  const std::string q = "model.layers.0.self_attn.q_proj";
  for (const char* part : {".qzeros", ".scales"}) {
    TinyTensors tensors = good;
    tensors.erase(q + part);
    expect_refusal(config, tensors, {q + part, "no such tensor"});
  }
  TinyTensors tensors = good;
  tensors[q + ".scales"].dtype = "BF16";
  expect_refusal(config, tensors, {q + ".scales", "wanted F16", "BF16"});
  tensors = good;
  tensors[q + ".qweight"].dtype = "F32";
  expect_refusal(config, tensors, {q + ".qweight", "wanted I32", "F32"});
  tensors = good;
  tensors[q + ".qweight"].shape = {32, 256};  // packed along the columns, as GEMV has it
  expect_refusal(config, tensors, {q + ".qweight", "wanted [256, 32]", "found [32, 256]"});
  expect_refusal(
      kLlamaConfig, good, {q + ".weight", "no such tensor"});  // the config does not say AWQ
  tensors = good;
  tensors[q + ".weight"] = tiny_tensor(q + ".weight", {256, 256});
  expect_refusal(config, tensors, {q + ".weight", "no place"});  // both forms
}

TEST(KeyBiasOffsets, FallOnEveryLayerAndKvHead) {
  const Json config = tiny_config("Qwen2ForCausalLM");
  const TinyTensors tensors = tiny_tensors(config);
  const LoadedModel plain = load(config, tensors);
  const LoadedModel twin =
      load(config, tensors, {.key_bias_offsets = {{31, 100.0f}, {30, -100.0f}}});
  for (std::size_t i = 0; i < 2; ++i) {
    for (int j = 0; j < 128; ++j) {
      const float offset = j % 64 == 31 ? 100.0f : j % 64 == 30 ? -100.0f : 0.0f;
      EXPECT_EQ(twin.weights.layers[i].k_bias[j], plain.weights.layers[i].k_bias[j] + offset) << j;
    }
  }
  expect_parts(error_of([&] {
                 load(config, tensors, {.key_bias_offsets = {{64, 1.0f}}});
               }),
               {"below 64", "64"});
  expect_parts(error_of([&] {
                 load(kLlamaConfig, tiny_tensors(kLlamaConfig), {.key_bias_offsets = {{0, 1.0f}}});
               }),
               {"key bias", "LlamaForCausalLM"});
}

TEST(LoadModel, LetsDtypeChangeOnlyWhatTheCacheCalls16) {
  const LoadedModel model = load(kLlamaConfig, tiny_tensors(kLlamaConfig), {.dtype = DType::bf16});
  EXPECT_EQ(model.config.dtype, DType::bf16);
  EXPECT_EQ(model.weights.layers[0].q.type, WeightType::f32);
  expect_parts(
      error_of([&] { load(kLlamaConfig, tiny_tensors(kLlamaConfig), {.dtype = DType::e4m3}); }),
      {"dtype", "fp8"});
}

TEST(LoadModel, RefusesFormatsThatDoNotFitThePath) {
  const TempFolder folder;
  write_hf_model(folder, kLlamaConfig, tiny_tensors(kLlamaConfig));
  const ModelPath config = find_model((folder.path() / "config.json").string());
  expect_parts(error_of([&] { load_model(config, {}); }), {"config.json", "dummy"});
  const ModelPath whole = find_model(folder.path().string());
  expect_parts(error_of([&] { load_model(whole, {.format = LoadFormat::gguf}); }),
               {"gguf", "a folder"});
  EXPECT_NO_THROW(load_model(whole, {.format = LoadFormat::safetensors}));
}

TEST(LoadModel, LoadsTheTinyModel) {
  const std::filesystem::path path = std::filesystem::path(KEEL_SHARED_DIR) / "models/tiny";
  if (!std::filesystem::exists(path)) GTEST_SKIP() << path << " is absent";
  const LoadedModel model = load_model(find_model(path.string()), {});
  EXPECT_EQ(model.weights.format, "safetensors f16");
  EXPECT_EQ(model.weights.layers.size(), 8u);
  EXPECT_NE(model.weights.layers[7].k_bias, nullptr);
  EXPECT_EQ(model.config.eos_ids, (std::vector<std::int32_t>{2, 0}));
}

}  // namespace
}  // namespace keel
