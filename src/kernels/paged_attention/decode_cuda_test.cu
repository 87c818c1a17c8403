#include <gtest/gtest.h>

#include "device/launch.cuh"
#include "kernels/paged_attention/decode_cuda.h"
#include "kernels/paged_attention/decode_cuda_scene.h"

namespace keel::cuda {
namespace {

class DecodeAttentionCuda : public testing::Test {
 protected:
  void SetUp() override {
    const FoundDevice device = find_device();
    if (!device.usable) GTEST_SKIP() << device.reason;
  }
};

std::vector<std::pair<DType, KvFormat>> every_format() {
  std::vector<std::pair<DType, KvFormat>> formats;
  for (const DType dtype : {DType::f16, DType::bf16}) {
    for (const DType key : {dtype, DType::e4m3}) {
      for (const DType value : {dtype, DType::e4m3, DType::u4}) formats.push_back({dtype, {key, value}});
    }
  }
  return formats;
}

const std::vector<std::int32_t> kLengths = {1, 15, 16, 17, 0, 63, 64, 65, 127, 0, 0, 128, 129, 300};

void expect_exact(const DecodeShape& shape) {
  SCOPED_TRACE(describe(shape));
  DecodeScene scene(shape);
  DeviceScene device(scene);
  const auto answer = scene.exact();
  const auto out = device.run();
  EXPECT_EQ(scene.compare(out, answer), "");
  device.poison();
  EXPECT_EQ(device.run(), out) << "a second run differs";
}

TEST_F(DecodeAttentionCuda, MatchesTheExactAnswerForEveryFormatDimensionAndGrouping) {
  std::uint64_t seed = 100;
  for (const auto& [dtype, format] : every_format()) {
    for (const int dim : {64, 128}) {
      for (int group = 1; group <= 16; ++group) {
        expect_exact({.dtype = dtype, .format = format, .dim = dim, .group = group, .contexts = kLengths, .seed = seed++});
      }
    }
  }
}

TEST_F(DecodeAttentionCuda, MatchesForSeveralRowsASequence) {
  std::uint64_t seed = 10'000;
  for (const auto& [dtype, format] : every_format()) {
    for (int rows = 2; rows <= 8; ++rows) {
      for (const int group : {1, 4, 5, 16}) {
        expect_exact({.dtype = dtype,
                      .format = format,
                      .dim = seed % 2 ? 64 : 128,
                      .kv_heads = 1,
                      .group = group,
                      .rows = rows,
                      .contexts = {8, 9, 0, 15, 16, 17, 24, 5, 129, 250},
                      .seed = seed++});
      }
    }
  }
}

TEST_F(DecodeAttentionCuda, CutsLongContextsWithoutLosingPrecision) {
  std::uint64_t seed = 400;
  for (const auto& [dtype, format] : every_format()) {
    expect_exact({.dtype = dtype, .format = format, .dim = seed % 2 ? 64 : 128, .kv_heads = 1, .contexts = {8191, 3, 8192, 0, 8193}, .seed = seed++});
  }
  expect_exact({.kv_heads = 3, .group = 2, .contexts = {40000}, .seed = 500});
  expect_exact({.kv_heads = 1, .contexts = std::vector<std::int32_t>(700, 33), .seed = 501});
  expect_exact({.kv_heads = 8, .contexts = std::vector<std::int32_t>(40, 300), .seed = 502});
  // Equal contexts, which the plan cuts evenly: several units a CTA, one, a share of one.
  expect_exact({.kv_heads = 8, .contexts = std::vector<std::int32_t>(32, 700), .seed = 503});
  expect_exact({.kv_heads = 8, .contexts = std::vector<std::int32_t>(16, 1000), .seed = 504});
  expect_exact({.kv_heads = 4, .contexts = {6001, 0, 6010}, .seed = 505});
}

TEST_F(DecodeAttentionCuda, ServesSequencesThatSharePages) {
  expect_exact({.contexts = {200, 17, 333, 200, 64}, .seed = 600, .share_pages = true});
}

TEST_F(DecodeAttentionCuda, SurvivesAdversarialScoresAndValues) {
  std::uint64_t seed = 700;
  for (const auto& [dtype, format] : every_format()) {
    const DecodeShape shape{.dtype = dtype, .format = format, .kv_heads = 1, .contexts = {1200}, .seed = seed++};
    const auto expect = [&](const char* what, const std::function<void(DecodeScene&, std::int64_t page, int slot, int token, int dim)>& change) {
      SCOPED_TRACE(describe(shape) + ": " + what);
      DecodeScene scene(shape);
      std::fill(scene.q_.begin(), scene.q_.end(), to_bits16(dtype, 1));
      for (int token = 0; token < 1200; ++token) {
        for (int dim = 0; dim < shape.dim; ++dim) change(scene, scene.page_of(0, token / 16), token % 16, token, dim);
      }
      DeviceScene device(scene);
      EXPECT_EQ(scene.compare(device.run(), scene.exact()), "");
    };
    for (const int huge : {0, 15, 600, 1199}) {
      expect("one huge key", [&](DecodeScene& scene, std::int64_t page, int slot, int token, int dim) {
        if (token == huge) scene.set_key(page, 0, slot, dim, 64);  // a score of several hundred among scores near 0
      });
    }
    expect("all scores equal", [](DecodeScene& scene, std::int64_t page, int slot, int, int dim) { scene.set_key(page, 0, slot, dim, 0.25f); });
    expect("scores over 88", [](DecodeScene& scene, std::int64_t page, int slot, int token, int dim) {
      scene.set_key(page, 0, slot, dim, dim == 0 ? 16.0f + token % 7 / 16.0f : 16);
    });
    expect("rising scores", [](DecodeScene& scene, std::int64_t page, int slot, int token, int dim) {
      scene.set_key(page, 0, slot, dim, static_cast<float>(token) / 64);
    });
    expect("very negative scores", [](DecodeScene& scene, std::int64_t page, int slot, int token, int dim) {
      scene.set_key(page, 0, slot, dim, dim % 2 ? -100.0f : -64.0f - token % 3);
    });
    expect("values at the ends of their range", [&](DecodeScene& scene, std::int64_t page, int slot, int token, int dim) {
      scene.set_value(page, 0, slot, dim, format.value == DType::u4 ? (token + dim) % 2 * 15.0f : (token + dim) % 2 ? 448.0f : -448.0f);
    });
    expect("a maximum with many small weights", [](DecodeScene& scene, std::int64_t page, int slot, int token, int dim) {
      scene.set_key(page, 0, slot, dim, token == 0 ? 1.25f : 0.0f);  // the others weigh e^-14 each
    });
    if (format.value == DType::u4) {
      expect("scales from the least to the largest f16", [](DecodeScene& scene, std::int64_t page, int slot, int token, int) {
        const float scales[] = {0, 0x1p-24f, 0x1p-14f, 0.5f, 1000, 4000};
        const std::uint16_t two[2] = {to_bits16(DType::f16, scales[token % 6]), to_bits16(DType::f16, -scales[(token + 1) % 6])};
        std::memcpy(scene.value_parameters(page, 0, slot), two, 4);
      });
    }
  }
}

// Each as the kernel would see it: in what it is given, or in its plan.
TEST_F(DecodeAttentionCuda, CheckerCatchesInjectedFaults) {
  std::uint64_t seed = 800;
  for (const auto& [dtype, format] : every_format()) {
    DecodeScene scene({.dtype = dtype, .format = format, .dim = seed % 2 ? 64 : 128, .contexts = {600, 100, 33}, .seed = seed});
    ++seed;
    SCOPED_TRACE(describe(scene.shape_));
    const auto answer = scene.exact();
    ASSERT_EQ(scene.compare(DeviceScene(scene).run(), answer), "");
    const auto expect_caught = [&](const char* what, const std::function<void(DecodeScene&)>& fault) {
      DecodeScene faulty = scene;
      fault(faulty);
      EXPECT_NE(scene.compare(DeviceScene(faulty).run(), answer), "") << what;
    };
    expect_caught("two page ids exchanged between sequences", [](DecodeScene& s) { std::swap(s.page_of(0, 3), s.page_of(1, 2)); });
    expect_caught("a last page exchanged within a sequence", [](DecodeScene& s) { std::swap(s.page_of(0, 0), s.page_of(0, 37)); });
    expect_caught("a token too few", [](DecodeScene& s) { s.contexts_[0] -= 1; });
    expect_caught("a token too many", [](DecodeScene& s) { s.contexts_[1] += 1; });
    expect_caught("one value byte", [](DecodeScene& s) { s.value_row(s.page_of(2, 1), 1, 0)[9] ^= bits(s.shape_.format.value) == 16 ? 0x40 : 0x08; });
    expect_caught("keys read as values", [](DecodeScene& s) {
      for (std::size_t i = 0; i < s.values_.size(); ++i) s.values_[i] = s.keys_[i % s.keys_.size()];
    });
    const auto square = [](std::vector<float>& scales) {
      for (float& scale : scales) scale *= scale;
    };
    if (format.key == DType::e4m3) {
      expect_caught("no key scale", [](DecodeScene& s) { s.key_scales_ = {1, 1}; });
      expect_caught("a key scale twice", [&](DecodeScene& s) { square(s.key_scales_); });
    }
    if (format.value == DType::e4m3) {
      expect_caught("no value scale", [](DecodeScene& s) { s.value_scales_ = {1, 1}; });
      expect_caught("a value scale twice", [&](DecodeScene& s) { square(s.value_scales_); });
    }
    if (format.key == DType::e4m3 || format.value == DType::e4m3) {
      expect_caught("scales of keys and values exchanged", [](DecodeScene& s) { std::swap(s.key_scales_, s.value_scales_); });
    }
    if (format.value == DType::u4) {
      const auto at_parameters = [](DecodeScene& s, const std::function<void(std::uint16_t*)>& change) {
        for (int slot = 0; slot < 16; ++slot) {
          std::uint16_t two[2];
          std::memcpy(two, s.value_parameters(s.page_of(2, 1), 0, slot), 4);
          change(two);
          std::memcpy(s.value_parameters(s.page_of(2, 1), 0, slot), two, 4);
        }
      };
      expect_caught("a token's scale twice", [&](DecodeScene& s) {
        at_parameters(s, [](std::uint16_t* two) {
          const double scale = from_bits16(DType::f16, two[0]);
          two[0] = to_bits16(DType::f16, static_cast<float>(scale * scale));
        });
      });
      expect_caught("a token's scale and zero exchanged", [&](DecodeScene& s) { at_parameters(s, [](std::uint16_t* two) { std::swap(two[0], two[1]); }); });
    }
    EXPECT_NE(scene.compare(DeviceScene(scene).run(), scene.exact(true)), "") << "heads grouped as h % kv_heads";

    DeviceScene device(scene);
    decode_attention_plan(device.stream_, device.args());
    ASSERT_TRUE(device.drop_splits()) << "no unit is cut between CTAs";
    decode_attention(device.stream_, device.args());
    EXPECT_NE(scene.compare(device.read(), answer), "") << "a unit's last split dropped";
    EXPECT_EQ(scene.compare(device.run(), answer), "") << "the plan after it";

    const StepGraph graph(device.stream_, [&] { device.launch(); });
    DecodeScene next = scene;
    std::swap(next.page_of(0, 3), next.page_of(1, 2));
    graph.launch(device.stream_);
    EXPECT_NE(next.compare(device.read(), next.exact()), "") << "a stale page table in a replay";
    device.set_tables(next.table_, next.contexts_);
    graph.launch(device.stream_);
    EXPECT_EQ(next.compare(device.read(), next.exact()), "") << "a page table that is not stale";
  }
}

// Copies of a scene's pages far into pools of 4.6 GB and more: ids whose offsets pass 2^31 and 2^32 bytes, and 2^31 elements.
TEST_F(DecodeAttentionCuda, ReadsPagesPastTwoGigabytes) {
  constexpr std::int64_t kPages = 140'000;
  for (const KvFormat& format : {KvFormat{DType::f16, DType::e4m3}, KvFormat{DType::e4m3, DType::f16}, KvFormat{DType::f16, DType::u4}}) {
    const DecodeScene scene({.format = format, .kv_heads = 8, .group = 2, .contexts = {40, 17, 300}, .seed = 970});
    SCOPED_TRACE(describe(scene.shape_));
    DeviceScene device(scene);
    const std::int64_t key_bytes = scene.layout_.key_page_bytes(), value_bytes = scene.layout_.value_page_bytes();
    DeviceBuffer<std::byte> keys(kPages * key_bytes, "keys"), values(kPages * value_bytes, "values");
    check(cudaMemsetAsync(keys.data(), 0xff, keys.bytes(), device.stream_), "poison");
    check(cudaMemsetAsync(values.data(), 0xff, values.bytes(), device.stream_), "poison");
    const std::int64_t bases[] = {65'536, 131'072, kPages - scene.pages_, 0};
    const auto far = [&](std::int64_t page) { return bases[page % 4] + page; };
    for (std::int64_t page = 0; page < scene.pages_; ++page) {
      check(cudaMemcpyAsync(keys.data() + far(page) * key_bytes, device.keys_.data() + page * key_bytes, key_bytes, cudaMemcpyDeviceToDevice, device.stream_), "a page");
      check(cudaMemcpyAsync(values.data() + far(page) * value_bytes, device.values_.data() + page * value_bytes, value_bytes, cudaMemcpyDeviceToDevice, device.stream_), "a page");
    }
    std::vector<std::int32_t> table = scene.table_;
    for (std::int32_t& page : table) {
      if (page < scene.pages_) page = static_cast<std::int32_t>(far(page));
    }
    device.set_tables(table, scene.contexts_);
    DecodeAttentionArgs args = device.args();
    args.kv.keys = keys.data();
    args.kv.values = values.data();
    decode_attention_plan(device.stream_, args);
    decode_attention(device.stream_, args);
    EXPECT_EQ(scene.compare(device.read(), DecodeScene(scene).exact()), "");
  }
}

TEST_F(DecodeAttentionCuda, ReplaysACapturedLaunchForOtherContextsAndPages) {
  for (const auto& [dtype, format] : every_format()) {
    DecodeScene scene({.dtype = dtype, .format = format, .contexts = {3000, 40, 17, 1, 513, 16}, .seed = 900});
    DeviceScene device(scene);
    const StepGraph graph(device.stream_, [&] { device.launch(); });
    const std::vector<std::vector<std::int32_t>> steps = {
        {3000, 40, 17, 1, 513, 16}, {1, 0, 0, 0, 0, 0}, {2999, 33, 0, 1, 500, 0}, {0, 0, 0, 0, 0, 0}, {48, 40, 2, 0, 16, 16}};
    for (const auto& contexts : steps) {
      DecodeScene now = scene;
      now.contexts_ = contexts;
      for (std::int64_t i = 0; i < 60; ++i) std::swap(now.page_of(0, i), now.page_of(0, 186 - i));
      device.set_tables(now.table_, now.contexts_);
      device.poison();
      graph.launch(device.stream_);
      const auto out = device.read();
      EXPECT_EQ(now.compare(out, now.exact()), "");
      for (int replay = 0; replay < 100; ++replay) {
        graph.launch(device.stream_);
        ASSERT_EQ(device.read(), out) << "replay " << replay;
      }
    }
  }
}

// As a decode step's cache write: lets the next kernel start, takes its time, then writes queries and the pages of the newest tokens.
__global__ void write_late(const std::uint8_t* from, std::uint8_t* to, const std::int64_t* ranges, int count, bool wait) {
  wait_for_previous_kernel();
  allow_next_kernel();
  if (wait) __nanosleep(50'000);
  for (int range = blockIdx.x; range < count; range += gridDim.x) {
    for (std::int64_t at = ranges[2 * range] + threadIdx.x; at < ranges[2 * range + 1]; at += blockDim.x) to[at] = from[at];
  }
}

// The test's copy of one array: what is being written is poisoned before each launch.
struct LateWrites {
  DeviceBuffer<std::uint8_t> fresh, poison;
  DeviceBuffer<std::int64_t> ranges;
  std::uint8_t* to;

  LateWrites(cudaStream_t stream, std::uint8_t* live, std::int64_t bytes, const std::vector<std::int64_t>& of)
      : fresh(bytes, "fresh"), poison(bytes, "poison"), ranges(of.size(), "ranges"), to(live) {
    check(cudaMemcpyAsync(fresh.data(), live, bytes, cudaMemcpyDeviceToDevice, stream), "fresh");
    check(cudaMemsetAsync(poison.data(), 0xff, bytes, stream), "poison");
    copy_to_device(stream, ranges.data(), of.data(), of.size());
    check(cudaStreamSynchronize(stream), "late writes");
  }
  void launch(cudaStream_t stream, bool poisoned) {
    const int count = static_cast<int>(ranges.size() / 2);
    cuda::launch("late writes", write_late, stream, 4, 256, 0, Start::after_previous, poisoned ? poison.data() : fresh.data(), to,
                 ranges.data(), count, !poisoned);
  }
};

TEST_F(DecodeAttentionCuda, StartsEarlyWithoutReadingWhatIsStillBeingWritten) {
  for (const int rows : {1, 8}) {
    for (const KvFormat& format : {KvFormat{DType::f16, DType::f16}, KvFormat{DType::f16, DType::e4m3}, KvFormat{DType::e4m3, DType::u4}}) {
      DecodeScene scene({.format = format, .rows = rows, .contexts = {3000, 40, 17, 513, 16, 6000}, .seed = 950});
      DeviceScene device(scene);
      const auto answer = scene.exact();
      std::vector<std::int64_t> keys, values;
      for (std::size_t sequence = 0; sequence < scene.contexts_.size(); ++sequence) {
        const int context = scene.contexts_[sequence];
        for (int page = (context - rows) / 16; page <= (context - 1) / 16; ++page) {
          const std::int64_t id = scene.page_of(sequence, page);
          for (int end = 0; end < 2; ++end) {
            keys.push_back((id + end) * scene.layout_.key_page_bytes());
            values.push_back((id + end) * scene.layout_.value_page_bytes());
          }
        }
      }
      LateWrites q(device.stream_, reinterpret_cast<std::uint8_t*>(device.q_.data()), device.q_.bytes(), {0, device.q_.bytes()});
      LateWrites k(device.stream_, device.keys_.data(), device.keys_.bytes(), keys);
      LateWrites v(device.stream_, device.values_.data(), device.values_.bytes(), values);
      for (LateWrites* last : {&q, &k, &v}) {
        const StepGraph graph(device.stream_, [&] {
          decode_attention_plan(device.stream_, device.args());
          last->launch(device.stream_, true);
          last->launch(device.stream_, false);
          decode_attention(device.stream_, device.args(true));
        });
        device.poison();
        graph.launch(device.stream_);
        const auto out = device.read();
        EXPECT_EQ(scene.compare(out, answer), "");
        for (int replay = 0; replay < 100; ++replay) {
          graph.launch(device.stream_);
          ASSERT_EQ(device.read(), out) << "replay " << replay;
        }
      }
    }
  }
}

TEST_F(DecodeAttentionCuda, EarlyLaunchesInSequenceGiveTheSameBytes) {
  const DecodeScene scene({.contexts = {8192, 40, 17, 0, 513, 16, 3000}, .seed = 960});
  DeviceScene device(scene);
  const auto out = device.run();
  const StepGraph graph(device.stream_, [&] {
    for (int launch = 0; launch < 50; ++launch) decode_attention(device.stream_, device.args(true));
  });
  for (int replay = 0; replay < 100; ++replay) {
    graph.launch(device.stream_);
    ASSERT_EQ(device.read(), out) << "replay " << replay;
  }
}

TEST(DecodeAttentionCudaContract, RefusesByNameWhatItDoesNotServe) {
  const auto refusal = [](KvFormat format, KvGeometry geometry, DType dtype, std::int64_t heads, PageOrder order = PageOrder::cuda) {
    return decode_attention_refusal(KvLayout(format, geometry, order), dtype, heads);
  };
  const KvGeometry served{1, 8, 128, 16};
  EXPECT_EQ(refusal({DType::f16, DType::e4m3}, served, DType::f16, 32), "");
  EXPECT_EQ(refusal({DType::bf16, DType::u4}, served, DType::bf16, 128), "");
  EXPECT_EQ(refusal({DType::f16, DType::e4m3}, served, DType::bf16, 32),
            "decode attention on CUDA: keys in f16 with queries in bf16, wanted the queries' type or fp8_e4m3");
  EXPECT_EQ(refusal({DType::e4m3, DType::f32}, served, DType::f16, 32),
            "decode attention on CUDA: values in f32 with queries in f16, wanted the queries' type, fp8_e4m3 or u4");
  EXPECT_EQ(refusal({DType::f16, DType::f16}, {1, 8, 96, 16}, DType::f16, 32), "decode attention on CUDA: head dim 96, wanted 64 or 128");
  EXPECT_EQ(refusal({DType::f16, DType::f16}, served, DType::f32, 32), "decode attention on CUDA: queries in f32, wanted f16 or bf16");
  EXPECT_EQ(refusal({DType::f16, DType::f16}, served, DType::f16, 200),
            "decode attention on CUDA: 200 heads over 8 KV heads, wanted a whole ratio up to 16");
  EXPECT_EQ(refusal({DType::f16, DType::f16}, served, DType::f16, 32, PageOrder::cpu),
            "decode attention on CUDA: pages in the CPU's order, wanted CUDA's");
}

TEST(DecodeAttentionCudaContract, TestsOwnIndexerAgreesWithTheLayout) {
  for (const DType type : {DType::f16, DType::e4m3, DType::u4}) {
    for (const int dim : {64, 128}) {
      DecodeScene scene({.format = {type == DType::u4 ? DType::f16 : type, type}, .dim = dim, .contexts = {16}});
      for (int slot = 0; slot < 16; ++slot) {
        for (int d = 0; d < dim; ++d) {
          EXPECT_EQ(scene.value_row(0, 1, slot) + scene.byte_of(type, slot, d) - scene.values_.data(),
                    scene.layout_.value_element(1, slot, d) * bits(type) / 8);
        }
      }
    }
  }
}

}  // namespace
}  // namespace keel::cuda
