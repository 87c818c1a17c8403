#include "kernels/paged_attention/prefill_cuda.h"

#include <cuda.h>
#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <tuple>

#include "kernels/cuda_test.h"
#include "kernels/paged_attention/cudnn_sdpa.h"
#include "kernels/paged_attention/plan_tally.h"
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
constexpr std::int64_t kGroups[] = {1, 3, 4, 7, 8, 16};

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

// Scenes on several threads: most of their time is the host's.
class Shapes {
 public:
  void add(const PrefillShape& shape) {
    shapes_.push_back(shape);
    shapes_.back().seed = shapes_.size();
  }
  // Judges each; returns the largest error as a share of its bound.
  template <class Judge>
  double judge_all(Judge&& judge) {
    double worst = 0;
    std::atomic<std::size_t> next = 0;
    std::mutex mutex;
    std::vector<std::thread> threads;
    for (int i = 0; i < 16; ++i) {
      threads.emplace_back([&] {
        for (std::size_t at; (at = next++) < shapes_.size();) {
          const PrefillShape& shape = shapes_[at];
          try {
            PrefillScene scene(shape);
            const PrefillScene::Verdict verdict = judge(scene);
            const std::lock_guard lock(mutex);
            worst = std::max(worst, verdict.worst);
            expect_right(verdict, name_of(shape));
          } catch (const Error& error) {
            const std::lock_guard lock(mutex);
            ADD_FAILURE() << name_of(shape) << ": " << error.what();
          }
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    return worst;
  }

 private:
  std::vector<PrefillShape> shapes_;
};

PrefillAttention attention_for(const PrefillScene& scene) {
  return PrefillAttention(scene.layout(), scene.shape().dtype, scene.heads(), 4096, 0);
}

TEST_F(PrefillCuda, PlainIsRightForEveryPairHeadDimAndGroupAtTheEdges) {
  Shapes shapes;
  for (const DType dtype : {DType::f16, DType::bf16}) {
    for (const std::int64_t head_dim : kHeadDims) {
      for (const KvFormat& format : formats(dtype, head_dim)) {
        for (const std::int64_t group : kGroups) shapes.add({.dtype = dtype, .format = format, .group = group, .head_dim = head_dim, .sequences = kEdges});
      }
    }
  }
  const double worst = shapes.judge_all([](PrefillScene& scene) {
    PrefillAttention attention = attention_for(scene);
    return scene.judge(scene.run([&] { attention.plain(nullptr, scene.args()); }), CacheValues::exact, plain_p_unit(scene.shape()));
  });
  std::printf("plain: largest error %.3f of the bound\n", worst);
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

constexpr std::int64_t kMiB = 1 << 20;

// One for all scenes whose plans are the same: most of these tests' time is cuDNN's, building them. Formats differ in pages alone,
// which a call names.
class Attentions {
 public:
  explicit Attentions(std::int64_t workspace_bytes) : workspace_bytes_(workspace_bytes) {}
  template <class Run>
  auto with(const PrefillScene& scene, Run&& run) {
    const std::lock_guard lock(mutex_);
    auto& attention = attentions_[{scene.shape().dtype, scene.shape().head_dim, scene.heads()}];
    if (!attention) attention = std::make_unique<PrefillAttention>(scene.layout(), scene.shape().dtype, scene.heads(), 4096, workspace_bytes_);
    return run(*attention);
  }

 private:
  std::int64_t workspace_bytes_;
  std::mutex mutex_;
  std::map<std::tuple<DType, std::int64_t, std::int64_t>, std::unique_ptr<PrefillAttention>> attentions_;
};

using NativeRoute = void (PrefillAttention::*)(cudaStream_t, const PrefillAttentionArgs&, std::vector<PrefillRefusal>*);

// As a decoder does: cuDNN's workspace is made first. Refusals are thrown.
std::vector<std::uint16_t> run_native(PrefillAttention& attention, PrefillScene& scene, const PrefillAttentionArgs& args, NativeRoute route) {
  route == &PrefillAttention::fresh ? attention.prepare_fresh(args) : attention.prepare_gather(args);
  return scene.run([&] { (attention.*route)(nullptr, args, nullptr); });
}

// Leaves NaN in all of the workspace that gathered keys and values may lie in.
void poison_workspace(PrefillAttention& attention, PrefillScene& scene) {
  constexpr std::int64_t kContext = 70'000;  // past every workspace here
  const auto table = on_device(std::vector<std::int32_t>((kContext + 15) / 16, scene.nobodys_page()));
  const PrefillSequence all_nan{.first_row = scene.sequences()[0].first_row, .rows = 1, .context = kContext, .table_row = 0};
  PrefillAttentionArgs args = scene.args();
  args.page_table = table.data();
  args.sequences = {&all_nan, 1};
  run_native(attention, scene, args, &PrefillAttention::gather);
}

// What the route makes of a workspace full of NaN.
std::vector<std::uint16_t> run_poisoned(PrefillAttention& attention, PrefillScene& scene, NativeRoute route) {
  if (route == &PrefillAttention::gather) poison_workspace(attention, scene);
  return run_native(attention, scene, scene.args(), route);
}

PrefillScene::Verdict judge_native(PrefillScene& scene, Attentions& attentions, NativeRoute route) {
  const auto out = attentions.with(scene, [&](PrefillAttention& attention) { return run_poisoned(attention, scene, route); });
  return scene.judge(out, CacheValues::rounded, native_p_unit(scene.shape()));
}
PrefillScene::Verdict judge_native(PrefillScene& scene, std::int64_t workspace_bytes, NativeRoute route) {
  Attentions one(workspace_bytes);
  return judge_native(scene, one, route);
}

// What holds a merge of `rows` and gathers `tokens` at once.
std::int64_t workspace_for(const PrefillShape& shape, std::int64_t rows, std::int64_t tokens) {
  const std::int64_t heads = shape.group * shape.kv_heads;
  return rows * heads * (shape.head_dim * 6 + 8) + (tokens + kPrefillSpareRows) * 2 * shape.kv_heads * shape.head_dim * 2;
}

// Every format at every head dim, every group at one.
template <class Add>
void for_native_shapes(Add&& add) {
  for (const DType dtype : {DType::f16, DType::bf16}) {
    for (const std::int64_t head_dim : kHeadDims) {
      for (const KvFormat& format : formats(dtype, head_dim)) add(PrefillShape{.dtype = dtype, .format = format, .head_dim = head_dim});
    }
  }
  for (const std::int64_t group : kGroups) add(PrefillShape{.format = {DType::f16, DType::e4m3}, .group = group});
}

TEST_F(PrefillCuda, FreshIsRightForPromptsOfOneLengthAndOfMany) {
  Shapes shapes;
  for_native_shapes([&](PrefillShape shape) {
    shape.sequences = {{1024, 1024}, {1024, 1024}, {1, 1},     {16, 16},   {17, 17},   {64, 64},     {65, 65},
                       {127, 127},   {129, 129},   {700, 700}, {700, 700}, {700, 700}, {1000, 1000}};
    shape.written = true;
    shapes.add(shape);
  });
  Attentions attentions(8 * kMiB);
  const double worst = shapes.judge_all([&](PrefillScene& scene) { return judge_native(scene, attentions, &PrefillAttention::fresh); });
  std::printf("fresh: largest error %.3f of the bound\n", worst);
}

TEST_F(PrefillCuda, GatherIsRightForEveryPair) {
  Shapes shapes;
  for_native_shapes([&](PrefillShape shape) {
    shape.sequences = {{1024, 2048}, {1, 1},   {15, 15}, {16, 16},  {17, 17},  {64, 64},  {65, 65},    {127, 127}, {129, 129},
                       {1, 17},      {1, 1000}, {2, 129}, {17, 500}, {64, 129}, {65, 333}, {100, 115}, {200, 1000}};
    shapes.add(shape);
  });
  Attentions attentions(16 * kMiB);
  const double worst = shapes.judge_all([&](PrefillScene& scene) { return judge_native(scene, attentions, &PrefillAttention::gather); });
  std::printf("gather: largest error %.3f of the bound\n", worst);
}

// 128 rows of a merge and 320 tokens of workspace.
TEST_F(PrefillCuda, ContextsPastTheWorkspaceAreMergedFromTiles) {
  for (const std::int64_t head_dim : {64, 128}) {
    Shapes shapes;
    for (const DType dtype : {DType::f16, DType::bf16}) {
      for (const KvFormat& format : formats(dtype, head_dim)) {
        shapes.add({.dtype = dtype, .format = format, .head_dim = head_dim, .sequences = {{40, 40}, {200, 1500}, {1, 1000}, {700, 700}, {33, 350}}});
      }
    }
    Attentions attentions(workspace_for({.head_dim = head_dim}, 128, 320));
    const double worst = shapes.judge_all([&](PrefillScene& scene) { return judge_native(scene, attentions, &PrefillAttention::gather); });
    std::printf("gather in tiles, head dim %d: largest error %.3f of the bound\n", static_cast<int>(head_dim), worst);
  }
}

// At a decoder's own workspace, which holds 59,072 tokens of these heads.
TEST_F(PrefillCuda, AHundredThousandTokensAreMergedFromTiles) {
  const PrefillShape shape{.format = {DType::f16, DType::e4m3}, .kv_heads = 8, .sequences = {{300, 100'000}, {64, 200}}};
  PrefillScene scene(shape);
  expect_right(judge_native(scene, 256 * kMiB, &PrefillAttention::gather), name_of(shape));
}

// NaN in one sequence's cache, between two others of the same call, and in what the workspace held before.
TEST_F(PrefillCuda, NaNStaysInItsOwnSequence) {
  Attentions roomy(16 * kMiB), tight(workspace_for({}, 128, 256));
  for (const DType dtype : {DType::f16, DType::bf16}) {
    for (const DType value : {dtype, DType::e4m3, DType::u4}) {
      PrefillShape shape{.dtype = dtype, .format = {dtype, value}, .sequences = {{100, 300}, {200, 333}, {50, 170}}, .seed = 3, .nan_sequence = 1};
      PrefillScene chunks(shape);
      expect_right(judge_native(chunks, roomy, &PrefillAttention::gather), "gather " + name_of(shape));
      expect_right(judge_native(chunks, tight, &PrefillAttention::gather), "tiles " + name_of(shape));
      PrefillAttention plain = attention_for(chunks);
      expect_right(chunks.judge(chunks.run([&] { plain.plain(nullptr, chunks.args()); }), CacheValues::exact, plain_p_unit(shape)), "plain " + name_of(shape));
      shape.sequences = {{130, 130}, {200, 200}, {70, 70}};
      PrefillScene prompts(shape);
      expect_right(judge_native(prompts, roomy, &PrefillAttention::fresh), "fresh " + name_of(shape));
    }
  }
}

// For compute-sanitizer.
TEST_F(PrefillCuda, EachRouteServesAFewShortSequences) {
  PrefillShape shape{.format = {DType::f16, DType::e4m3}, .head_dim = 64, .sequences = {{70, 70}, {33, 33}}};
  PrefillScene prompts(shape);
  expect_right(judge_native(prompts, 4 * kMiB, &PrefillAttention::fresh), "fresh");
  shape.sequences = {{40, 100}, {17, 130}};
  for (const DType value : {DType::f16, DType::e4m3, DType::u4}) {
    shape.format.value = value;
    PrefillScene chunks(shape);
    PrefillAttention attention(chunks.layout(), shape.dtype, chunks.heads(), 128, 4 * kMiB);
    expect_right(chunks.judge(run_native(attention, chunks, chunks.args(), &PrefillAttention::gather), CacheValues::rounded, native_p_unit(shape)), "gather");
    expect_right(chunks.judge(chunks.run([&] { attention.plain(nullptr, chunks.args()); }), CacheValues::exact, plain_p_unit(shape)), "plain");
  }
  shape.sequences = {{150, 400}};
  PrefillScene longer(shape);
  PrefillAttention tiles(longer.layout(), shape.dtype, longer.heads(), 128, workspace_for(shape, 128, 160));
  expect_right(longer.judge(run_native(tiles, longer, longer.args(), &PrefillAttention::gather), CacheValues::rounded, native_p_unit(shape)), "tiles");
}

// Rows of q, k and v so far apart that 32-bit offsets reach only some of a call, and no row of the last but its first.
TEST_F(PrefillCuda, RowsPastTwoGigaelementsAreServed) {
  constexpr std::int64_t kStride = std::int64_t{1} << 22;
  PrefillShape shape{.format = {DType::f16, DType::e4m3}, .head_dim = 64, .sequences = {{200, 200}, {190, 190}, {100, 100}, {60, 60}, {530, 530}}};
  for (const bool is_fresh : {true, false}) {
    if (!is_fresh) shape.sequences = {{200, 250}, {190, 190}, {100, 300}, {60, 61}, {530, 700}};
    PrefillScene scene(shape);
    PrefillAttentionArgs args = scene.args();
    const DeviceBuffer<std::uint16_t> apart = scene.rows_apart(kStride);
    args.q = apart.data();
    args.k = apart.data() + (static_cast<const std::uint16_t*>(scene.args().k) - static_cast<const std::uint16_t*>(scene.args().q));
    args.v = apart.data() + (static_cast<const std::uint16_t*>(scene.args().v) - static_cast<const std::uint16_t*>(scene.args().q));
    args.q_stride = args.kv_stride = kStride;
    PrefillAttention attention(scene.layout(), shape.dtype, scene.heads(), 4096, 16 * kMiB);
    const auto out = run_native(attention, scene, args, is_fresh ? &PrefillAttention::fresh : &PrefillAttention::gather);
    expect_right(scene.judge(out, CacheValues::rounded, native_p_unit(shape)), is_fresh ? "fresh" : "gather");
    const auto plain = scene.run([&] { attention.plain(nullptr, args); });
    expect_right(scene.judge(plain, CacheValues::exact, plain_p_unit(shape)), "plain");
  }
}

// Pages past 2^31 and 2^32 bytes of keys, in a pool that is empty but for them.
TEST_F(PrefillCuda, PagesPastFourGigabytesAreRead) {
  for (const KvFormat& format : {KvFormat{DType::f16, DType::e4m3}, KvFormat{DType::f16, DType::u4}}) {
    const PrefillShape shape{.format = format, .group = 2, .kv_heads = 8, .sequences = {{40, 300}, {64, 64}, {17, 150}}, .seed = 9};
    PrefillScene scene(shape);
    auto far = scene.pages_far_apart(150'000);
    PrefillAttention attention(scene.layout(), shape.dtype, scene.heads(), 4096, 16 * kMiB);
    PrefillAttentionArgs args = scene.args();
    args.kv.keys = far.keys.data(), args.kv.values = far.values.data(), args.page_table = far.table.data();
    ASSERT_GT(far.last_page * scene.layout().key_page_bytes(), std::int64_t{1} << 32);
    ASSERT_GT(far.last_page * scene.layout().value_page_bytes(), std::int64_t{1} << (format.value == DType::u4 ? 30 : 31));
    expect_right(scene.judge(run_native(attention, scene, args, &PrefillAttention::gather), CacheValues::rounded, native_p_unit(shape)), "gather " + name_of(shape));
    expect_right(scene.judge(scene.run([&] { attention.plain(nullptr, args); }), CacheValues::exact, plain_p_unit(shape)), "plain " + name_of(shape));
  }
}

TEST_F(PrefillCuda, ACallThatCudnnDoesNotRunSaysWhy) {
  CudnnSdpa sdpa(CudnnSdpa::kMostPlans, 0);
  const auto reason = [&](const SdpaShape& shape) -> std::string {
    try {
      sdpa.run(nullptr, shape, {});
    } catch (const SdpaRefusal& refusal) {
      return refusal.reason();
    }
    return "";
  };
  const std::string no_kernel = "cuDNN has no attention kernel for the shape", no_workspace = "cuDNN's plan wants more workspace than was set aside";
  SdpaShape odd{.dtype = DType::f16, .heads = 8, .kv_heads = 2, .head_dim = 20, .softmax_scale = 1, .q_tokens = 128, .kv_tokens = 128, .q_stride = 240, .kv_stride = 240, .out_stride = 160,
                .q_sequence = 128 * 240, .kv_sequence = 128 * 240, .out_sequence = 128 * 160};
  const std::string told = sdpa.prepare({&odd, 1});
  EXPECT_EQ(told.substr(0, no_kernel.size()), no_kernel) << told;
  for (int call = 0; call < 2; ++call) EXPECT_EQ(reason(odd), no_kernel);
  EXPECT_FALSE(sdpa.has(odd));
  SdpaShape served = odd;
  served.head_dim = 64, served.q_stride = served.kv_stride = 768, served.out_stride = 512, served.q_sequence = served.kv_sequence = 128 * 768, served.out_sequence = 128 * 512;
  for (int call = 0; call < 2; ++call) EXPECT_EQ(reason(served), no_workspace);
  EXPECT_EQ(sdpa.prepare({&served, 1}), "");
  EXPECT_TRUE(sdpa.has(served));
  EXPECT_GT(sdpa.workspace_bytes(), 0);
}

// Rows that begin at words, not at 16 bytes: the plain kernel alone takes them.
TEST_F(PrefillCuda, WhatCudnnRefusesIsNamedAndLeftToThePlainRoute) {
  PrefillShape shape{.format = {DType::f16, DType::e4m3}, .sequences = {{1024, 1024}, {100, 100}, {60, 60}}};
  for (const bool is_fresh : {true, false}) {
    if (!is_fresh) shape.sequences = {{1024, 2048}, {100, 300}, {60, 2000}};
    PrefillScene scene(shape);
    PrefillAttentionArgs args = scene.args();
    const std::int64_t stride = args.q_stride + 2;
    const DeviceBuffer<std::uint16_t> apart = scene.rows_apart(stride);
    args.k = apart.data() + (static_cast<const std::uint16_t*>(args.k) - static_cast<const std::uint16_t*>(args.q));
    args.v = apart.data() + (static_cast<const std::uint16_t*>(args.v) - static_cast<const std::uint16_t*>(args.q));
    args.q = apart.data();
    args.q_stride = args.kv_stride = stride;
    // In the second turn the last one goes in tiles.
    PrefillAttention attention(scene.layout(), shape.dtype, scene.heads(), 4096, is_fresh ? 8 * kMiB : workspace_for(shape, 128, 1800));
    const NativeRoute route = is_fresh ? &PrefillAttention::fresh : &PrefillAttention::gather;
    EXPECT_THROW((attention.*route)(nullptr, args, nullptr), Error);
    for (int call = 0; call < 2; ++call) {
      std::vector<PrefillRefusal> refused;
      const auto out = scene.run([&] {
        (attention.*route)(nullptr, args, &refused);
        ASSERT_EQ(refused.size(), shape.sequences.size());
        for (std::size_t i = 0; i < refused.size(); ++i) {
          EXPECT_EQ(refused[i].sequence, i);
          EXPECT_STREQ(refused[i].reason, "cuDNN has no attention kernel for the shape");
        }
        attention.plain(nullptr, args);
      });
      expect_right(scene.judge(out, CacheValues::exact, plain_p_unit(shape)), "plain after a refusal");
    }
    EXPECT_TRUE(attention.native_refusal().empty());
    attention.prepare(args, 4096, 4096, true);
    EXPECT_NE(attention.native_refusal().find("cuDNN has no attention kernel for the shape: 1 sequences of"), std::string::npos) << attention.native_refusal();
  }
}

TEST_F(PrefillCuda, PlansBuiltAheadServeTheCallsThatFollow) {
  const PrefillShape shape{.format = {DType::f16, DType::e4m3}, .sequences = {{1024, 1024}, {100, 100}}};
  PrefillScene scene(shape);
  PrefillAttention attention(scene.layout(), shape.dtype, scene.heads(), 4096, 8 * kMiB);
  PrefillAttentionArgs nowhere = scene.args();
  nowhere.q = nowhere.k = nowhere.v = nullptr, nowhere.out = nullptr, nowhere.page_table = nullptr;
  attention.prepare_fresh(nowhere);
  attention.prepare_gather(nowhere);
  EXPECT_GE(attention.workspace_bytes(), 8 * kMiB);
  const std::int64_t built = attention.plans_built();
  for (const NativeRoute route : {&PrefillAttention::fresh, &PrefillAttention::gather}) {
    const auto out = scene.run([&] { (attention.*route)(nullptr, scene.args(), nullptr); });
    expect_right(scene.judge(out, CacheValues::rounded, native_p_unit(shape)), "after plans built ahead");
  }
  EXPECT_EQ(attention.plans_built(), built);
}

TEST_F(PrefillCuda, PromptsOfOneOddLengthBuildNoPlanBeforeTheyHaveEarnedIt) {
  PrefillShape shape{.format = {DType::f16, DType::e4m3}, .sequences = {{600, 600}, {600, 600}}};
  PrefillScene scene(shape);
  PrefillAttention attention(scene.layout(), shape.dtype, scene.heads(), 4096, 8 * kMiB);
  const auto fresh = [&](PrefillScene& of) { expect_right(of.judge(of.run([&] { attention.fresh(nullptr, of.args()); }), CacheValues::rounded, native_p_unit(shape)), "two of a length"); };
  fresh(scene);
  EXPECT_EQ(attention.plans_built(), 1) << "of two lengths up to 1,024";
  for (std::int64_t rows : {601, 700, 777, 1000}) {
    shape.sequences = {{rows, rows}, {rows, rows}};
    PrefillScene other(shape);
    fresh(other);
    EXPECT_EQ(attention.plans_built(), 1) << rows;
  }
  attention.prepare_fresh(scene.args());
  EXPECT_EQ(attention.plans_built(), 2) << "as who prepares for a length wants one";
  fresh(scene);
  EXPECT_EQ(attention.plans_built(), 2);
}

TEST(PlanTally, AShapeEarnsAPlanByTheTimeItsCallsLose) {
  PlanTally tally;
  SdpaShape shape{.dtype = DType::f16, .heads = 32, .kv_heads = 8, .head_dim = 128, .softmax_scale = 1, .batch = 8, .q_tokens = 8100, .kv_tokens = 8100, .q_stride = 6144, .kv_stride = 6144, .out_stride = 4096};
  EXPECT_NEAR(flop_of(shape), 4.3e12, 0.01e12);
  const auto calls = [&](const SdpaShape& of) {
    int n = 1;
    while (!tally.earns(of)) ++n;
    return n;
  };
  EXPECT_EQ(calls(shape), 107) << "three steps of 36 layers";
  EXPECT_EQ(tally.shapes(), 0u);
  EXPECT_EQ(calls(shape), 107) << "once its plan is gone it begins anew";
  SdpaShape small = shape;
  small.batch = 2, small.q_tokens = small.kv_tokens = 600;
  EXPECT_GT(calls(small), 70'000);
}

TEST(PlanTally, KeepsItsLimitAndWhatIsSeenOften) {
  PlanTally tally;
  SdpaShape often{.dtype = DType::f16, .heads = 32, .kv_heads = 8, .head_dim = 128, .softmax_scale = 1, .batch = 2, .q_tokens = 8100, .kv_tokens = 8100, .q_stride = 6144, .kv_stride = 6144, .out_stride = 4096};
  SdpaShape once = often;
  int calls = 0;
  for (bool earned = false; !earned && calls < 1000; ++calls) {
    earned = tally.earns(often);
    once.q_tokens = once.kv_tokens = 513 + calls;
    EXPECT_FALSE(tally.earns(once));
    EXPECT_LE(tally.shapes(), PlanTally::kMostShapes);
  }
  EXPECT_EQ(calls, 427);
}

// Whichever form this cuDNN's version makes it take: both are right, and the choice is one of them.
TEST_F(PrefillCuda, EitherFormOfASquareMaskIsRight) {
  const PrefillShape shape{.format = {DType::f16, DType::e4m3}, .sequences = {{1024, 1024}, {1024, 1024}, {1000, 1000}}};
  PrefillScene scene(shape);
  PrefillAttention attention(scene.layout(), shape.dtype, scene.heads(), 4096, 8 * kMiB);
  const auto right = [&] { expect_right(scene.judge(scene.run([&] { attention.fresh(nullptr, scene.args()); }), CacheValues::rounded, native_p_unit(shape)), "a square mask"); };
  right();
  EXPECT_EQ(attention.plans_built(), 2);
  attention.choose_mask(scene.args(), 1024);
  EXPECT_EQ(attention.plans_built(), 4) << "one prompt, both forms";
  right();

  PrefillShape two = shape;
  two.sequences.pop_back();
  PrefillScene square(two);
  const PrefillAttentionArgs args = square.args();
  const std::int64_t rows = 1024, first = args.sequences[0].first_row, apart = args.sequences[1].first_row - first;
  SdpaShape of{.dtype = shape.dtype, .heads = square.heads(), .kv_heads = shape.kv_heads, .head_dim = shape.head_dim, .softmax_scale = square.softmax_scale(), .batch = 2, .q_tokens = rows,
               .kv_tokens = rows, .q_stride = args.q_stride, .kv_stride = args.kv_stride, .out_stride = args.out_stride, .q_sequence = apart * args.q_stride,
               .kv_sequence = apart * args.kv_stride, .out_sequence = apart * args.out_stride};
  const auto row = [&](const void* of_rows, std::int64_t stride) { return static_cast<const std::uint16_t*>(of_rows) + first * stride; };
  const SdpaArgs tensors{.q = row(args.q, args.q_stride), .k = row(args.k, args.kv_stride), .v = row(args.v, args.kv_stride), .out = static_cast<std::uint16_t*>(args.out) + first * args.out_stride};
  CudnnSdpa sdpa;
  for (const bool top_left : {false, true}) {
    of.square = top_left;
    expect_right(square.judge(square.run([&] { sdpa.run(nullptr, of, tensors); }), CacheValues::rounded, native_p_unit(shape)), top_left ? "top-left" : "bottom-right");
  }
  const Stream stream;
  const SdpaShape faster = sdpa.in_faster_form(stream, of, tensors);
  std::printf("of 2 x 1,024: the %s form\n", faster.square ? "top-left" : "bottom-right");
  EXPECT_EQ(sdpa.built(), 2);
}

// Three shapes where two plans are kept: each call that needs a plan again builds it, and all give what one that keeps them all gives.
TEST_F(PrefillCuda, PlansPastTheLimitLeaveAndComeBack) {
  const PrefillShape shape{.format = {DType::f16, DType::e4m3}, .sequences = {{128, 128}, {256, 256}, {384, 384}}};
  PrefillScene scene(shape);
  CudnnSdpa two(2), all;
  const auto out_of = [&](CudnnSdpa& sdpa, std::size_t which) {
    const PrefillAttentionArgs args = scene.args();
    const PrefillSequence& s = args.sequences[which];
    const auto row = [&](const void* rows, std::int64_t stride) { return static_cast<const std::uint16_t*>(rows) + s.first_row * stride; };
    const SdpaShape of{.dtype = shape.dtype, .heads = scene.heads(), .kv_heads = shape.kv_heads, .head_dim = shape.head_dim, .softmax_scale = scene.softmax_scale(), .square = true,
                       .q_tokens = s.rows, .kv_tokens = s.rows, .q_stride = args.q_stride, .kv_stride = args.kv_stride, .out_stride = args.out_stride,
                       .q_sequence = s.rows * args.q_stride, .kv_sequence = s.rows * args.kv_stride, .out_sequence = s.rows * args.out_stride};
    return scene.run([&] {
      sdpa.run(nullptr, of, {.q = row(args.q, args.q_stride), .k = row(args.k, args.kv_stride), .v = row(args.v, args.kv_stride), .out = static_cast<std::uint16_t*>(args.out) + s.first_row * args.out_stride});
    });
  };
  for (const std::size_t which : {0, 1, 0, 2, 0, 1, 2}) EXPECT_EQ(out_of(two, which), out_of(all, which)) << "sequence " << which;
  EXPECT_EQ(two.plans(), 2);
  EXPECT_EQ(two.built(), 5) << "0, 1, then 2 in the place of 1, 1 of 2, 2 of 0";
  EXPECT_EQ(all.plans(), 3);
  EXPECT_EQ(all.built(), 3);
}

TEST_F(PrefillCuda, MoreSequencesThanALaunchTakesAreServed) {
  PrefillShape shape{.format = {DType::f16, DType::e4m3}, .head_dim = 64};
  for (int i = 0; i < 230; ++i) shape.sequences.push_back({1 + i % 5, 5 + i % 60});
  PrefillScene scene(shape);
  PrefillAttention attention = attention_for(scene);
  expect_right(scene.judge(scene.run([&] { attention.plain(nullptr, scene.args()); }), CacheValues::exact, 0x1p-11), "230 sequences");
}

// What a fault must turn wrong, through each route that reads what it spoils.
TEST_F(PrefillCuda, SeededFaultsAreSeen) {
  Attentions attentions(16 * kMiB);
  for (const KvFormat& format : formats(DType::f16, 128)) {
    for (const std::string route : {"plain", "fresh", "gather"}) {
      const std::string what = route + " " + to_string(format) + ": ";
      const bool is_fresh = route == "fresh", is_plain = route == "plain";
      PrefillShape shape{.format = format, .sequences = {{64, 300}, {33, 33}}, .seed = 5};
      if (is_fresh) shape.sequences = {{300, 300}, {33, 33}};
      PrefillScene scene(shape);
      const auto out_of = [&](const PrefillAttentionArgs& args) {
        return attentions.with(scene, [&](PrefillAttention& attention) {
          return is_plain ? scene.run([&] { attention.plain(nullptr, args); }) : run_native(attention, scene, args, is_fresh ? &PrefillAttention::fresh : &PrefillAttention::gather);
        });
      };
      const auto wrong_of = [&](const std::vector<std::uint16_t>& out, bool interleaved = false) {
        return scene.judge(out, is_plain ? CacheValues::exact : CacheValues::rounded, is_plain ? plain_p_unit(shape) : native_p_unit(shape), interleaved).wrong;
      };
      const auto wrong = [&](const PrefillAttentionArgs& args) { return wrong_of(out_of(args)); };
      ASSERT_EQ(wrong(scene.args()), 0) << what;
      EXPECT_GT(wrong_of(out_of(scene.args()), true), 0) << what << "a wrong map of query heads to KV heads";

      PrefillAttentionArgs faulty = scene.args();
      faulty.softmax_scale *= 1.05f;
      EXPECT_GT(wrong(faulty), 0) << what << "a softmax scale that is off";

      faulty = scene.args();
      if (is_fresh) {
        faulty.v = faulty.k;
        EXPECT_GT(wrong(faulty), 0) << what << "keys for values";
        faulty = scene.args();
        faulty.k = static_cast<const std::uint16_t*>(faulty.k) + faulty.kv_stride;
        EXPECT_GT(wrong(faulty), 0) << what << "keys of the next token";
        continue;
      }
      if (format.key == format.value) {
        faulty.kv.values = faulty.kv.keys;
        EXPECT_GT(wrong(faulty), 0) << what << "keys read as values";
      }
      for (const bool of_keys : {true, false}) {  // which 16-bit pages do not use, and the plain kernel's u4 does not
        if ((of_keys ? format.key : format.value) != DType::e4m3) continue;
        const auto doubled = on_device(std::vector<float>{0.02f, 0.04f});
        faulty = scene.args();
        (of_keys ? faulty.kv.key_scales : faulty.kv.value_scales) = doubled.data();
        EXPECT_GT(wrong(faulty), 0) << what << "other scales of " << (of_keys ? "keys" : "values");
      }
      std::vector<PrefillSequence> shorter = scene.sequences();
      shorter[0].context -= 1;
      faulty = scene.args();
      faulty.sequences = shorter;
      EXPECT_GT(wrong(faulty), 0) << what << "a causal mask that is off by one";

      const std::vector<std::int32_t> table = scene.table();
      std::swap(scene.table()[2], scene.table()[15]);
      scene.upload_table();
      const auto out = out_of(scene.args());
      scene.table() = table;  // the right answer's
      EXPECT_GT(wrong_of(out), 0) << what << "two pages in each other's place";
    }
  }
}

// Device memory with nothing mapped behind it.
class GuardedMemory {
 public:
  explicit GuardedMemory(std::size_t bytes) {
    cudaFree(nullptr);  // a context
    const CUmemAllocationProp device{.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}};
    std::size_t granule = 0;
    call<decltype(cuMemGetAllocationGranularity)>("cuMemGetAllocationGranularity", &granule, &device, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
    mapped_ = (bytes + granule - 1) / granule * granule;
    reserved_ = mapped_ + granule;
    call<decltype(cuMemCreate)>("cuMemCreate", &memory_, mapped_, &device, 0);
    call<decltype(cuMemAddressReserve)>("cuMemAddressReserve", &address_, reserved_, 0, 0, 0);
    call<decltype(cuMemMap)>("cuMemMap", address_, mapped_, 0, memory_, 0);
    const CUmemAccessDesc access{.location = device.location, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    call<decltype(cuMemSetAccess)>("cuMemSetAccess", address_, mapped_, &access, 1);
  }
  GuardedMemory(const GuardedMemory&) = delete;
  ~GuardedMemory() {
    call<decltype(cuMemUnmap)>("cuMemUnmap", address_, mapped_);
    call<decltype(cuMemRelease)>("cuMemRelease", memory_);
    call<decltype(cuMemAddressFree)>("cuMemAddressFree", address_, reserved_);
  }
  std::byte* end() const { return reinterpret_cast<std::byte*>(address_ + mapped_); }

 private:
  template <class Function, class... Args>
  static void call(const char* name, Args... args) {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult found;
    check(cudaGetDriverEntryPointByVersion(name, &function, 12000, cudaEnableDefault, &found), name);
    EXPECT_EQ(reinterpret_cast<Function*>(function)(args...), CUDA_SUCCESS) << name;
  }
  std::size_t mapped_, reserved_;
  CUmemGenericAllocationHandle memory_;
  CUdeviceptr address_;
};

// Last of those that launch: where it fails, it takes the device's context with it.
TEST_F(PrefillCuda, NoRouteReadsPastTheSpareRows) {
  for (const std::int64_t head_dim : {64, 128, 256}) {
    PrefillShape shape{.format = {DType::f16, DType::e4m3}, .head_dim = head_dim};
    for (const std::string route : {"fresh", "gather", "tiles"}) {
      shape.sequences = {{300, 300}, {1030, 1030}};  // bounds of 512 and 2,048 rows
      if (route != "fresh") shape.sequences = {{300, 400}, {1030, 1100}};
      PrefillScene scene(shape);
      GuardedMemory memory(64 * kMiB);
      PrefillAttentionArgs args = scene.args();
      const auto* rows = scene.rows_before(memory.end());
      args.k = rows + (static_cast<const std::uint16_t*>(args.k) - static_cast<const std::uint16_t*>(args.q));
      args.v = rows + (static_cast<const std::uint16_t*>(args.v) - static_cast<const std::uint16_t*>(args.q));
      args.q = rows;
      PrefillAttention attention(scene.layout(), shape.dtype, scene.heads(), 4096, route == "tiles" ? workspace_for(shape, 128, 320) : 16 * kMiB);
      const auto out = run_native(attention, scene, args, route == "fresh" ? &PrefillAttention::fresh : &PrefillAttention::gather);
      expect_right(scene.judge(out, CacheValues::rounded, native_p_unit(shape)), route + " " + name_of(shape));
    }
  }
}

TEST_F(PrefillCuda, AWorkspaceTooSmallToWorkInIsRefused) {
  const KvLayout layout({DType::f16, DType::f16}, {1, 2, 128, 16}, PageOrder::cuda);
  EXPECT_THROW(PrefillAttention(layout, DType::f16, 8, 4096, 100'000), Error);
}

TEST(PrefillCudaRefusal, UnservedGeometryIsNamed) {
  const auto refusal = [](KvFormat format, DType dtype, std::int64_t head_dim, std::int64_t heads) {
    return plain_prefill_refusal(KvLayout(format, {1, 2, head_dim, 16}, PageOrder::cuda), dtype, heads);
  };
  EXPECT_EQ(refusal({DType::f16, DType::e4m3}, DType::f16, 128, 8), "");
  EXPECT_EQ(refusal({DType::f16, DType::f16}, DType::f16, 48, 8), "plain prefill attention on CUDA: head dim 48, wanted one of 64, 80, 96, 128, 256");
  EXPECT_EQ(refusal({DType::f16, DType::f16}, DType::bf16, 128, 8), "plain prefill attention on CUDA: keys in f16, wanted bf16 or fp8_e4m3");
  EXPECT_EQ(refusal({DType::f16, DType::bf16}, DType::f16, 128, 8), "plain prefill attention on CUDA: values in bf16, wanted f16, fp8_e4m3 or u4");
  EXPECT_EQ(refusal({DType::f16, DType::f16}, DType::f16, 128, 7), "plain prefill attention on CUDA: 7 heads over 2 KV heads, wanted a multiple");
}

}  // namespace
}  // namespace keel::cuda
