#include "lab/scan/scan_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>

namespace keel {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kListedChannels = 12;

class Lines {
 public:
  template <class... Args>
  void line(fmt::format_string<Args...> format, Args&&... args) {
    text_ += fmt::format(format, std::forward<Args>(args)...) + '\n';
  }
  // Words wrapped at 120 columns, every line but the first indented.
  void paragraph(std::string_view head, std::string_view words) {
    std::string row(head);
    while (!words.empty()) {
      const std::size_t end = std::min(words.find(' '), words.size());
      if (row.size() + 1 + end > 120) {
        text_ += row + '\n';
        row = "   ";
      }
      row += (row.empty() || row.back() == ' ' ? "" : " ");
      row += words.substr(0, end);
      words.remove_prefix(std::min(end + 1, words.size()));
    }
    text_ += row + '\n';
  }
  std::string text() && { return std::move(text_); }

 private:
  std::string text_;
};

double turn_tokens(const ModelConfig& config, std::size_t pair) { return 2 * std::numbers::pi / config.inverse_frequencies[pair]; }

void add_weights(Lines& out, const Scan& scan) {
  const ModelConfig& config = scan.config;
  const WeightScan& biases = scan.biases;
  out.line("\nWeights, no forward pass");
  out.line("  attention     {} query heads on {} KV heads of {}{}", config.heads, config.kv_heads, config.head_dim,
           config.heads > config.kv_heads ? fmt::format(" (GQA, {} to 1)", config.heads / config.kv_heads) : "");
  out.line("  RoPE          {} of {} channels rotate{}; a full turn takes {:.3g} to {:.3g} tokens", config.rotary_dim, config.head_dim,
           config.rotary_dim < config.head_dim ? " (partial rotary)" : "", turn_tokens(config, 0), turn_tokens(config, config.inverse_frequencies.size() - 1));
  out.line("  QK-norm       {}", config.qk_norm ? fmt::format("yes: key norm weights up to {:.4g}, {:.1f} times their median", biases.key_norm, biases.key_norm_times_median) : "no");
  if (!biases.has_key_bias) {
    out.line("  key bias      none");
    return;
  }
  out.line("  key bias      {} of {} heads have a channel of |b| >= {:g}; largest value bias {:.4g}", [&] {
    std::vector<std::pair<std::int64_t, std::int64_t>> heads;
    for (const KeyChannel& channel : biases.alarms) heads.push_back({channel.layer, channel.head});
    std::ranges::sort(heads);
    return std::ranges::unique(heads).begin() - heads.begin();
  }(), biases.largest.size(), kBiasAlarm, biases.value_bias);
  std::vector<KeyChannel> listed = biases.alarms;
  if (listed.empty()) {
    listed = biases.largest;
    std::ranges::stable_sort(listed, std::greater(), [](const KeyChannel& channel) { return std::abs(channel.bias); });
    listed.resize(std::min<std::size_t>(3, listed.size()));
  }
  out.line("\n  {:>5} {:>5} {:>8} {:>9} {:>13} {:>11} {:>9} {:>13}", "layer", "head", "channel", "bias", "times median", "E4M3 step", "varies*", "turn, tokens");
  for (const KeyChannel& channel : std::span(listed).first(std::min(kListedChannels, listed.size()))) {
    out.line("  {:>5} {:>5} {:>8} {:>9.4g} {:>13.4g} {:>11.4g} {:>9.3g} {:>13}", channel.layer, channel.head, channel.channel, channel.bias, channel.times_median,
             channel.e4m3_step, channel.spread, channel.partner ? fmt::format("{:.4g}", channel.turn_tokens) : "none");
  }
  if (listed.size() > kListedChannels) out.line("  … and {} more channels (--json has all)", listed.size() - kListedChannels);
  out.line("  * deviation of the channel around its bias, estimated from the weights for a white input");
}

void add_figures(Lines& out, const std::string& what, const VariantFigures& figures) {
  out.line("  {:<31} {:>+9.4f} ±{:>7.4f} {:>8.2f} % {:>10.3g} {:>7.3f}  {:<12} {}", what, figures.nll_rise, figures.nll_rise_error,
           100 * figures.nll_rise / (figures.nll - figures.nll_rise), figures.kl, figures.top1, name(bearing_of(figures)), past_gate(figures) ? "past the gate" : "");
}

void add_probe(Lines& out, const ProbeResult& probe) {
  const ProbePlan& plan = probe.plan;
  out.line("\nProbe: {} documents of {} tokens ({}), each token a decode step from a {} cache; unrounded NLL {:.4f}", plan.documents, plan.tokens, probe.source,
           short_name(probe.cache), probe.native_nll);
  out.line("\n  {:<31} {:>18} {:>10} {:>10} {:>7}", "rounded in all layers", "NLL rise, nats", "relative", "KL", "top-1");
  for (const auto& [side, figures] : {std::pair{'K', &probe.keys}, std::pair{'V', &probe.values}}) {
    for (const Rounding rounding : kRoundings) add_figures(out, fmt::format("{} {}", side, name(rounding)), figures_of(*figures, rounding));
  }
  add_figures(out, "K and V E4M3", probe.both);
  for (const auto* tests : {&probe.key_tests, &probe.value_tests}) {
    for (const SpareTest& test : *tests) add_figures(out, name(test.variant), test.figures);
  }
  out.line("\n  Each layer alone, KL ({} document{} of {} tokens)", plan.layer_documents, plan.layer_documents == 1 ? "" : "s", plan.layer_tokens);
  out.line("  {:>5} {:>10} {:>10} {:>10} {:>10}   {:>10} {:>10} {:>10} {:>10}", "layer", "K INT4", "K INT6", "K INT8", "K E4M3", "V INT4", "V INT6", "V INT8", "V E4M3");
  for (std::size_t layer = 0; layer < probe.layer_keys.size(); ++layer) {
    const EachRounding &k = probe.layer_keys[layer], &v = probe.layer_values[layer];
    out.line("  {:>5} {:>10.3g} {:>10.3g} {:>10.3g} {:>10.3g}   {:>10.3g} {:>10.3g} {:>10.3g} {:>10.3g}", layer, k[0].kl, k[1].kl, k[2].kl, k[3].kl, v[0].kl, v[1].kl,
             v[2].kl, v[3].kl);
  }
  const Screen& screen = probe.screen;
  out.line("\n  INT6/INT8 screen of keys: tau {:.2f}, {} {:g} ({} prompts of {} tokens, V in INT4, largest logit error at the next token)", screen.tau,
           screen.flags() ? "flagged: above" : "not flagged: up to", kScreenLimit, kScreenPrompts, plan.tokens - 1);
  if (const std::string doubt = screen_doubt(probe); !doubt.empty()) out.line("  {}", doubt);
}

Json number(double value) { return std::isfinite(value) ? Json(value) : Json(); }

Json json_of(const KeyChannel& channel) {
  Json json{{"layer", channel.layer}, {"head", channel.head}, {"channel", channel.channel}, {"bias", channel.bias}, {"times_median", number(channel.times_median)},
            {"e4m3_step", channel.e4m3_step}, {"spread_estimated", channel.spread}, {"rope_partner", nullptr}, {"rope_turn_tokens", nullptr}};
  if (channel.partner) json["rope_partner"] = *channel.partner, json["rope_turn_tokens"] = channel.turn_tokens;
  return json;
}

Json json_of(const VariantFigures& figures) {
  return {{"nll_rise", number(figures.nll_rise)}, {"nll_rise_error", number(figures.nll_rise_error)}, {"kl", number(figures.kl)}, {"top1", figures.top1},
          {"targets", figures.targets}, {"bearing", name(bearing_of(figures))}, {"past_gate", past_gate(figures)}};
}

Json json_of(const EachRounding& each) {
  Json json = Json::object();
  for (const Rounding rounding : kRoundings) json[name(rounding)] = json_of(figures_of(each, rounding));
  return json;
}

Json json_of(const SeenSide& side) {
  return {{"largest", *std::max_element(side.largest.begin(), side.largest.end())}, {"elements", side.elements}, {"past_448", side.saturating}, {"below_2^-6", side.coarse}};
}

Json json_of(const ProbeResult& probe) {
  Json json{{"source", probe.source}, {"documents", probe.plan.documents}, {"tokens", probe.plan.tokens}, {"layer_documents", probe.plan.layer_documents}, {"layer_tokens", probe.plan.layer_tokens},
            {"cache", short_name(probe.cache)}, {"native_nll", probe.native_nll}, {"keys", json_of(probe.keys)}, {"values", json_of(probe.values)},
            {"both_E4M3", json_of(probe.both)}, {"tests", Json::array()}, {"layers", Json::array()}};
  for (const auto* tests : {&probe.key_tests, &probe.value_tests}) {
    for (const SpareTest& test : *tests) {
      Json one{{"test", name(test.variant)}, {"recovery", number(test.recovery)}};
      one.update(json_of(test.figures));
      json["tests"].push_back(std::move(one));
    }
  }
  for (std::size_t layer = 0; layer < probe.layer_keys.size(); ++layer) {
    json["layers"].push_back({{"layer", layer}, {"keys", json_of(probe.layer_keys[layer])}, {"values", json_of(probe.layer_values[layer])}});
  }
  const Screen& screen = probe.screen;
  json["screen"] = {{"tau", number(screen.tau)}, {"limit", kScreenLimit}, {"flagged", screen.flags()}, {"int6_errors", screen.int6}, {"int8_errors", screen.int8}, {"doubt", screen_doubt(probe)}};
  json["seen"] = {{"keys", json_of(probe.seen.keys)}, {"values", json_of(probe.seen.values)}};
  return json;
}

}  // namespace

std::string to_table(const Scan& scan, const ScanVerdict& verdict) {
  Lines out;
  out.line("{} ({}), weights {}: {} layers", scan.model, scan.config.architecture, scan.weights, scan.config.layers);
  add_weights(out, scan);
  if (scan.probe) add_probe(out, *scan.probe);
  out.line("");
  for (const Finding& finding : verdict.findings) {
    out.paragraph(fmt::format("{}{}:", verdict.alarm ? "! " : "", finding.mechanism), finding.words);
  }
  out.paragraph("", verdict.advice);
  out.line("Next:");
  for (const std::string& command : verdict.next) out.line("  {}", command);
  out.line("A scan screens: it qualifies nothing, least of all longer contexts or other texts.");
  return std::move(out).text();
}

Json as_json(const Scan& scan, const ScanVerdict& verdict) {
  const ModelConfig& config = scan.config;
  const WeightScan& biases = scan.biases;
  Json json{{"record", "keel scan"}, {"model", scan.model}, {"architecture", config.architecture}, {"weights", scan.weights}, {"layers", config.layers},
            {"heads", config.heads}, {"kv_heads", config.kv_heads}, {"head_dim", config.head_dim}, {"rotary_dim", config.rotary_dim},
            {"rope_pairs", config.rope_pairs == RopePairs::half ? "half" : "interleaved"}, {"qk_norm", config.qk_norm}, {"key_bias", biases.has_key_bias}};
  if (config.qk_norm) json["key_norm"] = {{"largest", biases.key_norm}, {"times_median", number(biases.key_norm_times_median)}};
  json["bias_alarm"] = kBiasAlarm;
  json["largest_value_bias"] = biases.value_bias;
  json["largest_key_biases"] = Json::array();  // one a layer and head
  for (const KeyChannel& channel : biases.largest) json["largest_key_biases"].push_back(json_of(channel));
  json["alarms"] = Json::array();
  for (const KeyChannel& channel : biases.alarms) json["alarms"].push_back(json_of(channel));
  json["probe"] = scan.probe ? json_of(*scan.probe) : Json();
  json["alarm"] = verdict.alarm;
  json["findings"] = Json::array();
  for (const Finding& finding : verdict.findings) json["findings"].push_back({{"mechanism", finding.mechanism}, {"words", finding.words}});
  json["advice"] = verdict.advice;
  json["next"] = verdict.next;
  return json;
}

}  // namespace keel
