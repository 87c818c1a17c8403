// The scan of models whose weak spot is known: models/tiny, its fragile twins, and a copy whose values lie where E4M3 is coarse.
#include "lab/scan/scan.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <limits>
#include <list>
#include <map>

#include "base/error.h"
#include "base/option_error.h"
#include "base/random.h"
#include "kernels/matmul/matmul.h"
#include "lab/quality/builtin_prose.h"
#include "lab/scan/scan_report.h"
#include "lab/xml_problem.h"
#include "text/tokenizer.h"

namespace keel {
namespace {

const std::string kTiny = std::string(KEEL_SOURCE_DIR) + "/models/tiny";

LoadedModel tiny(float key_bias = 0) {
  LoadOptions options;
  if (key_bias != 0) options.key_bias_offsets = {{31, key_bias}, {30, -key_bias}};
  return load_model(find_model(kTiny), options);
}

constexpr ProbePlan kShort{.documents = 5, .tokens = 97, .layer_documents = 1, .layer_tokens = 49};

const ProbeText& prose() {
  static const ProbeText text = [] {
    const auto tokenizer = load_tokenizer(kTiny);
    return cut_documents("prose", tokenizer->encode(builtin_prose().substr(0, 60'000), {}), {}, kShort);
  }();
  return text;
}

Scan scan_of(const LoadedModel& model) {
  WorkerPool workers(2);
  return {.model = "MODEL", .weights = model.weights.format, .config = model.config, .biases = scan_weights(model),
          .probe = probe_model(model, prose(), kShort, workers)};
}

// Each twin is scanned once.
const Scan& scan_of_tiny(float key_bias) {
  static std::map<float, Scan> scans;
  if (!scans.contains(key_bias)) scans.emplace(key_bias, scan_of(tiny(key_bias)));
  return scans.at(key_bias);
}

TEST(RoundTrip, IntegersAreTheNearestOfTheirGrid) {
  for (const auto& [rounding, most] : {std::pair{Rounding::int4, 7}, {Rounding::int6, 31}, {Rounding::int8, 127}}) {
    std::vector<float> head(64);
    for (std::size_t i = 0; i < head.size(); ++i) head[i] = static_cast<float>(random_unit(7, i) * 6 - 3);
    const std::vector<float> exact = head;
    float largest = 0;
    for (const float x : exact) largest = std::max(largest, std::abs(x));
    round_trip(rounding, 1, head);
    for (std::size_t i = 0; i < head.size(); ++i) {
      double nearest = std::numeric_limits<double>::infinity();
      for (int code = -most; code <= most; ++code) nearest = std::min(nearest, std::abs(static_cast<double>(largest) / most * code - exact[i]));
      EXPECT_NEAR(std::abs(head[i] - exact[i]), nearest, 1e-6) << name(rounding) << " " << exact[i];
      if (std::abs(exact[i]) == largest) {
        EXPECT_NEAR(head[i], exact[i], 1e-6);
      }
    }
  }
}

TEST(RoundTrip, EightBitFloatsSaturateAndKeepTheirScale) {
  std::vector<float> head{402, 1e6f, -0.3f, 300.7f, 0};
  round_trip(Rounding::e4m3, 1, head);
  EXPECT_EQ(head, (std::vector<float>{416, 448, -0.3125f, 288, 0}));
  head = {402, -1000};
  round_trip(Rounding::e4m3, 4, head);
  EXPECT_EQ(head, (std::vector<float>{416, -1024}));
}

TEST(RoundTrip, WhatHasNoScaleIsLeftAlone) {
  std::vector<float> zeros(16), infinite(16, 1);
  infinite[3] = INFINITY;
  const std::vector<float> before = infinite;
  round_trip(Rounding::int8, 1, zeros);
  round_trip(Rounding::int8, 1, infinite);
  EXPECT_EQ(zeros, std::vector<float>(16));
  EXPECT_EQ(infinite, before);
}

TEST(WeightScan, StepsAreThoseBetweenNeighboursInEightBits) {
  for (int code = 0; code < 126; ++code) {
    const double below = to_float(static_cast<E4m3>(code)), above = to_float(static_cast<E4m3>(code + 1));
    EXPECT_EQ(e4m3_step(below), above - below) << below;
    EXPECT_EQ(e4m3_step(-(below + above) / 2), above - below);
  }
  EXPECT_EQ(e4m3_step(1e9), 32);
}

TEST(WeightScan, PointsAtTheTwinsChannelsWithoutAForward) {
  for (const float bias : {100.0f, 300.0f}) {
    const WeightScan scan = scan_weights(tiny(bias));
    ASSERT_GE(scan.alarms.size(), 32u);
    for (std::size_t i = 0; i < 32; ++i) {
      const KeyChannel& found = scan.alarms[i];
      EXPECT_TRUE(found.channel == 31 || found.channel == 30) << found.channel;
      EXPECT_NEAR(found.bias, found.channel == 31 ? bias : -bias, 7);
      EXPECT_EQ(found.partner, found.channel + 32);
      EXPECT_EQ(found.e4m3_step, bias == 100 ? 8 : 32);
      EXPECT_LT(found.spread, 2);
      EXPECT_GT(found.times_median, 20);
    }
    const auto groups = by_channel(scan.alarms);
    EXPECT_EQ(groups[0].heads, 16);
    EXPECT_EQ(groups[1].heads, 16);
    EXPECT_EQ(groups[0].channel + groups[1].channel, 61);
    EXPECT_EQ(scan.largest.size(), 16u);
  }
  for (const KeyChannel& found : scan_weights(tiny()).alarms) EXPECT_LT(std::abs(found.bias), 10);
}

TEST(WeightScan, ReadsEveryFormatThatLoads) {
  const std::string golden = std::string(KEEL_SOURCE_DIR) + "/tests/golden/hf/";
  int models = 0;
  for (const auto& entry : std::filesystem::directory_iterator(golden)) {
    std::filesystem::path path = entry.path();
    if (std::filesystem::exists(path / "model.gguf")) path /= "model.gguf";
    if (!std::filesystem::exists(path / "config.json") && path.extension() != ".gguf") continue;
    const LoadedModel model = load_model(find_model(path.string()), {});
    const WeightScan scan = scan_weights(model);
    EXPECT_EQ(scan.has_key_bias, model.config.qkv_bias) << path;
    EXPECT_EQ(scan.largest.size(), scan.has_key_bias ? static_cast<std::size_t>(model.config.layers * model.config.kv_heads) : 0u) << path;
    EXPECT_EQ(scan.key_norm > 0, model.config.qk_norm) << path;
    for (const KeyChannel& channel : scan.largest) {
      EXPECT_GT(channel.spread, 0) << path;
      EXPECT_EQ(channel.partner.has_value(), channel.channel < model.config.rotary_dim) << path;
    }
    ++models;
  }
  EXPECT_GE(models, 12);
}

TEST(Probe, AnUnroundedSequenceIsTheUnroundedRun) {
  const LoadedModel model = tiny();
  WorkerPool workers(2);
  Probe probe(model, prose().documents, workers);
  const Variant variants[] = {{}, {.keys = Rounding::int8}};
  const auto found = probe.run(variants, kShort.documents, 96);
  EXPECT_EQ(found[0].kl, 0);
  EXPECT_EQ(found[0].nll_rise, 0);
  EXPECT_EQ(found[0].top1, 1);
  EXPECT_EQ(found[0].targets, 5 * 96);
  EXPECT_NEAR(found[0].nll, probe.native_nll(), 1e-12);
  EXPECT_GT(found[1].kl, 0);
  const auto fewer = probe.run(variants, 2, 50);
  EXPECT_EQ(fewer[0].targets, 100);
  EXPECT_EQ(fewer[0].kl, 0);
  EXPECT_EQ(probe.seen().rows, 5 * 96);
  EXPECT_EQ(probe.seen().keys.elements, 5 * 96 * 8 * 2 * 64);
}

// E4M3's numbers are exact in the 16-bit cache: rounded on their way into it, keys and values are what an FP8 cache holds.
TEST(Probe, RoundsAsTheCacheItselfDoes) {
  const LoadedModel model = tiny(100);
  WorkerPool workers(2);
  Probe probe(model, prose().documents, workers);
  const Variant variants[] = {{.keys = Rounding::e4m3, .values = Rounding::e4m3}, {.values = Rounding::e4m3}};
  const auto found = probe.run(variants, kShort.documents, 96);
  for (const auto& [format, figures] : {std::pair{"k8v8", &found[0]}, std::pair{"k16v8", &found[1]}}) {
    const KvGeometry geometry{model.config.layers, model.config.kv_heads, model.config.head_dim};
    CachedDecode decode(Device::cpu, model, {.format = parse_kv_format(format, DType::f16), .scales = KvScales::unit(geometry)}, {.documents = 5, .tokens = 97}, workers);
    CachedDecode* arms[] = {&decode};
    std::vector<DecodeDocument> documents;
    for (const auto& document : prose().documents) documents.push_back({.tokens = document, .first_target = 1});
    std::vector<double> nll(documents.size());
    decode_side_by_side(arms, documents, 5, workers, [&](std::int64_t document, std::int64_t target, auto rows) {
      nll[document] += nll_of(rows[0], documents[document].tokens[target + 1]) / (5 * 96);
    });
    double mean = 0;
    for (const double one : nll) mean += one;
    EXPECT_NEAR(figures->nll, mean, 1e-5) << format;
  }
}

TEST(Probe, ALayerAloneIsRoundedAlone) {
  const LoadedModel model = tiny(300);
  WorkerPool workers(2);
  const auto run = [&](std::vector<Variant> variants) {
    Probe probe(model, prose().documents, workers);
    return probe.run(variants, kShort.documents, 96);
  };
  // The last layer's values enter nothing but its own output, its keys no other layer's.
  const auto found = run({{.keys = Rounding::int4, .layer = 7}, {.keys = Rounding::int4}, {.values = Rounding::e4m3, .layer = 7}, {.values = Rounding::e4m3}});
  EXPECT_GT(found[0].kl, 0);
  EXPECT_LT(found[0].kl, found[1].kl / 2);
  EXPECT_GT(found[2].kl, 0);
  EXPECT_LT(found[2].kl, found[3].kl);
}

TEST(Probe, MoreVariantsThanFitAStepGiveWhatTheyGiveAlone) {
  const LoadedModel model = tiny(100);
  WorkerPool workers(2);
  std::vector<Variant> many(140, {.keys = Rounding::int6});
  many.back() = {.keys = Rounding::int4};
  const std::vector<std::vector<std::int32_t>> one{{prose().documents[0].begin(), prose().documents[0].begin() + 25}};
  Probe probe(model, one, workers), other(model, one, workers);
  const auto found = probe.run(many, 1, 24);
  const Variant alone[] = {{.keys = Rounding::int6}, {.keys = Rounding::int4}};
  const auto expected = other.run(alone, 1, 24);
  for (std::size_t i = 0; i < 139; ++i) EXPECT_NEAR(found[i].kl, expected[0].kl, 0.01 * expected[0].kl) << i;
  EXPECT_NEAR(found[139].kl, expected[1].kl, 0.01 * expected[1].kl);
  EXPECT_EQ(probe.seen().rows, 24);
}

TEST(Scan, FindsTheBiasedChannelsOfTheTwins) {
  for (const float bias : {100.0f, 300.0f}) {
    const Scan& scan = scan_of_tiny(bias);
    const ScanVerdict verdict = judge(scan);
    EXPECT_TRUE(verdict.alarm);
    ASSERT_EQ(verdict.findings.size(), 1u);
    EXPECT_EQ(verdict.findings[0].mechanism, "key bias") << verdict.findings[0].words;
    for (const char* named : {"30 in 16 of 16 heads", "31 in 16 of 16 heads"}) {
      EXPECT_NE(verdict.findings[0].words.find(named), std::string::npos) << verdict.findings[0].words;
    }
    EXPECT_EQ(verdict.next.front(), "keel qualify MODEL --candidate k16v8");
    const VariantFigures& keys = figures_of(scan.probe->keys, Rounding::e4m3);
    const VariantFigures& values = figures_of(scan.probe->values, Rounding::e4m3);
    EXPECT_GT(keys.kl, 10 * values.kl);
    EXPECT_FALSE(past_gate(values));
    EXPECT_EQ(xml_problem(to_html(scan, verdict)), std::nullopt);
  }
}

TEST(Scan, RaisesNoAlarmForAHealthyModel) {
  const Scan& scan = scan_of_tiny(0);
  const ScanVerdict verdict = judge(scan);
  EXPECT_FALSE(verdict.alarm) << verdict.findings[0].mechanism << ": " << verdict.findings[0].words;
  EXPECT_EQ(verdict.next.front(), "keel qualify MODEL --candidate k8v8");
  EXPECT_FALSE(scan.probe->screen.flags());
  EXPECT_EQ(xml_problem(to_html(scan, verdict)), std::nullopt);
  const auto json = as_json(scan, verdict);
  EXPECT_EQ(json["alarm"], false);
  EXPECT_EQ(json["probe"]["layers"].size(), 8u);
}

// The same function in 16 bits: values 2^-8 of what they were, the output projection 2^8 of it.
class ModelOfSmallValues {
 public:
  ModelOfSmallValues() : model(tiny()) {
    const ModelConfig& config = model.config;
    for (LayerWeights& layer : model.weights.layers) {
      layer.v = scaled(layer.v, 0x1p-8f);
      layer.o = scaled(layer.o, 0x1p8f);
      std::vector<float>& bias = copies_.emplace_back(layer.v_bias, layer.v_bias + config.kv_heads * config.head_dim);
      for (float& x : bias) x *= 0x1p-8f;
      layer.v_bias = bias.data();
    }
  }
  LoadedModel model;

 private:
  WeightMatrix scaled(const WeightMatrix& weights, float factor) {
    std::vector<float>& copy = copies_.emplace_back(weights.rows * weights.columns);
    for (std::int64_t row = 0; row < weights.rows; ++row) dequantize_row(weights, row, copy.data() + row * weights.columns);
    for (float& x : copy) x *= factor;
    return {.type = WeightType::f32, .rows = weights.rows, .columns = weights.columns, .data = reinterpret_cast<const std::byte*>(copy.data())};
  }
  std::list<std::vector<float>> copies_;
};

TEST(Scan, FindsValuesThatLieWhereEightBitsAreCoarse) {
  const ModelOfSmallValues made;
  const Scan scan = scan_of(made.model);
  const Scan& plain = scan_of_tiny(0);
  EXPECT_NEAR(scan.probe->native_nll, plain.probe->native_nll, 2e-3);
  const ScanVerdict verdict = judge(scan);
  EXPECT_TRUE(verdict.alarm);
  ASSERT_FALSE(verdict.findings.empty());
  EXPECT_EQ(verdict.findings[0].mechanism, "range of values") << verdict.findings[0].words;
  EXPECT_EQ(verdict.next[0], "keel calibrate MODEL --data FILE -o scales.json");
  EXPECT_EQ(verdict.next[1], "keel qualify MODEL --candidate k16v8 --kv-scales scales.json");
  // Integers bring their own scale.
  EXPECT_NEAR(figures_of(scan.probe->values, Rounding::int8).kl, figures_of(plain.probe->values, Rounding::int8).kl, 2e-5);
}

TEST(Scan, TheScreenIsItsWrittenDefinition) {
  const LoadedModel model = tiny(100);
  WorkerPool workers(2);
  const ProbeResult& result = *scan_of_tiny(100).probe;
  // By hand: each prompt alone, logits at the next token after 96 tokens.
  double six = 0, eight = 0;
  for (std::int64_t i = 0; i < kScreenPrompts; ++i) {
    Probe probe(model, {prose().documents[i]}, workers);
    const Variant variants[] = {{.keys = Rounding::int6, .values = Rounding::int4}, {.keys = Rounding::int8, .values = Rounding::int4}};
    const auto found = probe.run(variants, 1, 96);
    EXPECT_NEAR(result.screen.int6[i], found[0].last_logit_error[0], 0.02 * found[0].last_logit_error[0]);
    six += found[0].last_logit_error[0], eight += found[1].last_logit_error[0];
  }
  EXPECT_NEAR(result.screen.tau, six / eight, 0.05 * result.screen.tau);
  EXPECT_EQ(result.screen.flags(), result.screen.tau > 3);
}

TEST(Documents, AreWindowsOverTheWholeText) {
  std::vector<std::int32_t> ids(100);
  for (int i = 0; i < 100; ++i) ids[i] = i;
  const ProbeText text = cut_documents("text", ids, 7, {.documents = 5, .tokens = 11, .layer_documents = 1});
  ASSERT_EQ(text.documents.size(), 5u);
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(text.documents[i].size(), 11u);
    EXPECT_EQ(text.documents[i][0], 7);
    EXPECT_EQ(text.documents[i][1], 20 * i);
  }
  EXPECT_THROW(cut_documents("text", ids, {}, {.documents = 5, .tokens = 21, .layer_documents = 1}), OptionError);
}

}  // namespace
}  // namespace keel
