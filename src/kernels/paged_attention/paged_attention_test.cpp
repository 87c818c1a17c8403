#include "kernels/paged_attention/paged_attention.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "kernels/cpu_features.h"
#include "kernels/paged_attention/attention_scene.h"
#include "kernels/paged_attention/attention_state.h"

namespace keel {
namespace {

// Calls body(name) once for every instruction set that this processor and this build have.
template <class Body>
void for_each_target(const Body& body) {
  const std::string before = chosen_target();
  for (const std::string& target : supported_targets()) {
    force_target(target);
    body(target);
  }
  force_target(before);
}

WorkerPool& pool_of(int threads) {
  static WorkerPool one(1), two(2), three(3);
  return threads == 1 ? one : threads == 2 ? two : three;
}

std::string describe(const SceneShape& shape) {
  return fmt::format("k={} v={} heads {}:{} dim {} page {} seed {}, {} sequences, first {} rows of {}",
                     name(shape.format.key),
                     name(shape.format.value),
                     shape.heads,
                     shape.kv_heads,
                     shape.head_dim,
                     shape.page_size,
                     shape.seed,
                     shape.sequences.size(),
                     shape.sequences[0].rows,
                     shape.sequences[0].context);
}

// Against the reference on every target with two threads, and bit for bit the same with one and three.
void expect_exact(const SceneShape& shape) {
  SCOPED_TRACE(describe(shape));
  AttentionScene scene(shape);
  const auto exact = scene.exact();
  for_each_target([&](const std::string& target) {
    SCOPED_TRACE(target);
    const std::vector<float> out = scene.run(Stream{&pool_of(2)});
    EXPECT_EQ(compare(out, exact), "");
    EXPECT_EQ(scene.run(Stream{&pool_of(1)}), out) << "one thread differs from two";
    EXPECT_EQ(scene.run(Stream{&pool_of(3)}), out) << "three threads differ from two";
  });
}

constexpr std::int64_t kLengths[] = {1, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 1001};

TEST(PagedAttention, MatchesTheExactAnswerForEveryFormat) {
  for (const KvFormat& format : paged_attention_formats()) {
    for (const std::int64_t rows : {1, 5}) {
      expect_exact({.format = format, .heads = 6, .kv_heads = 2, .sequences = {{rows, 77}}});
    }
    expect_exact({.format = format, .heads = 4, .kv_heads = 2, .page_size = 32, .sequences = {{17, 49}}});
  }
}

TEST(PagedAttention, MatchesAtEveryLengthNearAPageOrBlockBoundary) {
  std::uint64_t seed = 10;
  for (const std::int64_t page_size : {16, 32, 64}) {
    for (const std::int64_t context : kLengths) {
      expect_exact({.format = {DType::f16, DType::e4m3},
                    .heads = 3,
                    .kv_heads = 1,
                    .page_size = page_size,
                    .sequences = {{1, context}},
                    .seed = seed++});
    }
  }
}

TEST(PagedAttention, MatchesForAnyNumberOfQueryRows) {
  std::uint64_t seed = 100;
  for (const std::int64_t rows : {1, 2, 3, 8, 17, 64, 65}) {
    for (const std::int64_t before : {0, 1, 16, 50, 600}) {
      expect_exact({.format = {DType::f16, DType::e4m3},
                    .heads = 2,
                    .kv_heads = 1,
                    .sequences = {{rows, rows + before}},
                    .seed = seed++});
    }
  }
}

TEST(PagedAttention, MatchesForEveryHeadGrouping) {
  std::uint64_t seed = 200;
  const std::pair<int, int> groupings[] = {{1, 1}, {2, 2}, {4, 2}, {9, 3}, {28, 4}, {8, 1}, {16, 1}, {100, 1}};
  for (const auto& [heads, kv_heads] : groupings) {
    for (const SequenceShape& sequence : {SequenceShape{1, 130}, SequenceShape{19, 83}}) {
      expect_exact({.format = {DType::f16, DType::e4m3},
                    .heads = heads,
                    .kv_heads = kv_heads,
                    .head_dim = 64,
                    .sequences = {sequence},
                    .seed = seed++});
    }
  }
}

TEST(PagedAttention, MatchesForEveryHeadDimension) {
  std::uint64_t seed = 300;
  for (const std::int64_t head_dim : {16, 32, 48, 64, 80, 96, 112, 128, 192, 256}) {
    for (const KvFormat& format : {KvFormat{DType::f16, DType::e4m3}, KvFormat{DType::bf16, DType::u4}}) {
      for (const SequenceShape& sequence : {SequenceShape{1, 70}, SequenceShape{9, 33}}) {
        expect_exact({.format = format,
                      .heads = 4,
                      .kv_heads = 2,
                      .head_dim = head_dim,
                      .sequences = {sequence},
                      .seed = seed++});
      }
    }
  }
}

SceneShape mixed_batch() {
  return {.format = {DType::f16, DType::e4m3},
          .heads = 9,
          .kv_heads = 3,
          .sequences = {{1, 700}, {33, 90}, {1, 1}, {7, 7}, {1, 64}, {100, 100}, {2, 513}},
          .seed = 400};
}

TEST(PagedAttention, ServesAMixedBatchWithSharedAndShuffledPages) {
  expect_exact(mixed_batch());
  SceneShape shared = mixed_batch();
  shared.share_first_pages = true;
  expect_exact(shared);
}

TEST(PagedAttention, GivesASequenceTheSameBitsAloneAsInABatch) {
  AttentionScene batch(mixed_batch());
  const Stream stream{&pool_of(2)};
  const std::vector<float> together = batch.run(stream);
  const auto sequences = batch.sequences_;
  for (const AttentionSequence& sequence : sequences) {
    batch.sequences_ = {sequence};
    const std::vector<float> alone = batch.run(stream);
    const std::int64_t width = 9 * 64;
    for (std::int64_t i = sequence.first_row * width; i < (sequence.first_row + sequence.rows) * width; ++i) {
      ASSERT_EQ(together[i], alone[i]) << "rows " << sequence.rows << " of " << sequence.context;
    }
  }
}

TEST(PagedAttention, CutsALongContextIntoPartsWithoutLosingPrecision) {
  // 64 rows are cut, 65 are not: both meet the same bound, over lengths with one, two and the most parts.
  for (const std::int64_t context : {511, 512, 513, 1024, 1100, 9000}) {
    expect_exact({.format = {DType::f16, DType::e4m3},
                  .heads = 3,
                  .kv_heads = 1,
                  .head_dim = 32,
                  .sequences = {{1, context}},
                  .seed = 500});
  }
  for (const std::int64_t rows : {64, 65}) {
    expect_exact({.heads = 1, .kv_heads = 1, .head_dim = 32, .sequences = {{rows, 1100}}, .seed = 501});
  }
}

// Overwrites every key of one head at `position` of the only sequence.
void set_key(AttentionScene& scene, std::int64_t position, float x) {
  const PageId page = scene.tables_[0][position / scene.shape_.page_size];
  for (std::int64_t dim = 0; dim < scene.shape_.head_dim; ++dim) {
    const Half stored = to_half(x);
    std::memcpy(scene.key_at(page, 0, position % scene.shape_.page_size, dim), &stored, 2);
  }
}

TEST(PagedAttention, SurvivesAdversarialScores) {
  const SceneShape shape{.heads = 1, .kv_heads = 1, .sequences = {{1, 1200}}, .seed = 600};
  const auto expect = [](AttentionScene& scene, const char* what) {
    SCOPED_TRACE(what);
    const auto exact = scene.exact();
    for_each_target([&](const std::string& target) {
      SCOPED_TRACE(target);
      EXPECT_EQ(compare(scene.run(Stream{&pool_of(2)}), exact), "");
    });
  };
  for (const std::int64_t position : {0, 63, 64, 700, 1199}) {
    AttentionScene scene(shape);
    std::fill(scene.q_.begin(), scene.q_.end(), 1.0f);
    set_key(scene, position, 100.0f);  // a score of 800 among scores near 0
    expect(scene, "one huge key");
  }
  AttentionScene equal(shape);
  for (std::int64_t t = 0; t < 1200; ++t) set_key(equal, t, 0.25f);
  expect(equal, "all scores equal");
  AttentionScene falling(shape);
  std::fill(falling.q_.begin(), falling.q_.end(), 1.0f);
  for (std::int64_t t = 0; t < 1200; ++t) set_key(falling, t, -0.1f * static_cast<float>(t));
  expect(falling, "scores from 0 down to -960");
  AttentionScene rising(shape);
  std::fill(rising.q_.begin(), rising.q_.end(), 1.0f);
  for (std::int64_t t = 0; t < 1200; ++t) set_key(rising, t, 0.1f * static_cast<float>(t));
  expect(rising, "scores from 0 up to 960: the maximum moves at every position");
  SceneShape wide = shape;
  wide.query_size = 50.0f;
  AttentionScene spread(wide);
  expect(spread, "scores of either sign beyond 88");
}

TEST(PagedAttention, LetsANanInAVisibleSlotShow) {
  for (const KvFormat& format : {KvFormat{DType::f16, DType::f16}, KvFormat{DType::e4m3, DType::e4m3}}) {
    for (const bool in_key : {true, false}) {
      AttentionScene scene({.format = format, .heads = 1, .kv_heads = 1, .sequences = {{1, 40}}});
      std::byte* at = in_key ? scene.key_at(scene.tables_[0][1], 0, 3, 5) : scene.value_at(scene.tables_[0][1], 0, 3, 5);
      std::memset(at, 0xff, bits(format.key) / 8);
      for_each_target([&](const std::string& target) {
        EXPECT_TRUE(std::isnan(scene.run(Stream{&pool_of(1)})[5])) << target << (in_key ? " key" : " value");
      });
    }
  }
}

TEST(PagedAttention, KeepsALaterTokensInfinityFromEarlierRows) {
  for (const KvFormat& format : {KvFormat{DType::f16, DType::f16}, KvFormat{DType::f16, DType::e4m3}, KvFormat{DType::f16, DType::u4}}) {
    for (const std::int64_t rows : {2, 5, 40}) {  // one register block, and many
      const std::int64_t context = rows + 30, position = context - 1;
      AttentionScene scene({.format = format, .heads = 3, .kv_heads = 1, .sequences = {{rows, context}}, .seed = 650});
      const auto exact = scene.exact();
      const PageId page = scene.tables_[0][position / 16];
      std::byte* at = format.value == DType::u4 ? scene.parameters_at(page, 0, position % 16) : scene.value_at(page, 0, position % 16, 0);
      std::memset(at, 0xff, 4);  // NaN, as is an infinity times 0
      for_each_target([&](const std::string& target) {
        SCOPED_TRACE(fmt::format("{} v={} rows {}", target, name(format.value), rows));
        const std::vector<float> out = scene.run(Stream{&pool_of(2)});
        const std::size_t earlier = (rows - 1) * 3 * 64;
        EXPECT_EQ(compare({out.begin(), out.begin() + earlier}, exact), "");
        EXPECT_TRUE(std::isnan(out[earlier]));
      });
    }
  }
}

// The comparison must see each of these mistakes, else it could not see a kernel making them.
class PagedAttentionMistake : public testing::Test {
 protected:
  AttentionScene scene_{{.format = {DType::f16, DType::e4m3},
                         .heads = 6,
                         .kv_heads = 2,
                         .sequences = {{2, 75}},
                         .seed = 700}};
  const AttentionScene::Exact exact_ = scene_.exact();
  void SetUp() override { ASSERT_EQ(compare(scene_.run(stream()), exact_), ""); }
  Stream stream() { return Stream{&pool_of(2)}; }
  void expect_seen() { EXPECT_NE(compare(scene_.run(stream()), exact_), ""); }
};

TEST_F(PagedAttentionMistake, TwoPagesSwappedIsSeen) {
  std::swap(scene_.tables_[0][3], scene_.tables_[0][4]);  // the last is partly filled
  expect_seen();
}

TEST_F(PagedAttentionMistake, ADroppedScaleIsSeen) {
  scene_.value_scales_[1] = 1.0f;
  expect_seen();
}

TEST_F(PagedAttentionMistake, AContextShortByOneIsSeen) {
  scene_.sequences_[0].context -= 1;
  expect_seen();
}

TEST_F(PagedAttentionMistake, AContextLongByOneIsSeen) {
  scene_.sequences_[0].context += 1;
  expect_seen();
}

TEST_F(PagedAttentionMistake, AWrongHeadMapIsSeen) {
  // Query heads 2 and 3 exchanged: what h % kv_heads instead of h / group would do to one pair.
  for (std::int64_t row = 0; row < 2; ++row) {
    float* q = scene_.q_.data() + row * 6 * 64;
    std::swap_ranges(q + 2 * 64, q + 3 * 64, q + 3 * 64);
  }
  std::vector<float> out = scene_.run(stream());
  for (std::int64_t row = 0; row < 2; ++row) {
    float* o = out.data() + row * 6 * 64;
    std::swap_ranges(o + 2 * 64, o + 3 * 64, o + 3 * 64);
  }
  EXPECT_NE(compare(out, exact_), "");
}

TEST_F(PagedAttentionMistake, KeysReadAsValuesIsSeen) {
  const std::size_t bytes = std::min(scene_.keys_.size(), scene_.values_.size());
  std::memcpy(scene_.values_.data(), scene_.keys_.data(), bytes);
  expect_seen();
}

TEST_F(PagedAttentionMistake, AShiftedCausalMaskIsSeen) {
  scene_.sequences_[0].rows = 1;  // row 0 then sees what row 1 should
  scene_.rows_ = 2;
  std::vector<float> out = scene_.run(stream());
  out.resize(6 * 64);
  EXPECT_NE(compare(out, exact_), "");
}

TEST(AttentionState, MergeJoinsPartsAsOneSoftmaxWould) {
  // Parts: scores {0, 1} with values {1, 2}, and {3} with {5}.
  float a_memory[] = {1.0f, 1.5f, 0.5f * 1 + 2};
  float b_memory[] = {3.0f, 1.0f, 5.0f};
  const auto a = AttentionState::at(a_memory, 1);
  merge(a, AttentionState::at(b_memory, 1), 1, 1);
  EXPECT_FLOAT_EQ(a.out[0] / a.sum[0], (1 * 1 + 2 * 2 + 8 * 5) / (1.0f + 2 + 8));
}

TEST(AttentionState, MergeWithAnEmptyPartChangesNothing) {
  const float lowest = -std::numeric_limits<float>::infinity();
  float full[] = {1.0f, 2.0f, 3.0f};
  float empty[] = {lowest, 0.0f, 0.0f};
  merge(AttentionState::at(full, 1), AttentionState::at(empty, 1), 1, 1);
  EXPECT_EQ(full[0], 1.0f);
  EXPECT_EQ(full[1], 2.0f);
  EXPECT_EQ(full[2], 3.0f);
  merge(AttentionState::at(empty, 1), AttentionState::at(full, 1), 1, 1);
  EXPECT_EQ(empty[2] / empty[1], 1.5f);
}

TEST(PagedAttention, RefusesAHeadDimensionItHasNoKernelFor) {
  AttentionScene scene({.heads = 1, .kv_heads = 1, .head_dim = 272, .sequences = {{1, 4}}});
  EXPECT_THROW(scene.run(Stream{&pool_of(1)}), Error);
}

}  // namespace
}  // namespace keel
