#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <set>

#include "model/test_models.h"
#include "model/weights.h"

namespace keel {
namespace {

using testing::error_of;
using testing::expect_parts;
using testing::Json;
using testing::TempFolder;
using testing::tiny_config;

LoadedModel make(const Json& config, LoadOptions options = {}) {
  const TempFolder folder;
  options.format = LoadFormat::dummy;
  return load_model(find_model(folder.write("config.json", config.dump()).string()), options);
}

std::string bytes_of(const WeightMatrix& matrix) {
  return {reinterpret_cast<const char*>(matrix.data), static_cast<std::size_t>(matrix.bytes())};
}

TEST(DummyWeights, FillTheGeometryWithinTheScale) {
  for (const auto& [type, dtype] : {std::pair(WeightType::f32, DType::f32),
                                    std::pair(WeightType::f16, DType::f16),
                                    std::pair(WeightType::bf16, DType::bf16)}) {
    const LoadedModel model =
        make(tiny_config("Qwen2ForCausalLM"), {.dummy_scale = 0.5f, .dtype = dtype});
    EXPECT_EQ(model.weights.format, fmt::format("dummy {}", name(dtype)));
    const WeightMatrix& q = model.weights.layers[0].q;
    ASSERT_EQ(q.type, type);
    double sum = 0, squares = 0;
    const std::int64_t count = q.rows * q.columns;
    for (std::int64_t i = 0; i < count; ++i) {
      const auto read = [&]<class T>(T value) {
        std::memcpy(&value, q.data + i * static_cast<std::int64_t>(sizeof(T)), sizeof(T));
        return to_float(value);
      };
      const float value = type == WeightType::f32   ? read(float{})
                          : type == WeightType::f16 ? read(Half{})
                                                    : read(Bf16{});
      ASSERT_LE(std::abs(value), 0.5f);
      sum += value;
      squares += value * value;
    }
    const double n = static_cast<double>(count);
    EXPECT_NEAR(sum / n, 0, 5 * 0.5 / std::sqrt(3 * n));  // five standard errors
    EXPECT_NEAR(squares / n, 0.25 / 3, 5 * 0.25 * std::sqrt(4 / (45 * n)) + 1e-3);
    EXPECT_EQ(model.weights.final_norm[255], 1.0f);
    EXPECT_NE(model.weights.layers[0].k_bias[0], model.weights.layers[1].k_bias[0]);
  }
}

TEST(DummyWeights, FollowTheSeedAlone) {
  const Json config = tiny_config("Phi3ForCausalLM");
  const LoadedModel one = make(config, {.dummy_seed = 1});
  const LoadedModel same = make(config, {.dummy_seed = 1});
  const LoadedModel other = make(config, {.dummy_seed = 2});
  EXPECT_EQ(bytes_of(one.weights.layers[1].up), bytes_of(same.weights.layers[1].up));
  EXPECT_NE(bytes_of(one.weights.layers[1].up), bytes_of(other.weights.layers[1].up));
  std::set<std::string> different;
  for (const LayerWeights& layer : one.weights.layers) {
    for (const WeightMatrix* matrix : {&layer.q, &layer.o, &layer.gate, &layer.up, &layer.down}) {
      different.insert(bytes_of(*matrix));
    }
  }
  EXPECT_EQ(different.size(), 10u) << "no two matrices are alike";
  EXPECT_EQ(one.weights.layers[0].v.rows, 128);
}

TEST(DummyWeights, CountTheirBytesAndTieTheHead) {
  Json config = tiny_config("LlamaForCausalLM");
  config["tie_word_embeddings"] = true;
  const LoadedModel model = make(config);
  EXPECT_EQ(model.weights.head.data, model.weights.embedding.data);
  const std::int64_t matrices = 24 * 256 + 2 * (2 * 256 * 256 + 2 * 128 * 256 + 3 * 256 * 256);
  EXPECT_EQ(model.weights.bytes, matrices * 4 + (1 + 4) * 256 * 4);
  expect_parts(error_of([&] { make(config, {.dummy_scale = -1.0f}); }), {"scale"});
}

TEST(DummyWeights, PackAwqLayers) {
  Json config = tiny_config("LlamaForCausalLM");
  config["torch_dtype"] = "float16";
  config["quantization_config"] = {{"quant_method", "awq"},
                                   {"bits", 4},
                                   {"group_size", 128},
                                   {"zero_point", true},
                                   {"version", "gemm"}};
  const LoadedModel model = make(config);
  EXPECT_EQ(model.weights.format, "dummy awq int4 g128");
  EXPECT_EQ(model.weights.embedding.type, WeightType::f16);
  const WeightMatrix& gate = model.weights.layers[0].gate;
  ASSERT_EQ(gate.type, WeightType::awq4);
  EXPECT_EQ(gate.awq_row_stride, 256);
  for (std::int64_t i = 0; i < 2 * 256; ++i) {
    Half scale;
    std::memcpy(&scale, gate.awq_scales + 2 * i, 2);
    EXPECT_GT(to_float(scale), 0.0f);
    EXPECT_LT(to_float(scale), 1e-3f);
  }
  config["intermediate_size"] = 192;
  expect_parts(error_of([&] { make(config); }), {"down_proj", "groups of 128"});
}

}  // namespace
}  // namespace keel
