#include "lab/scan/scan.h"

#include <algorithm>

#include "base/error.h"
#include "base/log.h"
#include "base/option_error.h"
#include "base/random.h"
#include "lab/stats.h"

namespace keel {
namespace {

// Keys in each rounding, then values in each.
std::vector<Variant> each_rounding(std::int64_t layer) {
  std::vector<Variant> variants;
  for (const Rounding rounding : kRoundings) variants.push_back({.keys = rounding, .layer = layer});
  for (const Rounding rounding : kRoundings) variants.push_back({.values = rounding, .layer = layer});
  return variants;
}

// The next figures in each_rounding's order.
void take_sides(std::vector<VariantFigures>::const_iterator& next, EachRounding& keys, EachRounding& values) {
  for (EachRounding* side : {&keys, &values}) {
    for (VariantFigures& figures : *side) figures = *next++;
  }
}

Screen screen_of(const VariantFigures& int6, const VariantFigures& int8) {
  Screen screen;
  std::copy_n(int6.last_logit_error.begin(), kScreenPrompts, screen.int6.begin());
  std::copy_n(int8.last_logit_error.begin(), kScreenPrompts, screen.int8.begin());
  double six = 0, eight = 0;
  for (const double error : screen.int6) six += error;
  for (const double error : screen.int8) eight += error;
  screen.tau = six / eight;
  return screen;
}

std::vector<Variant> key_tests(const LoadedModel& model) {
  const ModelConfig& config = model.config;
  std::vector<Variant> tests;
  const auto add = [&](Spare spare) { tests.push_back({.keys = Rounding::e4m3, .spare = spare}); };
  // Behind a QK-norm the bias is no longer a constant of the key.
  const bool biases = std::ranges::all_of(model.weights.layers, [](const LayerWeights& layer) { return layer.k_bias != nullptr && layer.k_norm == nullptr; });
  if (biases) add(Spare::bias), add(Spare::displaced_bias);
  if (config.rotary_dim < config.head_dim) add(Spare::rotated), add(Spare::unrotated);
  add(Spare::largest);
  tests.push_back({.keys = Rounding::e4m3, .calibrated = true});
  return tests;
}

}  // namespace

ProbeText cut_documents(std::string source, std::span<const std::int32_t> ids, std::optional<std::int32_t> first, const ProbePlan& plan) {
  const std::int64_t own = plan.tokens - first.has_value(), wanted = plan.documents * own, apart = std::ssize(ids) / plan.documents;
  if (std::ssize(ids) < wanted) {
    refuse_option("{}: {} documents of {} tokens want {} tokens of text, found {}: give a longer text, fewer --documents or fewer --tokens", source,
                  plan.documents, plan.tokens, wanted, ids.size());
  }
  ProbeText text{.source = std::move(source), .documents = {}};
  for (std::int64_t i = 0; i < plan.documents; ++i) {
    std::vector<std::int32_t> document;
    if (first) document.push_back(*first);
    document.insert(document.end(), ids.begin() + i * apart, ids.begin() + i * apart + own);
    text.documents.push_back(std::move(document));
  }
  return text;
}

ProbeText random_documents(std::int64_t vocabulary, std::uint64_t seed, const ProbePlan& plan) {
  ProbeText text{.source = fmt::format("random tokens, seed {}", seed), .documents = {}};
  for (std::int64_t i = 0; i < plan.documents; ++i) {
    std::vector<std::int32_t> document;
    for (std::int64_t t = 0; t < plan.tokens; ++t) {
      document.push_back(static_cast<std::int32_t>(random_u64(seed, i * plan.tokens + t) % static_cast<std::uint64_t>(vocabulary)));
    }
    text.documents.push_back(std::move(document));
  }
  return text;
}

const VariantFigures& figures_of(const EachRounding& each, Rounding rounding) {
  const auto at = std::ranges::find(kRoundings, rounding);
  check(at != std::end(kRoundings), "a rounding that the probe runs");
  return each[at - std::begin(kRoundings)];
}

std::string name(const Variant& variant) {
  std::string text;
  for (const auto& [side, rounding] : {std::pair{'K', variant.keys}, std::pair{'V', variant.values}}) {
    if (rounding != Rounding::none) text += fmt::format("{}{} {}", text.empty() ? "" : ", ", side, name(rounding));
  }
  if (variant.calibrated) text += ", calibrated scales";
  switch (variant.spare) {
    case Spare::nothing: break;
    case Spare::bias: text += ", bias exact"; break;
    case Spare::displaced_bias: text += ", displaced bias exact"; break;
    case Spare::rotated: text += ", rotated channels exact"; break;
    case Spare::unrotated: text += ", unrotated channels exact"; break;
    case Spare::largest: text += ", largest channels exact"; break;
  }
  return text;
}

ProbeResult probe_model(const LoadedModel& model, const ProbeText& text, const ProbePlan& plan, WorkerPool& workers) {
  check(plan.documents >= kScreenPrompts && plan.layer_documents >= 1 && plan.layer_documents <= plan.documents && plan.layer_tokens >= 2 &&
            plan.layer_tokens <= plan.tokens,
        "a plan that the screen fits");
  const std::int64_t layers = model.config.layers;
  Probe probe(model, text.documents, workers);
  ProbeResult result{.plan = plan, .source = text.source, .cache = probe.cache(), .keys = {}, .values = {}, .both = {}, .screen = {}};
  result.layer_keys.resize(layers);
  result.layer_values.resize(layers);

  std::vector<Variant> everywhere = each_rounding(kAllLayers), alone;
  everywhere.push_back({.keys = Rounding::e4m3, .values = Rounding::e4m3});
  everywhere.push_back({.keys = Rounding::int6, .values = Rounding::int4});
  everywhere.push_back({.keys = Rounding::int8, .values = Rounding::int4});
  for (std::int64_t layer = 0; layer < layers; ++layer) {
    for (const Variant& variant : each_rounding(layer)) alone.push_back(variant);
  }
  {
    ProgressBar bar("probe, all layers", probe.work(std::ssize(everywhere), plan.documents, probe.targets()));
    const std::vector<VariantFigures> found = probe.run(everywhere, plan.documents, probe.targets(), [&](std::int64_t done) { bar.advance(done); });
    auto next = found.begin();
    take_sides(next, result.keys, result.values);
    result.both = *next++;
    result.screen = screen_of(next[0], next[1]);
  }
  result.native_nll = probe.native_nll();
  {
    ProgressBar bar("probe, each layer", probe.work(std::ssize(alone), plan.layer_documents, plan.layer_tokens - 1));
    const std::vector<VariantFigures> found = probe.run(alone, plan.layer_documents, plan.layer_tokens - 1, [&](std::int64_t done) { bar.advance(done); });
    auto next = found.begin();
    for (std::int64_t layer = 0; layer < layers; ++layer) take_sides(next, result.layer_keys[layer], result.layer_values[layer]);
  }

  const VariantFigures& keys = figures_of(result.keys, Rounding::e4m3);
  const VariantFigures& values = figures_of(result.values, Rounding::e4m3);
  std::vector<Variant> tests;
  if (bearing_of(keys) != Bearing::tolerant) tests = key_tests(model);
  const std::size_t of_keys = tests.size();
  if (bearing_of(values) != Bearing::tolerant) tests.push_back({.values = Rounding::e4m3, .calibrated = true});
  if (!tests.empty()) {
    ProgressBar bar("probe, what carries it", probe.work(std::ssize(tests), plan.documents, probe.targets()));
    const std::vector<VariantFigures> found = probe.run(tests, plan.documents, probe.targets(), [&](std::int64_t done) { bar.advance(done); });
    for (std::size_t i = 0; i < tests.size(); ++i) {
      const bool is_key = i < of_keys;
      (is_key ? result.key_tests : result.value_tests)
          .push_back({.variant = tests[i], .figures = found[i], .recovery = 1 - found[i].kl / (is_key ? keys : values).kl});
    }
  }
  result.seen = probe.seen();
  return result;
}

std::string_view name(Bearing bearing) {
  switch (bearing) {
    case Bearing::tolerant: return "tolerant";
    case Bearing::material: return "material";
    case Bearing::catastrophic: return "catastrophic";
  }
  return "?";
}

Bearing bearing_of(const VariantFigures& figures) {
  const double relative = figures.nll_rise / (figures.nll - figures.nll_rise);
  if (relative <= 0.005 && figures.top1 >= 0.98) return Bearing::tolerant;
  const bool bearable = relative <= 0.05 && figures.perplexity_times() < 2 && figures.top1 >= 0.80;  // false for NaN
  return bearable ? Bearing::material : Bearing::catastrophic;
}

bool past_gate(const VariantFigures& figures) { return !(figures.nll_rise <= most_nll_rise() && figures.kl <= most_nll_rise()); }

std::string screen_doubt(const ProbeResult& probe) {
  const VariantFigures& int8 = figures_of(probe.keys, Rounding::int8);
  if (!past_gate(int8)) return "";
  return fmt::format("INT8 keys are past the gate themselves (KL {:.3g}): a ratio to their error says little.", int8.kl);
}

}  // namespace keel
