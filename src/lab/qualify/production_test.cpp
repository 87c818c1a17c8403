#include "lab/qualify/production.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "base/random.h"
#include "lab/qualify/production_faults.h"

namespace keel {
namespace {

Device device() {
  const char* name = std::getenv("KEEL_TEST_DEVICE");
  return choose_device(name == nullptr ? "cpu" : name);
}

class ProductionGateTest : public testing::TestWithParam<const char*> {
 protected:
  ProductionGateTest() : model(load_model(find_model(std::string(KEEL_SOURCE_DIR) + "/models/tiny"), {})), workers(2) {
    const ModelConfig& config = model.config;
    const KvGeometry geometry{config.layers, config.kv_heads, config.head_dim};
    arm = {.format = parse_kv_format(GetParam(), config.dtype), .scales = KvScales::unit(geometry)};
    for (std::int64_t i = 0; i < kProductionTokens; ++i) tokens.push_back(static_cast<std::int32_t>(300 + random_u64(5, i) % 3000));
  }
  ProductionGate gate() { return ProductionGate(device(), model, arm, parse_kv_format("k16v16", model.config.dtype), tokens, workers); }

  LoadedModel model;
  WorkerPool workers;
  DecodeArm arm;
  std::vector<std::int32_t> tokens;
};

TEST_P(ProductionGateTest, PassesAndNoticesEveryFaultThatCanBeMade) {
  const ProductionGate gate = this->gate();
  std::int64_t faults = 0;
  for (const auto& [name, run] : gate.checks()) {
    const ProductionFinding item = run();
    EXPECT_TRUE(item.passed || !item.applies) << name << ": " << item.detail.dump();
    if (name.starts_with("fault: ")) {
      faults += item.applies;
    } else {
      EXPECT_TRUE(item.applies) << name;
    }
    if (std::getenv("KEEL_TEST_VERBOSE") != nullptr) std::printf("%s: %s %s\n", name.c_str(), item.applies ? item.passed ? "ok" : "NO" : "-", item.detail.dump().c_str());
  }
  EXPECT_GE(faults, 18);
}

TEST_P(ProductionGateTest, SeesScalesThatAreNotOne) {
  for (std::size_t i = 0; i < arm.scales.keys.size(); ++i) {
    if (arm.format.key == DType::e4m3) arm.scales.keys[i] = 0.03f + 0.01f * static_cast<float>(i % 5);
    if (arm.format.value == DType::e4m3) arm.scales.values[i] = 0.004f + 0.001f * static_cast<float>(i % 7);
  }
  const ProductionGate gate = this->gate();
  for (const auto& [name, run] : gate.checks()) {
    if (name.starts_with("fault: ") && name.find("scale") == std::string::npos) continue;
    const ProductionFinding item = run();
    EXPECT_TRUE(item.passed || !item.applies) << name << ": " << item.detail.dump();
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, ProductionGateTest, testing::Values("k16v8"));

TEST(FormulaBytes, AreThePublishedOnes) {
  const KvGeometry qwen3{36, 8, 128};
  EXPECT_EQ(formula_bytes({DType::f16, DType::f16}, qwen3), 147'456);
  EXPECT_EQ(formula_bytes({DType::f16, DType::e4m3}, qwen3), 110'592);
  EXPECT_EQ(formula_bytes({DType::e4m3, DType::e4m3}, qwen3), 73'728);
  EXPECT_EQ(formula_bytes({DType::f16, DType::u4}, qwen3), 93'312);
}

}  // namespace
}  // namespace keel
