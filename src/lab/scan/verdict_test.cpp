// What is said of numbers that are given: every mechanism, and none where nothing is wrong.
#include "lab/scan/verdict.h"

#include <gtest/gtest.h>

#include <cmath>

#include "lab/scan/scan_report.h"
#include "lab/xml_problem.h"

namespace keel {
namespace {

VariantFigures figures(double kl, double top1 = 0.99) {
  return {.targets = 2040, .nll = 3 + kl, .nll_rise = kl, .nll_rise_error = kl / 10, .kl = kl, .top1 = top1, .last_logit_error = std::vector<double>(8, kl)};
}
EachRounding each(double e4m3) { return {figures(10 * e4m3), figures(e4m3), figures(e4m3 / 10), figures(e4m3)}; }

Scan scan(double keys, double values) {
  Scan made;
  made.model = "MODEL";
  made.weights = "made up";
  made.config.layers = 2, made.config.heads = 4, made.config.kv_heads = 1, made.config.head_dim = 8, made.config.rotary_dim = 4;
  made.config.inverse_frequencies = {1, 0.1};
  ProbeResult& probe = made.probe.emplace();
  probe.cache = {DType::f16, DType::f16};
  probe.native_nll = 3;
  probe.keys = each(keys), probe.values = each(values);
  probe.both = figures(keys + values);
  probe.layer_keys = {each(keys / 5), each(keys)}, probe.layer_values = {each(values), each(values / 5)};
  probe.screen.tau = 1;
  for (SeenSide* side : {&probe.seen.keys, &probe.seen.values}) {
    side->elements = 1000;
    side->largest.assign(16, 2.0f);
  }
  probe.seen.keys.largest[13] = 50;
  return made;
}

SpareTest test(Spare spare, double recovery, bool calibrated = false) {
  return {.variant = {.keys = Rounding::e4m3, .spare = spare, .calibrated = calibrated}, .figures = figures(0.1 * (1 - recovery)), .recovery = recovery};
}

std::string mechanism(std::vector<SpareTest> key_tests) {
  Scan made = scan(0.1, 0.0001);
  made.probe->key_tests = std::move(key_tests);
  const ScanVerdict verdict = judge(made);
  EXPECT_TRUE(verdict.alarm);
  EXPECT_EQ(verdict.next.front(), "keel qualify MODEL --candidate k16v8");
  EXPECT_EQ(xml_problem(to_html(made, verdict)), std::nullopt);
  return verdict.findings.at(0).mechanism;
}

TEST(ScanVerdict, NamesWhatCarriesTheDamage) {
  EXPECT_EQ(mechanism({test(Spare::bias, 0.97), test(Spare::displaced_bias, 0.05), test(Spare::largest, 0.99)}), "key bias");
  EXPECT_EQ(mechanism({test(Spare::bias, 0.69), test(Spare::displaced_bias, 0.05), test(Spare::largest, 0.99)}), "few large key channels");
  EXPECT_EQ(mechanism({test(Spare::bias, 0.97), test(Spare::displaced_bias, 0.9), test(Spare::largest, 0.2)}), "keys everywhere");
  EXPECT_EQ(mechanism({test(Spare::rotated, 0.1), test(Spare::unrotated, 0.9), test(Spare::largest, 0.8)}), "unrotated key channels");
  EXPECT_EQ(mechanism({test(Spare::rotated, 0.9), test(Spare::unrotated, 0.1), test(Spare::largest, 0.2)}), "keys everywhere");
  EXPECT_EQ(mechanism({test(Spare::largest, 0.9), test(Spare::nothing, 0.8, true)}), "range of keys");
  EXPECT_EQ(mechanism({test(Spare::largest, 0.3), test(Spare::nothing, 0.3, true)}), "keys everywhere");
}

TEST(ScanVerdict, NamesTheLargestChannelAndTheWorstLayer) {
  Scan made = scan(0.1, 0.0001);
  made.probe->key_tests = {test(Spare::largest, 0.9)};
  const std::string words = judge(made).findings[0].words;
  EXPECT_NE(words.find("channel 5 in 1 of 2 heads (largest 50: layer 1, head 0)"), std::string::npos) << words;
  EXPECT_NE(words.find("layer 1 costs most"), std::string::npos) << words;
  EXPECT_NE(words.find("83 %"), std::string::npos) << words;
}

TEST(ScanVerdict, AdvisesBySideThatIsPastTheGate) {
  const ScanVerdict healthy = judge(scan(0.001, 0.001));
  EXPECT_FALSE(healthy.alarm);
  EXPECT_EQ(healthy.findings[0].mechanism, "none");
  EXPECT_EQ(healthy.next, (std::vector<std::string>{"keel qualify MODEL --candidate k8v8", "keel qualify MODEL --candidate k16v8"}));

  const ScanVerdict together = judge(scan(0.006, 0.006));  // either within, both past
  EXPECT_TRUE(together.alarm);
  EXPECT_EQ(together.next.front(), "keel qualify MODEL --candidate k16v8");

  Scan values = scan(0.001, 0.1);
  EXPECT_EQ(judge(values).findings[0].mechanism, "values everywhere");
  EXPECT_EQ(judge(values).next.front(), "keel serve MODEL --kv-cache-dtype k16v16");
  values.probe->value_tests = {{.variant = {.values = Rounding::e4m3, .calibrated = true}, .figures = figures(0.001), .recovery = 0.99}};
  EXPECT_EQ(judge(values).findings[0].mechanism, "range of values");
  EXPECT_EQ(judge(values).next.back(), "keel qualify MODEL --candidate k16v8 --kv-scales scales.json");

  const ScanVerdict fine = judge(scan(0.1, 0.0005));  // values bear four bits too
  EXPECT_EQ(fine.next.back(), "keel qualify MODEL --candidate k16v4");
}

TEST(ScanVerdict, WhatIsNoNumberIsAnAlarm) {
  Scan made = scan(0.001, 0.001);
  made.probe->keys[3] = figures(NAN, 0);
  EXPECT_TRUE(judge(made).alarm);
  EXPECT_EQ(bearing_of(figures(NAN, 0)), Bearing::catastrophic);
  EXPECT_TRUE(past_gate(figures(NAN)));
}

TEST(ScanVerdict, BearingFollowsItsThresholds) {
  EXPECT_EQ(bearing_of(figures(0.015, 0.98)), Bearing::tolerant);
  EXPECT_EQ(bearing_of(figures(0.0151, 0.98)), Bearing::material);
  EXPECT_EQ(bearing_of(figures(0.001, 0.979)), Bearing::material);
  EXPECT_EQ(bearing_of(figures(0.1501, 0.9)), Bearing::catastrophic);
  EXPECT_EQ(bearing_of(figures(0.001, 0.79)), Bearing::catastrophic);
  VariantFigures doubled = figures(0.7);
  doubled.nll = 100;
  EXPECT_EQ(bearing_of(doubled), Bearing::catastrophic);
}

TEST(ScanVerdict, WeightsAloneAdviseAProbe) {
  Scan made = scan(0, 0);
  made.probe.reset();
  EXPECT_FALSE(judge(made).alarm);
  EXPECT_EQ(judge(made).next.front(), "keel scan MODEL");
  made.biases.has_key_bias = true;
  made.biases.alarms = {{.layer = 1, .head = 0, .channel = 5, .partner = {}, .bias = -414, .e4m3_step = 32}};
  made.biases.largest = made.biases.alarms;
  const ScanVerdict verdict = judge(made);
  EXPECT_TRUE(verdict.alarm);
  EXPECT_EQ(verdict.findings[0].mechanism, "key bias, suspected");
  EXPECT_NE(verdict.findings[0].words.find("channel 5"), std::string::npos);
  EXPECT_NE(to_table(made, verdict).find("-414"), std::string::npos);
  made.config.qk_norm = true;  // the norm takes the constant away
  EXPECT_FALSE(judge(made).alarm);
}

}  // namespace
}  // namespace keel
