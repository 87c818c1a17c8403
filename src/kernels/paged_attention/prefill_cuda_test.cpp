#include "kernels/paged_attention/prefill_cuda.h"

#include <gtest/gtest.h>

#include <atomic>
#include <mutex>
#include <thread>

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
    for (int i = 0; i < 8; ++i) {
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

PrefillScene::Verdict judge_native(PrefillScene& scene, std::int64_t workspace_bytes, void (PrefillAttention::*route)(cudaStream_t, const PrefillAttentionArgs&)) {
  PrefillAttention attention(scene.layout(), scene.shape().dtype, scene.heads(), 4096, workspace_bytes);
  return scene.judge(scene.run([&] { (attention.*route)(nullptr, scene.args()); }), CacheValues::rounded, native_p_unit(scene.shape()));
}

TEST_F(PrefillCuda, FreshIsRightForPromptsOfOneLengthAndOfMany) {
  Shapes shapes;
  for (const DType dtype : {DType::f16, DType::bf16}) {
    for (const std::int64_t head_dim : kHeadDims) {
      for (const std::int64_t group : kGroups) {
        if (group != 4 && head_dim != 128) continue;
        PrefillShape shape{.dtype = dtype, .format = {dtype, DType::e4m3}, .group = group, .head_dim = head_dim};
        shape.sequences = {{1024, 1024}, {1024, 1024}, {1, 1},     {16, 16},   {17, 17},   {64, 64},     {65, 65},
                           {127, 127},   {129, 129},   {700, 700}, {700, 700}, {700, 700}, {1000, 1000}};
        shapes.add(shape);
      }
    }
  }
  const double worst = shapes.judge_all([](PrefillScene& scene) { return judge_native(scene, 8 * kMiB, &PrefillAttention::fresh); });
  std::printf("fresh: largest error %.3f of the bound\n", worst);
}

TEST_F(PrefillCuda, GatherIsRightForEveryPair) {
  Shapes shapes;
  for (const DType dtype : {DType::f16, DType::bf16}) {
    for (const std::int64_t head_dim : kHeadDims) {
      for (const KvFormat& format : formats(dtype, head_dim)) {
        if (head_dim != 128 && format != KvFormat{dtype, DType::e4m3}) continue;
        PrefillShape shape{.dtype = dtype, .format = format, .head_dim = head_dim};
        shape.sequences = {{1024, 2048}, {1, 1},   {15, 15}, {16, 16},  {17, 17},  {64, 64},  {65, 65},    {127, 127}, {129, 129},
                           {1, 17},      {1, 1000}, {2, 129}, {17, 500}, {64, 129}, {65, 333}, {100, 115}, {200, 1000}};
        shapes.add(shape);
      }
    }
  }
  const double worst = shapes.judge_all([](PrefillScene& scene) { return judge_native(scene, 16 * kMiB, &PrefillAttention::gather); });
  std::printf("gather: largest error %.3f of the bound\n", worst);
}

// 128 rows of a merge and 320 tokens of workspace.
TEST_F(PrefillCuda, ContextsPastTheWorkspaceAreMergedFromTiles) {
  Shapes shapes;
  for (const std::int64_t head_dim : {64, 128}) {
    for (const DType dtype : {DType::f16, DType::bf16}) {
      PrefillShape shape{.dtype = dtype, .format = {dtype, DType::e4m3}, .head_dim = head_dim};
      shape.sequences = {{40, 40}, {200, 1500}, {1, 1000}, {700, 700}, {33, 350}};
      shapes.add(shape);
    }
  }
  const double worst = shapes.judge_all([](PrefillScene& scene) {
    const std::int64_t dim = scene.shape().head_dim, merge_bytes = 128 * scene.heads() * (dim * 6 + 8);
    return judge_native(scene, merge_bytes + 320 * 2 * 2 * dim * 2, &PrefillAttention::gather);
  });
  std::printf("gather in tiles: largest error %.3f of the bound\n", worst);
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
  for (const auto route : {&PrefillAttention::fresh, &PrefillAttention::gather}) {
    const auto out = scene.run([&] { (attention.*route)(nullptr, scene.args()); });
    expect_right(scene.judge(out, CacheValues::rounded, native_p_unit(shape)), "after plans built ahead");
  }
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
