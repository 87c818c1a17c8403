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
#include "kernels/paged_attention/prefill_cuda_judge.h"

namespace keel::cuda {
namespace {

using PrefillCuda = CudaKernel;

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
