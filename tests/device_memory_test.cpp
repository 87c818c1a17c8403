// A GPU's memory: what is attested is what the driver says is gone, and the share that was asked for is kept to. The device tests
// want a GPU that no other program uses.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/bytes.h"
#include "base/log.h"
#include "device/cuda.h"
#include "engine/engine.h"

namespace keel {
namespace {

TEST(ChooseDevice, AutoIsTheCpuAndSaysWhyWhereAGpuIsThereThatCannotBeUsed) {
  testing::internal::CaptureStderr();
  EXPECT_EQ(choose_device("auto", cuda::FoundDevice{.present = true, .reason = "a CUDA device that does not say what it is"}), Device::cpu);
  const std::string told = testing::internal::GetCapturedStderr();
  EXPECT_NE(told.find("a CUDA device that does not say what it is; running on the CPU"), std::string::npos) << told;
  testing::internal::CaptureStderr();
  EXPECT_EQ(choose_device("auto", cuda::FoundDevice{.reason = "no CUDA device is visible"}), Device::cpu);
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
  EXPECT_EQ(choose_device("auto", cuda::FoundDevice{.present = true, .usable = true}), Device::cuda);
  try {
    choose_device("cuda", cuda::FoundDevice{.present = true, .reason = "the reason"});
    FAIL() << "a device was chosen that cannot be used";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "--device cuda: the reason");
  }
}

constexpr std::int64_t kMiB = std::int64_t{1} << 20;
constexpr std::int64_t kGranularity = 2 * kMiB;  // of cudaMalloc's larger blocks; smaller ones share one
constexpr std::int64_t kKept = 16 * kMiB;        // what the driver may keep of small blocks that were released

// An 8B model's layers, four of them, in front of a small vocabulary.
ModelPath four_layers() {
  const auto file = std::filesystem::path(testing::TempDir()) / "keel_device_memory_test" / "config.json";
  std::filesystem::create_directories(file.parent_path());
  auto config = nlohmann::json::parse(std::ifstream(std::filesystem::path(KEEL_SOURCE_DIR) / "bench/geometries/qwen3-8b/config.json"));
  config["num_hidden_layers"] = 4;
  config["vocab_size"] = 32768;
  std::ofstream(file) << config;
  return {ModelFiles::config_json, file, "four layers"};
}
ModelPath tiny() { return find_model(std::string(KEEL_SOURCE_DIR) + "/models/tiny"); }

class DeviceMemoryTest : public testing::Test {
 protected:
  void SetUp() override {
    try {
      choose_device("cuda");
    } catch (const std::exception& why) {
      GTEST_SKIP() << why.what();
    }
  }

  static std::unique_ptr<Engine> engine_of(const ModelPath& path, EngineOptions options) {
    options.device = "cuda";
    LoadOptions load;
    if (path.kind == ModelFiles::config_json) load.format = LoadFormat::dummy;
    return std::make_unique<Engine>(load_model(path, load), nullptr, path.name, options);
  }

  static void run(Engine& engine, int requests, std::int64_t prompt) {
    for (int i = 0; i < requests; ++i) {
      Request request{.prompt = std::vector<TokenId>(static_cast<std::size_t>(prompt), 5 + i)};
      request.sampling = {.temperature = 0, .max_tokens = 20, .ignore_eos = true};
      ASSERT_EQ(engine.submit(std::move(request), [](const Output&) {}).status, SubmitStatus::accepted);
    }
    while (engine.has_work()) engine.step();
  }
};

TEST_F(DeviceMemoryTest, WhatIsAttestedIsWhatTheDriverSaysIsGone) {
  for (const ModelPath& path : {tiny(), four_layers()}) {
    for (const char* format : {"k16v16", "k16v8", "k8v8"}) {
      const EngineOptions options{.kv_cache_dtype = format, .kv_cache_memory_bytes = 512 * kMiB, .enforce_eager = true};
      engine_of(path, options).reset();  // loads what a process loads but once
      const DeviceMemory before = device_memory(Device::cuda);
      EXPECT_EQ(before.weights + before.workspace + before.cache, 0);
      const auto engine = engine_of(path, options);
      const Attestation& attested = engine->attestation();
      const DeviceMemory& memory = attested.device_memory;
      EXPECT_EQ(memory.weights, attested.weight_bytes);
      EXPECT_EQ(memory.workspace, attested.scratch_bytes);
      EXPECT_EQ(memory.cache, attested.pool_bytes);
      const std::int64_t sum = memory.weights + memory.workspace + memory.cache, gone = memory.in_use - before.in_use;
      const std::int64_t blocks = cuda::held_memory().blocks;
      EXPECT_GE(gone, sum - kKept);
      EXPECT_LE(gone, sum + blocks * kGranularity);
      EXPECT_GE(memory.peak, sum);
      fmt::print("{} {}: {} counted in {} blocks, {} gone; peak {}\n", path.name, format, sum, blocks, gone, memory.peak);
    }
  }
}

TEST_F(DeviceMemoryTest, TheShareThatWasAskedForIsUsedAndKeptTo) {
  for (const ModelPath& path : {tiny(), four_layers()}) {
    for (const double share : {0.5, 0.9}) {
      const auto engine = engine_of(path, {.kv_cache_dtype = "k16v8", .gpu_memory_utilization = share});
      const DeviceMemory& memory = engine->attestation().device_memory;
      const auto allowed = static_cast<std::int64_t>(share * static_cast<double>(memory.total));
      EXPECT_LE(memory.in_use, allowed);
      EXPECT_GE(memory.in_use, allowed - 160 * kMiB);  // of which 64 are left for what follows
      run(*engine, 20, path.kind == ModelFiles::config_json ? 3000 : 100);
      const DeviceMemory later = device_memory(Device::cuda);
      EXPECT_LE(later.in_use, allowed);
      fmt::print("{} at {}: allowed {}, in use {} ({} of others), after 20 requests {}\n", path.name, share, allowed, memory.in_use, memory.other(), later.in_use);
    }
  }
}

}  // namespace
}  // namespace keel
