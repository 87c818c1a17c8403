#include "lab/quality/cached_decode.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>

#include "base/error.h"
#include "base/random.h"
#include "lab/quality/builtin_prose.h"

namespace keel {
namespace {

Device device() {
  const char* name = std::getenv("KEEL_TEST_DEVICE");
  return choose_device(name == nullptr ? "cpu" : name);
}

class CachedDecodeTest : public testing::Test {
 protected:
  CachedDecodeTest() : model(load_model(find_model(std::string(KEEL_SOURCE_DIR) + "/models/tiny"), {})), workers(2) {
    for (const std::int64_t length : {40, 33, 47, 34, 35}) {
      texts.emplace_back();
      for (std::int64_t i = 0; i < length; ++i) {
        texts.back().push_back(static_cast<std::int32_t>(300 + random_u64(length, i) % 2000));
      }
    }
    for (const auto& text : texts) documents.push_back({.tokens = text, .first_target = 30});
  }

  DecodeArm arm(const char* format) {
    const ModelConfig& config = model.config;
    return {.format = parse_kv_format(format, config.dtype), .scales = KvScales::unit({config.layers, config.kv_heads, config.head_dim})};
  }
  CachedDecode cached(const DecodeArm& arm, std::int64_t at_once = 3) { return CachedDecode(device(), model, arm, {.documents = at_once, .tokens = 47}, workers); }

  // [documents][targets] NLL.
  std::vector<std::vector<double>> losses(const DecodeArm& arm, std::int64_t at_once = 3) {
    CachedDecode decode = cached(arm, at_once);
    CachedDecode* arms[] = {&decode};
    std::vector<std::vector<double>> found(documents.size());
    decode_side_by_side(arms, documents, at_once, workers, [&](std::int64_t document, std::int64_t target, auto rows) {
      EXPECT_EQ(target, static_cast<std::int64_t>(found[document].size()));
      found[document].push_back(nll_of(rows[0], texts[document][documents[document].first_target + target]));
    });
    return found;
  }
  static double furthest(const std::vector<std::vector<double>>& a, const std::vector<std::vector<double>>& b) {
    double furthest = 0;
    for (std::size_t i = 0; i < a.size(); ++i) {
      EXPECT_EQ(a[i].size(), b[i].size());
      for (std::size_t j = 0; j < a[i].size(); ++j) furthest = std::max(furthest, std::abs(a[i][j] - b[i][j]));
    }
    return furthest;
  }

  LoadedModel model;
  WorkerPool workers;
  std::vector<std::vector<std::int32_t>> texts;
  std::vector<DecodeDocument> documents;
};

TEST_F(CachedDecodeTest, EveryTargetComesOnceAndInOrder) {
  const auto found = losses(arm("k16v16"));
  for (std::size_t i = 0; i < found.size(); ++i) EXPECT_EQ(static_cast<std::int64_t>(found[i].size()), documents[i].targets());
}

// f32 sums in another order; 16-bit activations on CUDA.
TEST_F(CachedDecodeTest, HowPromptsAndStepsAreCutHardlyMatters) {
  const auto found = losses(arm("k16v8"));
  DecodeArm other = arm("k16v8");
  other.prompt_chunk = 7;
  other.step_rows = 2;
  const double bound = device() == Device::cuda ? 0.1 : 2e-3;
  EXPECT_LT(furthest(found, losses(other, 5)), bound);
  for (DecodeDocument& document : documents) document.first_target = 1;  // no prompt at all
  auto all = losses(arm("k16v8"));
  for (auto& of_document : all) of_document.erase(of_document.begin(), of_document.begin() + 29);
  EXPECT_LT(furthest(found, all), bound);
}

TEST_F(CachedDecodeTest, ArmsSideBySideGiveWhatEachGivesAlone) {
  CachedDecode native = cached(arm("k16v16")), again = cached(arm("k16v16")), small = cached(arm("k8v8"));
  CachedDecode* arms[] = {&native, &again, &small};
  const auto alone = losses(arm("k8v8"));
  std::vector<double> kl(documents.size());
  decode_side_by_side(arms, documents, 3, workers, [&](std::int64_t document, std::int64_t target, auto rows) {
    const std::int32_t token = texts[document][30 + target];
    EXPECT_EQ(nll_of(rows[2], token), alone[document][target]);
    EXPECT_EQ(kl_of(rows[0], rows[1]), 0);
    EXPECT_EQ(top_of(rows[0]), top_of(rows[1]));
    kl[document] += kl_of(rows[0], rows[2]);
  });
  for (const double sum : kl) EXPECT_GT(sum, 0);
}

TEST_F(CachedDecodeTest, TheCacheIsReallyRead) {
  DecodeArm scaled = arm("k8v8");
  scaled.scales.values.assign(scaled.scales.values.size(), 64.0f);  // E4M3's subnormals: values of hundredths are lost
  EXPECT_GT(furthest(losses(arm("k8v8")), losses(scaled)), 0.1);
}

TEST_F(CachedDecodeTest, ContextsPastTheModelsAreRefused) {
  EXPECT_THROW(CachedDecode(device(), model, arm("k16v16"), {.documents = 1, .tokens = 4097}, workers), Error);
}

TEST(LogitRows, GiveWhatTheirDistributionsSay) {
  const std::vector<float> p{std::log(0.5f), std::log(0.25f), std::log(0.25f)}, q{0, 0, 0};
  EXPECT_NEAR(nll_of(p, 0), std::log(2.0), 1e-7);
  EXPECT_NEAR(nll_of(q, 2), std::log(3.0), 1e-7);
  EXPECT_NEAR(kl_of(p, q), 0.5 * std::log(1.5) + 0.5 * std::log(0.75), 1e-7);
  EXPECT_EQ(top_of(p), 0);
  EXPECT_EQ(top_of(q), 0);
  EXPECT_FALSE(std::isfinite(nll_of(std::vector<float>{NAN, 0}, 1)));
}

TEST(BuiltinProse, IsTheWholeFile) {
  EXPECT_TRUE(builtin_prose().starts_with("CHAPTER I\n"));
  EXPECT_TRUE(builtin_prose().ends_with(".\n"));
  EXPECT_GT(builtin_prose().size(), 240'000u);
}

TEST_F(CachedDecodeTest, ExecutorsOfOneModelAndOfItsCopiesShareAGpusWeights) {
  if (device() != Device::cuda) GTEST_SKIP() << "the CPU reads the mapped files";
  const auto free_bytes = [] {
    const DeviceMemory memory = device_memory(Device::cuda);
    return memory.total - memory.in_use;
  };
  DecodeArm eager = arm("k16v16");
  eager.graphs = false;
  (void)cached(eager);  // what a process allocates but once
  const std::int64_t before = free_bytes();
  const CachedDecode one = cached(eager);
  const std::int64_t first = before - free_bytes();
  const LoadedModel copy = model;
  const CachedDecode other(device(), copy, eager, {.documents = 3, .tokens = 47}, workers);
  const std::int64_t second = before - first - free_bytes();
  EXPECT_GT(first, model.weights.bytes);
  EXPECT_LT(second, first - model.weights.bytes / 2);
}

}  // namespace
}  // namespace keel
