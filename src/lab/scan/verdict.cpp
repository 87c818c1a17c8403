#include "lab/scan/verdict.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

namespace keel {
namespace {

std::string percent(double share) { return fmt::format("{:.0f} %", 100 * share); }

// "+0.0712 ± 0.0031 nats a token (2.4 %), KL 0.07, top-1 0.91: material"
std::string cost(const VariantFigures& figures) {
  return fmt::format("{:+.4f} ± {:.4f} nats a token ({:+.2f} %), KL {:.3g}, top-1 {:.3f}: {}", figures.nll_rise, figures.nll_rise_error,
                     100 * figures.nll_rise / (figures.nll - figures.nll_rise), figures.kl, figures.top1, name(bearing_of(figures)));
}

const SpareTest* test_of(std::span<const SpareTest> tests, Spare spare, bool calibrated = false) {
  const auto found = std::ranges::find_if(tests, [&](const SpareTest& test) { return test.variant.spare == spare && test.variant.calibrated == calibrated; });
  return found == tests.end() ? nullptr : &*found;
}

bool carries(const SpareTest* test) { return test != nullptr && test->recovery >= kSubstantial; }

// The seen magnitudes of the channels that Spare::largest gives back, as channels to name.
std::vector<KeyChannel> largest_seen(const Scan& scan) {
  const ModelConfig& config = scan.config;
  const std::vector<float>& seen = scan.probe->seen.keys.largest;
  std::vector<KeyChannel> found;
  for (std::int64_t head = 0; head < config.layers * config.kv_heads; ++head) {
    const auto begin = seen.begin() + head * config.head_dim;
    const auto most = std::max_element(begin, begin + config.head_dim);
    found.push_back({.layer = head / config.kv_heads, .head = head % config.kv_heads, .channel = most - begin, .partner = {}, .bias = *most});
  }
  return found;
}

std::string range_in_words(const SeenSide& side) {
  const float largest = *std::max_element(side.largest.begin(), side.largest.end());
  const auto share = [&](std::int64_t some) { return static_cast<double>(some) / static_cast<double>(side.elements); };
  return fmt::format("The largest magnitude seen is {:.4g}; {:.2f} % of them saturate past 448, {:.1f} % lie below 2^-6, where E4M3's steps no longer shrink",
                     largest, 100 * share(side.saturating), 100 * share(side.coarse));
}

std::string where(std::span<const EachRounding> layers) {
  const WorstLayer worst = worst_layer(layers, Rounding::e4m3);
  return fmt::format("Rounded alone, layer {} costs most (KL {:.3g}, {} of the sum over layers).", worst.layer, worst.kl, percent(worst.share));
}

Finding key_finding(const Scan& scan) {
  const ProbeResult& probe = *scan.probe;
  const std::int64_t heads = scan.config.layers * scan.config.kv_heads;
  const std::string damage = fmt::format("E4M3 keys cost {}. ", cost(figures_of(probe.keys, Rounding::e4m3)));
  const SpareTest* bias = test_of(probe.key_tests, Spare::bias);
  const SpareTest* control = test_of(probe.key_tests, Spare::displaced_bias);
  const SpareTest* rotated = test_of(probe.key_tests, Spare::rotated);
  const SpareTest* unrotated = test_of(probe.key_tests, Spare::unrotated);
  const SpareTest* largest = test_of(probe.key_tests, Spare::largest);
  const SpareTest* scaled = test_of(probe.key_tests, Spare::nothing, true);

  if (carries(bias) && bias->recovery - control->recovery >= kSeparation) {
    std::string words = damage + fmt::format("With the key biases held exact and the rest rounded, {} of it (KL) is gone; with the same numbers held for other channels, {}. ",
                                             percent(bias->recovery), control->recovery > 0 ? percent(control->recovery) : "none");
    if (!scan.biases.alarms.empty()) {
      const KeyChannel& worst = scan.biases.alarms.front();
      words += fmt::format("Biased: channel {}. At {:.4g} E4M3 steps by {:g}, while the rest of that channel varies by about {:.2g} (estimated from the weights). ",
                           channels_in_words(by_channel(scan.biases.alarms), heads), std::abs(worst.bias), worst.e4m3_step, worst.spread);
    }
    return {"key bias", words + where(probe.layer_keys)};
  }
  if (rotated != nullptr && carries(unrotated) && unrotated->recovery - rotated->recovery >= kSeparation) {
    return {"unrotated key channels",
            damage + fmt::format("RoPE turns {} of {} channels. With the others held exact {} of it (KL) is gone, with the turned ones {}. {}", scan.config.rotary_dim,
                                 scan.config.head_dim, percent(unrotated->recovery), percent(std::max(0.0, rotated->recovery)), where(probe.layer_keys))};
  }
  if (carries(scaled)) {
    return {"range of keys", damage + fmt::format("Scales of the largest key seen in each layer and head take away {} of it (KL). {}. {}", percent(scaled->recovery),
                                                  range_in_words(probe.seen.keys), where(probe.layer_keys))};
  }
  if (carries(largest)) {
    return {"few large key channels",
            damage + fmt::format("With the sixteenth of each head's channels that holds the largest keys kept exact, {} of it (KL) is gone. Largest: channel {}. {}",
                                 percent(largest->recovery), channels_in_words(by_channel(largest_seen(scan)), heads), where(probe.layer_keys))};
  }
  std::string tried;
  for (const SpareTest& test : probe.key_tests) tried += fmt::format("{}{}: {}", tried.empty() ? "" : "; ", name(test.variant), percent(test.recovery));
  return {"keys everywhere", damage + fmt::format("No part that was given back explains it (share of KL gone: {}). {}", tried, where(probe.layer_keys))};
}

Finding value_finding(const Scan& scan) {
  const ProbeResult& probe = *scan.probe;
  const std::string damage = fmt::format("E4M3 values cost {}. ", cost(figures_of(probe.values, Rounding::e4m3)));
  const SpareTest* scaled = test_of(probe.value_tests, Spare::nothing, true);
  const std::string range = range_in_words(probe.seen.values) + ". ";
  if (carries(scaled)) {
    return {"range of values", damage + fmt::format("Scales of the largest value seen in each layer and head take away {} of it (KL). ", percent(scaled->recovery)) +
                                   range + where(probe.layer_values)};
  }
  const std::string bias = scan.biases.value_bias > 0 ? fmt::format("The largest value bias is {:.4g}. ", scan.biases.value_bias) : "";
  return {"values everywhere", damage + "Scales of the largest value seen do not mend it. " + range + bias + where(probe.layer_values)};
}

ScanVerdict from_weights(const Scan& scan) {
  ScanVerdict verdict;
  const std::string probe = fmt::format("keel scan {}", scan.model);
  const WeightScan& biases = scan.biases;
  verdict.next.push_back(probe);
  if (!biases.alarms.empty() && !scan.config.qk_norm) {
    const KeyChannel& worst = biases.alarms.front();
    verdict.alarm = true;
    verdict.findings.push_back({"key bias, suspected",
                                fmt::format("{} key channels have a constant of at least {:g}: channel {}. At {:.4g} E4M3 steps by {:g}, while the rest of that channel varies by about {:.2g} "
                                            "(estimated from the weights).",
                                            biases.alarms.size(), kBiasAlarm, channels_in_words(by_channel(biases.alarms), scan.config.layers * scan.config.kv_heads),
                                            std::abs(worst.bias), worst.e4m3_step, worst.spread)});
    verdict.advice = "Probe it before trusting 8-bit keys: the size of a bias warns, it does not decide.";
    verdict.next.push_back(fmt::format("keel qualify {} --candidate k16v8", scan.model));
    return verdict;
  }
  const std::string why = !biases.has_key_bias ? "The keys have no bias." : fmt::format("No key bias reaches {:g}.", kBiasAlarm);
  verdict.findings.push_back({"none", why + " Weights alone do not show other causes."});
  verdict.advice = "Probe it: fragile keys without biases exist.";
  return verdict;
}

}  // namespace

WorstLayer worst_layer(std::span<const EachRounding> layers, Rounding rounding) {
  WorstLayer worst{0, 0, 0};
  double sum = 0;
  for (std::size_t layer = 0; layer < layers.size(); ++layer) {
    const double kl = figures_of(layers[layer], rounding).kl;
    sum += kl;
    if (!(kl <= worst.kl)) worst = {static_cast<std::int64_t>(layer), kl, 0};  // NaN is worst
  }
  worst.share = worst.kl / sum;
  return worst;
}

std::vector<ChannelGroup> by_channel(std::span<const KeyChannel> channels) {
  std::map<std::int64_t, ChannelGroup> groups;
  for (const KeyChannel& channel : channels) {
    ChannelGroup& group = groups.try_emplace(channel.channel, ChannelGroup{channel.channel, 0, channel.layer, channel.head, 0}).first->second;
    ++group.heads;
    if (std::abs(channel.bias) > group.largest) {
      group.largest = std::abs(channel.bias), group.layer = channel.layer, group.head = channel.head;
    }
  }
  std::vector<ChannelGroup> sorted;
  for (const auto& [index, group] : groups) sorted.push_back(group);
  std::ranges::stable_sort(sorted, [](const ChannelGroup& a, const ChannelGroup& b) { return std::pair(a.heads, a.largest) > std::pair(b.heads, b.largest); });
  return sorted;
}

std::string channels_in_words(std::span<const ChannelGroup> groups, std::int64_t of_heads) {
  constexpr std::size_t kNamed = 4;
  const double largest = std::ranges::max(groups, {}, &ChannelGroup::largest).largest;
  std::string words;
  std::size_t named = 0;
  for (const ChannelGroup& group : groups) {
    if (named == kNamed || group.largest < largest / 10) continue;
    ++named;
    words += fmt::format("{}{} in {} of {} heads (largest {:.4g}: layer {}, head {})", words.empty() ? "" : ", ", group.channel, group.heads, of_heads, group.largest,
                         group.layer, group.head);
  }
  if (const std::size_t rest = groups.size() - named; rest > 0) words += fmt::format(" and {} other{}", rest, rest == 1 ? "" : "s");
  return words;
}

ScanVerdict judge(const Scan& scan) {
  if (!scan.probe) return from_weights(scan);
  const ProbeResult& probe = *scan.probe;
  const VariantFigures& keys = figures_of(probe.keys, Rounding::e4m3);
  const VariantFigures& values = figures_of(probe.values, Rounding::e4m3);
  ScanVerdict verdict;
  verdict.alarm = past_gate(keys) || past_gate(values) || past_gate(probe.both);
  if (past_gate(keys)) verdict.findings.push_back(key_finding(scan));
  if (past_gate(values)) verdict.findings.push_back(value_finding(scan));
  if (!past_gate(keys) && !scan.biases.alarms.empty()) {
    verdict.findings.push_back({"key bias, borne", fmt::format("Key biases reach {:.4g} (channel {}), but E4M3 keys cost only {}.", std::abs(scan.biases.alarms.front().bias),
                                                               channels_in_words(by_channel(scan.biases.alarms), scan.config.layers * scan.config.kv_heads), cost(keys))});
  }
  if (verdict.findings.empty()) {
    verdict.findings.push_back({"none", fmt::format("E4M3 keys cost {}; E4M3 values {}.{}", cost(keys), cost(values),
                                                    past_gate(probe.both) ? fmt::format(" Only both together are past the gate: {}.", cost(probe.both)) : "")});
  }

  const auto qualify = [&](const char* candidate) { return fmt::format("keel qualify {} --candidate {}", scan.model, candidate); };
  const SpareTest* scaled = test_of(probe.value_tests, Spare::nothing, true);
  if (!verdict.alarm) {
    verdict.advice = "8-bit keys and values are worth qualifying.";
    verdict.next = {qualify("k8v8"), qualify("k16v8")};
  } else if (!past_gate(values)) {
    verdict.advice = "Keep keys at 16 bits; 8-bit values are worth qualifying.";
    verdict.next = {qualify("k16v8")};
  } else if (scaled != nullptr && !past_gate(scaled->figures)) {
    verdict.advice = "8-bit values want scales of their own: calibrate them, then qualify with them.";
    verdict.next = {fmt::format("keel calibrate {} --data FILE -o scales.json", scan.model), qualify("k16v8") + " --kv-scales scales.json"};
  } else {
    verdict.advice = "Keep keys and values at 16 bits.";
    verdict.next = {fmt::format("keel serve {} --kv-cache-dtype k16v16", scan.model)};
    return verdict;
  }
  if (!past_gate(figures_of(probe.values, Rounding::int4))) verdict.next.push_back(qualify("k16v4"));
  return verdict;
}

}  // namespace keel
