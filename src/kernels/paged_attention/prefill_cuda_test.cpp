#include "kernels/paged_attention/prefill_cuda.h"

#include <gtest/gtest.h>

#include "kernels/paged_attention/prefill_cuda_scene.h"

namespace keel::cuda {
namespace {

class PrefillCuda : public testing::Test {
 protected:
  void SetUp() override {
    const FoundDevice found = find_device();
    if (!found.usable) GTEST_SKIP() << found.reason;
  }
};

constexpr std::int64_t kHeadDims[] = {64, 80, 96, 128, 256};
constexpr std::int64_t kGroups[] = {1, 3, 4, 7, 8};

std::vector<KvFormat> formats(DType dtype, std::int64_t head_dim) {
  std::vector<KvFormat> all;
  for (const DType key : {dtype, DType::e4m3}) {
    for (const DType value : {dtype, DType::e4m3, DType::u4}) {
      if (head_dim * bits(value) % 128 == 0) all.push_back({key, value});
    }
  }
  return all;
}

const std::vector<std::pair<std::int64_t, std::int64_t>> kEdges = {
    {1, 1},   {15, 15}, {16, 16}, {17, 17},   {63, 63},   {64, 64},  {65, 65},    {127, 127}, {128, 128}, {129, 129}, {1, 16},
    {1, 17},  {1, 65},  {1, 1000}, {2, 129},  {16, 64},   {17, 500}, {64, 129},   {65, 333},  {100, 115}, {5, 128},   {200, 1000}};

std::string name_of(const PrefillShape& shape) {
  return std::string(name(shape.dtype)) + " " + to_string(shape.format) + " D" + std::to_string(shape.head_dim) + " G" + std::to_string(shape.group);
}

// Roundoff of a probability as the plain kernel multiplies it.
double plain_p_unit(const PrefillShape& shape) { return shape.format.value == DType::bf16 ? 0x1p-8 : 0x1p-11; }

void expect_right(const PrefillScene::Verdict& verdict, const std::string& what) {
  EXPECT_EQ(verdict.unwritten, 0) << what;
  EXPECT_EQ(verdict.overwritten, 0) << what;
  EXPECT_EQ(verdict.wrong, 0) << what << ": " << verdict.worst << " of the bound at " << verdict.where;
}

PrefillAttention attention_for(const PrefillScene& scene) {
  return PrefillAttention(scene.layout(), scene.shape().dtype, scene.heads(), 4096, 0);
}

TEST_F(PrefillCuda, PlainIsRightForEveryPairHeadDimAndGroupAtTheEdges) {
  double worst = 0;
  std::uint64_t seed = 1;
  for (const DType dtype : {DType::f16, DType::bf16}) {
    for (const std::int64_t head_dim : kHeadDims) {
      for (const KvFormat& format : formats(dtype, head_dim)) {
        for (const std::int64_t group : kGroups) {
          const PrefillShape shape{.dtype = dtype, .format = format, .group = group, .head_dim = head_dim, .sequences = kEdges, .seed = seed++};
          PrefillScene scene(shape);
          PrefillAttention attention = attention_for(scene);
          ASSERT_EQ(attention.plain_refusal(), "");
          const auto out = scene.run([&] { attention.plain(nullptr, scene.args()); });
          const auto verdict = scene.judge(out, CacheValues::exact, plain_p_unit(shape));
          expect_right(verdict, name_of(shape));
          worst = std::max(worst, verdict.worst);
          if (HasFailure()) return;
        }
      }
    }
  }
  std::printf("largest error: %.3f of the bound\n", worst);
}

TEST_F(PrefillCuda, PlainIsRightForSharpDistributions) {
  for (const DType dtype : {DType::f16, DType::bf16}) {
    for (const DType value : {dtype, DType::e4m3}) {
      const PrefillShape shape{.dtype = dtype, .format = {dtype, value}, .sequences = kEdges, .seed = 77, .query_size = 16};
      PrefillScene scene(shape);
      PrefillAttention attention = attention_for(scene);
      expect_right(scene.judge(scene.run([&] { attention.plain(nullptr, scene.args()); }), CacheValues::exact, plain_p_unit(shape)), name_of(shape));
    }
  }
}

// Of cuDNN's kernels on inputs in the model's type.
double native_p_unit(const PrefillShape& shape) { return shape.dtype == DType::f16 ? 0x1p-10 : 0x1p-7; }

constexpr std::int64_t kNativeHeadDims[] = {64, 80, 96, 128, 256};

// Runs `call` and judges it; what cuDNN refuses is a failure that says so.
template <class Call>
void expect_native_right(PrefillScene& scene, const std::string& what, double& worst, Call&& call) {
  try {
    const auto verdict = scene.judge(scene.run(call), CacheValues::rounded, native_p_unit(scene.shape()));
    expect_right(verdict, what);
    worst = std::max(worst, verdict.worst);
  } catch (const Error& error) {
    ADD_FAILURE() << what << ": " << error.what();
  }
}

TEST_F(PrefillCuda, FreshIsRightForPromptsOfOneLengthAndOfMany) {
  double worst = 0;
  for (const DType dtype : {DType::f16, DType::bf16}) {
    for (const std::int64_t head_dim : kNativeHeadDims) {
      for (const std::int64_t group : {1, 4, 7}) {
        PrefillShape shape{.dtype = dtype, .format = {dtype, DType::e4m3}, .group = group, .head_dim = head_dim, .seed = 31};
        for (const auto& lengths : std::vector<std::vector<std::int64_t>>{{1024, 1024}, {1, 15, 16, 17, 63, 64, 65, 127, 128, 129, 1000}, {2048, 100, 300}}) {
          shape.sequences.clear();
          for (const std::int64_t length : lengths) shape.sequences.push_back({length, length});
          PrefillScene scene(shape);
          PrefillAttention attention(scene.layout(), dtype, scene.heads(), 4096, 8 << 20);
          expect_native_right(scene, "fresh " + name_of(shape) + " from " + std::to_string(lengths[0]), worst,
                              [&] { attention.fresh(nullptr, scene.args()); });
        }
      }
    }
  }
  std::printf("largest error: %.3f of the bound\n", worst);
}

TEST_F(PrefillCuda, GatherIsRightForEveryPairWithinTheWorkspaceAndPastIt) {
  double worst = 0;
  for (const DType dtype : {DType::f16, DType::bf16}) {
    for (const std::int64_t head_dim : kNativeHeadDims) {
      for (const KvFormat& format : formats(dtype, head_dim)) {
        PrefillShape shape{.dtype = dtype, .format = format, .group = 4, .head_dim = head_dim, .sequences = kEdges, .seed = 41};
        PrefillScene scene(shape);
        PrefillAttention attention(scene.layout(), dtype, scene.heads(), 4096, 16 << 20);
        expect_native_right(scene, "gather " + name_of(shape), worst, [&] { attention.gather(nullptr, scene.args()); });
      }
      // 64 rows of a merge, and a few hundred tokens.
      PrefillShape shape{.dtype = dtype, .format = {dtype, DType::e4m3}, .group = 4, .head_dim = head_dim, .seed = 43};
      shape.sequences = {{40, 40}, {200, 1500}, {1, 1000}, {700, 700}, {33, 350}};
      PrefillScene scene(shape);
      const std::int64_t merge_bytes = 64 * 8 * (head_dim * 6 + 8);
      PrefillAttention attention(scene.layout(), dtype, scene.heads(), 4096, merge_bytes + 320 * 2 * 2 * head_dim * 2);
      expect_native_right(scene, "gather in tiles " + name_of(shape), worst, [&] { attention.gather(nullptr, scene.args()); });
    }
  }
  std::printf("largest error: %.3f of the bound\n", worst);
}

TEST_F(PrefillCuda, PlansBuiltAheadServeTheCallsThatFollow) {
  const PrefillShape shape{.format = {DType::f16, DType::e4m3}, .sequences = {{1024, 1024}, {100, 100}}, .seed = 3};
  PrefillScene scene(shape);
  PrefillAttention attention(scene.layout(), shape.dtype, scene.heads(), 4096, 8 << 20);
  PrefillAttentionArgs nowhere = scene.args();
  nowhere.q = nowhere.k = nowhere.v = nullptr, nowhere.out = nullptr, nowhere.page_table = nullptr;
  attention.prepare_fresh(nowhere);
  attention.prepare_gather(nowhere);
  EXPECT_GE(attention.workspace_bytes(), 8 << 20);
  double worst = 0;
  expect_native_right(scene, "fresh", worst, [&] { attention.fresh(nullptr, scene.args()); });
  expect_native_right(scene, "gather", worst, [&] { attention.gather(nullptr, scene.args()); });
}

TEST_F(PrefillCuda, MoreSequencesThanALaunchTakesAreServed) {
  PrefillShape shape{.format = {DType::f16, DType::e4m3}, .head_dim = 64};
  for (int i = 0; i < 230; ++i) shape.sequences.push_back({1 + i % 5, 5 + i % 60});
  PrefillScene scene(shape);
  PrefillAttention attention = attention_for(scene);
  expect_right(scene.judge(scene.run([&] { attention.plain(nullptr, scene.args()); }), CacheValues::exact, 0x1p-11), "230 sequences");
}

TEST_F(PrefillCuda, SeededFaultsAreSeen) {
  const PrefillShape shape{.format = {DType::f16, DType::f16}, .sequences = {{64, 300}, {33, 33}}, .seed = 5};
  PrefillScene scene(shape);
  PrefillAttention attention = attention_for(scene);
  const auto plain = [&](const PrefillAttentionArgs& args) { return scene.run([&] { attention.plain(nullptr, args); }); };
  const auto wrong = [&](const std::vector<std::uint16_t>& out, bool interleaved = false) {
    return scene.judge(out, CacheValues::exact, 0x1p-11, interleaved).wrong;
  };
  const auto right = plain(scene.args());
  ASSERT_EQ(wrong(right), 0);
  EXPECT_GT(wrong(right, true), 0) << "a wrong map of query heads to KV heads";

  PrefillAttentionArgs keys_for_values = scene.args();
  keys_for_values.kv.values = keys_for_values.kv.keys;
  EXPECT_GT(wrong(plain(keys_for_values)), 0) << "keys read as values";

  std::vector<PrefillSequence> shorter = scene.sequences();
  shorter[0].context -= 1;
  PrefillAttentionArgs masked = scene.args();
  masked.sequences = shorter;
  EXPECT_GT(wrong(plain(masked)), 0) << "a causal mask that is off by one";

  const std::vector<std::int32_t> table = scene.table();
  std::swap(scene.table()[2], scene.table()[15]);
  scene.upload_table();
  const auto swapped = plain(scene.args());
  scene.table() = table;
  EXPECT_GT(wrong(swapped), 0) << "two pages in each other's place";
  scene.upload_table();
}

TEST_F(PrefillCuda, AWorkspaceTooSmallToWorkInIsRefused) {
  const KvLayout layout({DType::f16, DType::f16}, {1, 2, 128, 16}, PageOrder::cuda);
  EXPECT_THROW(PrefillAttention(layout, DType::f16, 8, 4096, 100'000), Error);
}

TEST(PrefillCudaRefusal, UnservedGeometryIsNamed) {
  const auto refusal = [](KvFormat format, DType dtype, std::int64_t head_dim, std::int64_t heads) {
    return PrefillAttention(KvLayout(format, {1, 2, head_dim, 16}, PageOrder::cuda), dtype, heads, 16, 0).plain_refusal();
  };
  EXPECT_EQ(refusal({DType::f16, DType::e4m3}, DType::f16, 128, 8), "");
  EXPECT_EQ(refusal({DType::f16, DType::f16}, DType::f16, 48, 8), "plain prefill attention on CUDA: head dim 48, wanted one of 64, 80, 96, 128, 256");
  EXPECT_EQ(refusal({DType::f16, DType::f16}, DType::bf16, 128, 8), "plain prefill attention on CUDA: keys in f16, wanted bf16 or fp8_e4m3");
  EXPECT_EQ(refusal({DType::f16, DType::bf16}, DType::f16, 128, 8), "plain prefill attention on CUDA: values in bf16, wanted f16, fp8_e4m3 or u4");
  EXPECT_EQ(refusal({DType::f16, DType::f16}, DType::f16, 128, 7), "plain prefill attention on CUDA: 7 heads over 2 KV heads, wanted a multiple");
}

}  // namespace
}  // namespace keel::cuda
