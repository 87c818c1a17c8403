// Logits and greedy tokens of small random models, against Hugging Face transformers in FP32 (tools/reference/hf_logits.py).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/error.h"
#include "kernels/matmul/quantized.h"
#include "test_device.h"

namespace keel {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

const fs::path kModels = fs::path(KEEL_SOURCE_DIR) / "tests/golden/hf";

// Of the logits' range: what FP32 sums in another order may give. Measured: at most 3.1e-6.
constexpr double kFp32Bound = 2e-4;

// CUDA computes in the model's 16-bit type (f32 and quantised models in f16) with f32 sums, and caches in that type.
bool on_cuda() { return test_device() == Device::cuda; }
DType device_type(const ModelConfig& config) { return config.dtype == DType::bf16 ? DType::bf16 : DType::f16; }

// On the CPU a product with quantised weights rounds its activations once to 16-bit integers, within 2^-15 of the largest of a
// run of 32: half that on average, in some ten products, which the narrower range of a quantised model's logits makes forty.
// Measured: at most 1.2e-4.
constexpr double kIntegerBound = 40 * 0x1p-16;

// What rounding each activation, weight and cached element once to 11 or 8 bits may give, through one or two layers: some
// ten roundings of half an ulp each, or forty in a quantised model, whose range is narrower beside its weights.
double bound(const LoadedModel& model) {
  const ModelConfig& config = model.config;
  if (!on_cuda()) return is_quantized(model.weights.layers[0].q.type) ? kIntegerBound : kFp32Bound;
  return 40 * (device_type(config) == DType::bf16 ? 0x1p-11 : 0x1p-12);
}
KvFormat exact_format(const ModelConfig& config) {
  if (!on_cuda()) return {DType::f32, DType::f32};
  return {device_type(config), device_type(config)};
}

std::vector<float> floats_of_base64(const std::string& text) {
  std::string bytes;
  std::uint32_t bits = 0;
  int count = 0;
  constexpr std::string_view kAlphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  for (const char c : text) {
    if (c == '=') break;
    bits = bits << 6 | static_cast<std::uint32_t>(kAlphabet.find(c));
    if ((count += 6) >= 8) bytes += static_cast<char>(bits >> (count -= 8) & 0xFF);
  }
  std::vector<float> floats(bytes.size() / sizeof(float));
  std::memcpy(floats.data(), bytes.data(), floats.size() * sizeof(float));
  return floats;
}

// One sequence over a cache of its own.
class CachedSequence {
 public:
  CachedSequence(const LoadedModel& model, KvFormat format)
      : decoder_(model, KvLayout(format, {model.config.layers, model.config.kv_heads, model.config.head_dim, kPage}, page_order(test_device())),
                 kPages, {.max_tokens = kPages * kPage, .max_sequences = 1, .max_logit_rows = kPages * kPage, .max_context = kPages * kPage}) {
    // Out of order, so that a slot taken for a position is noticed.
    for (std::int64_t i = 0; i < kPages; ++i) pages_.insert(pages_.begin(), *decoder_.pool.allocate());
  }

  // Logits of the given tokens, [tokens, vocabulary], fed after all before.
  std::vector<float> feed(std::span<const std::int32_t> tokens) {
    StepRows rows;
    const auto count = static_cast<std::int64_t>(tokens.size());
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t position = length_ + i;
      rows.tokens.push_back(tokens[static_cast<std::size_t>(i)]);
      rows.positions.push_back(static_cast<std::int32_t>(position));
      rows.slots.push_back(pages_[static_cast<std::size_t>(position / kPage)] * kPage + position % kPage);
      rows.logit_rows.push_back(i);
    }
    length_ += count;
    rows.sequences.push_back({.first_row = 0, .rows = count, .context = length_, .pages = pages_.data()});
    const auto logits = decoder_.forward(rows);
    return {logits.begin(), logits.end()};
  }

  // In pieces of `chunk` tokens.
  std::vector<float> feed(std::span<const std::int32_t> tokens, std::size_t chunk) {
    std::vector<float> all;
    for (std::size_t i = 0; i < tokens.size(); i += chunk) {
      const std::vector<float> part = feed(tokens.subspan(i, std::min(chunk, tokens.size() - i)));
      all.insert(all.end(), part.begin(), part.end());
    }
    return all;
  }

  RouteCounts routes() const { return decoder_.executor->routes(); }

 private:
  static constexpr std::int64_t kPage = 16, kPages = 6;
  TestDecoder decoder_;
  std::vector<PageId> pages_;
  std::int64_t length_ = 0;
};

class Parity : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    const fs::path folder = kModels / GetParam();
    std::ifstream stream(folder / "golden.json");
    golden_ = Json::parse(stream);
    const fs::path gguf = folder / "model.gguf";
    model_ = load_model(find_model((fs::exists(gguf) ? gguf : folder).string()), {});
    prompt_ = golden_["prompt"].get<std::vector<std::int32_t>>();
    wanted_ = floats_of_base64(golden_["logits"]);
    range_ = golden_["range"];
    if (on_cuda()) {
      try {
        CachedSequence(model_, exact_format(model_.config));
      } catch (const Error& refusal) {
        GTEST_SKIP() << refusal.what();
      }
    }
    ASSERT_EQ(golden_["vocabulary"], model_.config.vocabulary);
    ASSERT_EQ(wanted_.size(), golden_["last_positions"].get<std::size_t>() * static_cast<std::size_t>(model_.config.vocabulary));
  }

  // The largest difference from the reference, as a part of the logits' range.
  double error_of(const std::vector<float>& logits) const {
    EXPECT_GE(logits.size(), wanted_.size());
    double largest = 0;
    const std::size_t offset = logits.size() - wanted_.size();
    for (std::size_t i = 0; i < wanted_.size(); ++i) {
      const double error = std::abs(static_cast<double>(logits[offset + i]) - wanted_[i]);
      largest = std::isfinite(error) ? std::max(largest, error) : INFINITY;
    }
    return largest / range_;
  }

  Json golden_;
  LoadedModel model_;
  std::vector<std::int32_t> prompt_;
  std::vector<float> wanted_;
  double range_ = 0;
};

TEST_P(Parity, PrefillGivesTheReferencesLogits) {
  const double error = error_of(CachedSequence(model_, exact_format(model_.config)).feed(prompt_));
  RecordProperty("error", fmt::format("{:.3g}", error));
  if (on_cuda()) std::printf("%s: %.3g of the logits' range\n", GetParam().c_str(), error);
  EXPECT_LE(error, bound(model_));
}

// The bound is no formality: two tokens of the prompt in each other's place break it.
TEST_P(Parity, SwappedTokensAreNoticed) {
  std::vector<std::int32_t> swapped = prompt_;
  const auto other = std::find_if(swapped.begin() + 1, swapped.end(), [&](std::int32_t id) { return id != swapped[0]; });
  std::iter_swap(swapped.begin(), other);
  EXPECT_GT(error_of(CachedSequence(model_, exact_format(model_.config)).feed(swapped)), 2 * bound(model_));
}

TEST_P(Parity, DecodeAndChunksGiveThePrefillsLogits) {
  EXPECT_LE(error_of(CachedSequence(model_, exact_format(model_.config)).feed(prompt_, 1)), bound(model_));
  EXPECT_LE(error_of(CachedSequence(model_, exact_format(model_.config)).feed(prompt_, 7)), bound(model_));
}

// Behind a cached prefix, and on CUDA long enough to be gathered.
TEST_P(Parity, AChunkBehindACachedPrefixGivesThePrefillsLogits) {
  constexpr std::size_t kChunk = 32;
  CachedSequence sequence(model_, exact_format(model_.config));
  const std::span<const std::int32_t> prompt = prompt_;
  sequence.feed(prompt.first(prompt.size() - kChunk));
  EXPECT_LE(error_of(sequence.feed(prompt.last(kChunk))), bound(model_));
  if (!on_cuda()) return;
  const RouteCounts routes = sequence.routes();
  const auto gathered = routes.find("gather: cached prefix or chunk");
  ASSERT_NE(gathered, routes.end()) << routes.rbegin()->first;
  EXPECT_EQ(gathered->second, static_cast<std::int64_t>(kChunk));
}

// On CUDA another token may win where 16-bit rounding covers the lead; the reference's tokens are fed on.
TEST_P(Parity, GreedyTokensAreTheReferences) {
  const auto wanted = golden_["greedy"].get<std::vector<std::int32_t>>();
  const double tie = on_cuda() ? 2 * bound(model_) * range_ : 0;
  CachedSequence sequence(model_, exact_format(model_.config));
  std::vector<float> logits = sequence.feed(prompt_);
  const auto vocabulary = static_cast<std::ptrdiff_t>(model_.config.vocabulary);
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    const auto last = logits.end() - vocabulary;
    EXPECT_LE(*std::max_element(last, logits.end()) - last[wanted[i]], tie) << "token " << i;
    logits = sequence.feed(std::span(&wanted[i], 1));
  }
}

// A cache type with roundoff u moves each key and value by at most u of itself. These models have one or two layers, norms
// near 1 and matrices that keep magnitudes, so the logits move by a small multiple of u: 32 covers two layers of scores (a sum
// of D products through the exponential) and values.
TEST_P(Parity, SixteenBitCachesStayNear) {
  if (on_cuda()) GTEST_SKIP() << "CUDA caches in the model's own 16-bit type: the other tests";
  constexpr double kGrowth = 32;
  for (const auto& [type, roundoff] : {std::pair{DType::bf16, 0x1p-9}, std::pair{DType::f16, 0x1p-12}}) {
    const double error = error_of(CachedSequence(model_, {type, type}).feed(prompt_));
    RecordProperty(std::string(name(type)), fmt::format("{:.3g}", error));
    EXPECT_LE(error, kGrowth * roundoff + bound(model_)) << name(type);
    EXPECT_GT(error, 0) << name(type);
  }
}

std::vector<std::string> model_names() {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(kModels)) names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

INSTANTIATE_TEST_SUITE_P(Models, Parity, testing::ValuesIn(model_names()), [](const auto& info) {
  std::string name = info.param;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

TEST(ParityModels, AreAllThere) { EXPECT_EQ(model_names().size(), 32u); }

}  // namespace
}  // namespace keel
