// cuDNN's plans: what is built and when, what is kept, and what becomes of calls that cuDNN does not serve.
#include <gtest/gtest.h>

#include <cstdio>

#include "kernels/paged_attention/cudnn_sdpa.h"
#include "kernels/paged_attention/plan_tally.h"
#include "kernels/paged_attention/prefill_cuda_judge.h"

namespace keel::cuda {
namespace {

using PrefillCudaPlans = CudaKernel;

TEST_F(PrefillCudaPlans, ACallThatCudnnDoesNotRunSaysWhy) {
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
TEST_F(PrefillCudaPlans, WhatCudnnRefusesIsNamedAndLeftToThePlainRoute) {
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

TEST_F(PrefillCudaPlans, PlansBuiltAheadServeTheCallsThatFollow) {
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

TEST_F(PrefillCudaPlans, PromptsOfOneOddLengthBuildNoPlanBeforeTheyHaveEarnedIt) {
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
TEST_F(PrefillCudaPlans, EitherFormOfASquareMaskIsRight) {
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
TEST_F(PrefillCudaPlans, PlansPastTheLimitLeaveAndComeBack) {
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

}  // namespace
}  // namespace keel::cuda
