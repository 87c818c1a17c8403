// What a scan's numbers say in words: the likely mechanism, and what to run next. It screens; only `keel qualify` decides.
#pragma once

#include <string>
#include <vector>

#include "lab/scan/scan.h"

namespace keel {

// A test of `Spare` names the cause where it takes away at least kSubstantial of the damage (mean KL) and the displaced control at
// least kSeparation less.
inline constexpr double kSubstantial = 0.70, kSeparation = 0.20;

struct Finding {
  std::string mechanism;  // "key bias", "unrotated key channels", "few large key channels", "range of keys", "keys everywhere",
                          // "range of values", "values everywhere", "key bias, suspected", "key bias, borne", "none"
  std::string words;      // a sentence or some, with the numbers it rests on
};

struct ScanVerdict {
  bool alarm = false;               // E4M3 of keys or values is past the gate, or the weights alone warn and nothing was probed
  std::vector<Finding> findings;    // at least one
  std::vector<std::string> next;    // command lines, the most useful first
  std::string advice;
};

struct Scan {
  std::string model;    // as its user wrote it: for command lines
  std::string weights;  // format
  ModelConfig config;
  WeightScan biases;
  std::optional<ProbeResult> probe;
};

ScanVerdict judge(const Scan& scan);

// The layer whose rounding alone costs most KL, and its share of the sum over layers.
struct WorstLayer {
  std::int64_t layer;
  double kl, share;
};
WorstLayer worst_layer(std::span<const EachRounding> layers, Rounding rounding);

// By channel, most heads first; in words "31 in 16 of 16 heads (largest 300.7: layer 3, head 1)", those of at least a tenth of the largest.
struct ChannelGroup {
  std::int64_t channel, heads;
  std::int64_t layer, head;  // of the largest
  double largest;            // |value|
};
std::vector<ChannelGroup> by_channel(std::span<const KeyChannel> channels);
std::string channels_in_words(std::span<const ChannelGroup> groups, std::int64_t of_heads);

}  // namespace keel
