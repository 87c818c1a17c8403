// The scan of a model: its weights, then a probe of what K and V bear, layer by layer, and what probably makes them fragile.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <vector>

#include "lab/scan/probe.h"
#include "lab/scan/weight_scan.h"

namespace keel {

// The screen: five prompts, the first documents of the probe. A prompt's error under b-bit keys is the largest |difference| of a
// logit at the next token against the unrounded run, K in INT b and V in INT4 in every layer; tau = mean error of INT6 / mean error
// of INT8. Above kScreenLimit the keys are flagged. The limit was chosen on thirteen models that it then classified: a hint.
inline constexpr std::int64_t kScreenPrompts = 5;
inline constexpr double kScreenLimit = 3.0;
struct Screen {
  std::array<double, kScreenPrompts> int6{}, int8{};  // errors, a prompt each
  double tau = 0;                                     // infinite where INT8 does no harm at all
  bool flags() const { return !(tau <= kScreenLimit); }
};

struct ProbePlan {
  std::int64_t documents = 8;        // at least kScreenPrompts
  std::int64_t tokens = 256;         // of each
  std::int64_t layer_documents = 1;  // of them, for each layer alone
  std::int64_t layer_tokens = 128;   // of each of those
};

// Of all documents' tokens from one text, or drawn from a seed.
struct ProbeText {
  std::string source;  // "the built-in prose", "FILE", "random tokens, seed 1"
  std::vector<std::vector<std::int32_t>> documents;
};
// Windows of `ids`, spread evenly over all of them, `first` (a BOS) in front of each where given. Throws Error when there are too few.
ProbeText cut_documents(std::string source, std::span<const std::int32_t> ids, std::optional<std::int32_t> first, const ProbePlan& plan);
ProbeText random_documents(std::int64_t vocabulary, std::uint64_t seed, const ProbePlan& plan);

using EachRounding = std::array<VariantFigures, std::size(kRoundings)>;  // in kRoundings' order
const VariantFigures& figures_of(const EachRounding& each, Rounding rounding);

std::string name(const Variant& variant);  // "K E4M3", "K E4M3, bias exact", "V E4M3, calibrated scales"

// E4M3 over all layers with something given back: recovery = 1 - KL with it / KL without.
struct SpareTest {
  Variant variant;
  VariantFigures figures;
  double recovery = 0;
};

struct ProbeResult {
  ProbePlan plan;
  std::string source;
  KvFormat cache{};
  double native_nll = 0;
  EachRounding keys, values;  // in all layers
  VariantFigures both;        // K and V in E4M3
  Screen screen;
  std::vector<EachRounding> layer_keys, layer_values;  // in that layer alone
  std::vector<SpareTest> key_tests, value_tests;       // where E4M3 is not tolerated
  Seen seen;
};

ProbeResult probe_model(const LoadedModel& model, const ProbeText& text, const ProbePlan& plan, WorkerPool& workers);

// How a rounding is borne. tolerant: NLL rises by at most 0.5 % and top-1 is at least 0.98; catastrophic: NLL by more than 5 %,
// perplexity doubles, top-1 below 0.80, or no number at all; material: between.
enum class Bearing : std::uint8_t { tolerant, material, catastrophic };
std::string_view name(Bearing bearing);
Bearing bearing_of(const VariantFigures& figures);
// Whether the mean rise of NLL, or mean KL, is past what the quality gate allows the rise's upper limit: ln 1.01. KL is the rise to
// expect on text that the model itself would write, and much less noisy than that on the probe's.
bool past_gate(const VariantFigures& figures);
// Why the screen's ratio says little here; empty where nothing speaks against it.
std::string screen_doubt(const ProbeResult& probe);

}  // namespace keel
