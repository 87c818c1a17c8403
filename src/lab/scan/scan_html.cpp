#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "lab/html_page.h"
#include "lab/scan/scan_report.h"

namespace keel {
namespace {

using Row = std::vector<std::string>;

constexpr std::size_t kListedChannels = 64;

void add_biases(HtmlPage& page, const Scan& scan) {
  const WeightScan& biases = scan.biases;
  Chart chart{.title = "Largest key bias of each head", .x = {.label = "layer"}, .y = {.label = "|bias|", .scale = Scale::log10}};
  for (std::int64_t head = 0; head < scan.config.kv_heads; ++head) {
    Series series{.name = "heads", .points = {}, .mark = Mark::dots};
    for (const KeyChannel& channel : biases.largest) {
      if (channel.head != head) continue;
      series.points.push_back({.x = static_cast<double>(channel.layer), .y = std::abs(channel.bias),
                               .note = fmt::format("layer {}, head {}, channel {}: {:.4g}", channel.layer, channel.head, channel.channel, channel.bias)});
    }
    chart.series.push_back(std::move(series));
  }
  chart.lines.push_back({.at = kBiasAlarm, .label = fmt::format("named from {:g} on", kBiasAlarm)});
  page.chart(draw(chart), "One dot a layer and KV head.");
  if (biases.alarms.empty()) return;
  const Row head{"layer", "head", "channel", "bias", "times median", "E4M3 step", "varies by", "full turn, tokens"};
  std::vector<Row> rows;
  for (const KeyChannel& channel : std::span(biases.alarms).first(std::min(kListedChannels, biases.alarms.size()))) {
    rows.push_back({fmt::format("{}", channel.layer), fmt::format("{}", channel.head), fmt::format("{}", channel.channel), fmt::format("{:.4g}", channel.bias),
                    fmt::format("{:.4g}", channel.times_median), fmt::format("{:g}", channel.e4m3_step), fmt::format("{:.3g}", channel.spread),
                    channel.partner ? fmt::format("{:.4g}", channel.turn_tokens) : "none"});
  }
  page.table(head, rows);
  page.paragraph(fmt::format("{} of {} channels from {:g} on. \"Varies by\": the channel's deviation around its bias, estimated from the weights for a white input. "
                             "Where E4M3's step is far larger, little of what varies is kept.", rows.size(), biases.alarms.size(), kBiasAlarm));
}

void add_weights(HtmlPage& page, const Scan& scan) {
  const ModelConfig& config = scan.config;
  const std::pair<std::string, std::string> facts[] = {
      {"weights", scan.weights},
      {"attention", fmt::format("{} layers, {} query heads on {} KV heads of {}", config.layers, config.heads, config.kv_heads, config.head_dim)},
      {"RoPE", fmt::format("{} of {} channels rotate", config.rotary_dim, config.head_dim)},
      {"QK-norm", config.qk_norm ? fmt::format("yes, key norm weights up to {:.4g}", scan.biases.key_norm) : "no"},
      {"key bias", scan.biases.has_key_bias ? "yes" : "none"}};
  page.section("Weights, no forward pass").facts(facts);
  if (scan.biases.has_key_bias) add_biases(page, scan);
}

Row cells(const std::string& what, const VariantFigures& figures) {
  return {what, fmt::format("{:+.4f}", figures.nll_rise), fmt::format("{:.4f}", figures.nll_rise_error),
          fmt::format("{:+.2f} %", 100 * figures.nll_rise / (figures.nll - figures.nll_rise)), fmt::format("{:.3g}", figures.kl), fmt::format("{:.3f}", figures.top1),
          std::string(name(bearing_of(figures))), past_gate(figures) ? "past" : "within"};
}

void add_layers(HtmlPage& page, const ProbeResult& probe) {
  // One range for both, so that keys and values compare by height.
  double low = INFINITY, high = 0;
  for (const auto* layers : {&probe.layer_keys, &probe.layer_values}) {
    for (const EachRounding& each : *layers) {
      for (const VariantFigures& figures : each) {
        if (figures.kl > 0) low = std::min(low, figures.kl), high = std::max(high, figures.kl);
      }
    }
  }
  std::vector<Chart> charts;
  for (const auto& [side, layers] : {std::pair{"keys", &probe.layer_keys}, std::pair{"values", &probe.layer_values}}) {
    Chart chart{.title = fmt::format("{} rounded in one layer", side), .x = {.label = "layer"}, .y = {.label = "KL, nats a token", .scale = Scale::log10}, .width = 440, .height = 330};
    if (high > 0) chart.y.low = low / 1.3, chart.y.high = high * 1.3;
    for (const Rounding rounding : kRoundings) {
      Series series{.name = std::string(name(rounding)), .points = {}};
      for (std::size_t layer = 0; layer < layers->size(); ++layer) {
        series.points.push_back({.x = static_cast<double>(layer), .y = figures_of((*layers)[layer], rounding).kl});
      }
      chart.series.push_back(std::move(series));
    }
    charts.push_back(std::move(chart));
  }
  page.section("Each layer alone").chart(draw(charts, 2, "KL of each layer alone"), fmt::format("{} tokens of {} of the documents.", probe.plan.layer_tokens, probe.plan.layer_documents));
}

void add_probe(HtmlPage& page, const ProbeResult& probe) {
  const ProbePlan& plan = probe.plan;
  page.section("Rounded in all layers")
      .paragraph(fmt::format("{} documents of {} tokens ({}), each token a decode step from a {} cache; unrounded NLL {:.4f} nats. The gate's limit, ln 1.01, holds for the rise and for KL.",
                             plan.documents, plan.tokens, probe.source, short_name(probe.cache), probe.native_nll));
  const Row head{"rounded", "NLL rise", "standard error", "relative", "KL", "top-1", "bearing", "gate"};
  std::vector<Row> rows;
  RowChart chart{.title = "Mean KL from the unrounded run", .axis = {.label = "KL, nats a token", .scale = Scale::log10}, .rows = {}, .bars = false};
  const auto add = [&](const std::string& what, const VariantFigures& figures) {
    rows.push_back(cells(what, figures));
    chart.rows.push_back({.label = what, .values = {figures.kl}, .text = fmt::format("{:.2g}", figures.kl)});
  };
  for (const auto& [side, figures] : {std::pair{'K', &probe.keys}, std::pair{'V', &probe.values}}) {
    for (const Rounding rounding : kRoundings) add(fmt::format("{} {}", side, name(rounding)), figures_of(*figures, rounding));
  }
  add("K E4M3, V E4M3", probe.both);
  for (const auto* tests : {&probe.key_tests, &probe.value_tests}) {
    for (const SpareTest& test : *tests) add(name(test.variant), test.figures);
  }
  chart.lines.push_back({.at = std::log(1.01), .label = "ln 1.01", .vertical = true});
  page.chart(draw(chart)).table(head, rows);
  add_layers(page, probe);
  const Screen& screen = probe.screen;
  page.section("INT6/INT8 screen of keys")
      .paragraph(fmt::format("tau {:.2f}, {} {:g}: over {} prompts of {} tokens, the mean of the largest logit error at the next token under INT6 keys over that under INT8 keys, "
                             "values in INT4, against the unrounded run.", screen.tau, screen.flags() ? "flagged: above" : "not flagged: up to", kScreenLimit, kScreenPrompts, plan.tokens - 1));
  if (const std::string doubt = screen_doubt(probe); !doubt.empty()) page.paragraph(doubt);
}

}  // namespace

std::string to_html(const Scan& scan, const ScanVerdict& verdict) {
  HtmlPage page("keel scan: " + scan.model, scan.config.architecture + ". A scan screens: it qualifies nothing, least of all longer contexts or other texts.");
  page.verdict(verdict.alarm ? Tone::bad : Tone::good, verdict.advice);
  for (const Finding& finding : verdict.findings) page.section(finding.mechanism).paragraph(finding.words);
  std::string commands;
  for (const std::string& command : verdict.next) commands += command + '\n';
  page.section("Next").preformatted(commands);
  if (scan.probe) add_probe(page, *scan.probe);
  add_weights(page, scan);
  return page.text();
}

}  // namespace keel
