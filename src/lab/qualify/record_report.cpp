// The record as one page: the verdict first, then each gate with its figures and pictures.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>

#include "lab/html_page.h"
#include "lab/qualify/record.h"

namespace keel {
namespace {

using Figures = nlohmann::ordered_json;

std::string text_of(const Figures& json, const char* key) { return json.at(key).is_string() ? json.at(key).get<std::string>() : json.at(key).dump(); }
Tone tone_of(const std::string& verdict) { return verdict == "pass" ? Tone::good : verdict == "fail" ? Tone::bad : Tone::plain; }

std::string percent(double share) { return fmt::format("{:.3g} %", share * 100); }
std::string nats(double x) { return fmt::format("{:+.6f}", x); }

// {"rows_wrong": 0, "inputs": ["f16"]} as "rows wrong 0; inputs f16".
std::string in_words(const Figures& detail) {
  std::string words;
  for (const auto& [key, value] : detail.items()) {
    std::string text;
    if (value.is_array()) {
      for (const Figures& one : value) text += (text.empty() ? "" : ", ") + (one.is_string() ? one.get<std::string>() : one.dump());
    } else {
      text = value.is_string() ? value.get<std::string>() : value.is_number_float() ? fmt::format("{:.4g}", value.get<double>()) : value.is_object() ? in_words(value) : value.dump();
    }
    words += fmt::format("{}{} {}", words.empty() ? "" : "; ", key, text);
  }
  std::replace(words.begin(), words.end(), '_', ' ');
  return words;
}

void add_production(HtmlPage& page, const Figures& gate) {
  const Figures& f = gate.at("figures");
  std::vector<std::vector<std::string>> rows;
  for (const Figures& item : gate.at("items")) {
    const Figures& detail = item.at("detail");
    std::string words;
    for (const char* key : {"detected_by", "why", "first"}) {
      if (detail.contains(key) && words.empty()) words = text_of(detail, key);
    }
    if (words.empty()) words = in_words(detail);
    rows.push_back({text_of(item, "name"), text_of(item, "outcome"), words});
  }
  page.paragraph(fmt::format("{} checks; {} of {} faults made on purpose in the same path were detected ({} wanted at least).", f.at("checks").get<int>(), f.at("faults_detected").get<int>(),
                             f.at("faults_made").get<int>(), f.at("least_faults").get<int>()));
  page.table(std::vector<std::string>{"check or fault", "outcome", "what was found"}, rows);
}

void add_nll(HtmlPage& page, const Figures& gate) {
  const Figures& f = gate.at("figures");
  if (f.is_null()) return;
  const Figures &rerun = f.at("rerun"), &power = f.at("power"), &floor = f.at("floor");
  page.table(std::vector<std::string>{"arm", "mean rise (nats)", "upper limit", "mean KL (nats)", "same first choice"},
             std::vector<std::vector<std::string>>{
                 {"candidate", nats(f.at("mean_rise")), nats(f.at("rise_upper")), fmt::format("{:.3g}", f.at("mean_kl").get<double>()), percent(f.at("top1_agreement"))},
                 {"control, rerun", nats(rerun.at("mean_rise")), nats(rerun.at("rise_upper")), fmt::format("{:.3g}", rerun.at("mean_kl").get<double>()), percent(rerun.at("top1_agreement"))}});
  page.paragraph(fmt::format("The candidate's upper limit may be {:.6f}. Control's own NLL {:.4f}, floor {:.4f}. Power: at this spread a mean rise of up to {} passes, and a candidate without any rise "
                             "passes with chance {}.",
                             f.at("limit").get<double>(), f.at("control_nll").get<double>(), floor.at("control_nll_at_most").get<double>(),
                             nats(power.at("largest_mean_rise_that_passes_at_this_spread")), percent(power.at("chance_to_pass_without_any_rise_at_this_spread"))));
  Series candidate{.name = "candidate", .points = {}, .mark = Mark::dots}, again{.name = "control, rerun", .points = {}, .mark = Mark::dots};
  for (const Figures& item : gate.at("items")) {
    const double at = item.at("document").get<double>() + 1, native = item.at("control");
    candidate.points.push_back({at, item.at("candidate").get<double>() - native});
    again.points.push_back({at, item.at("rerun").get<double>() - native});
  }
  Chart chart;
  chart.title = "NLL against the control, document by document";
  chart.x.label = "document";
  chart.y.label = "rise (nats a token)";
  chart.series = {candidate, again};
  chart.lines = {{.at = f.at("limit").get<double>(), .label = "limit of the mean's upper bound"}, {.at = f.at("mean_rise").get<double>(), .label = "candidate's mean"}};
  page.chart(draw(chart), "Each dot is the mean over a document's targets. The gate judges the mean over documents.");
}

void add_answers(HtmlPage& page, const Figures& gate) {
  const Figures& f = gate.at("figures");
  const Figures &power = f.at("power"), &floor = f.at("floor");
  std::vector<std::vector<std::string>> rows;
  RowChart chart;
  chart.title = "Gross loss: items that the control has right and the arm wrong";
  chart.axis.label = "share of all items (%)";
  chart.bars = false;
  for (const char* arm : {"candidate", "rerun"}) {
    const Figures& found = f.at(arm);
    const std::string label = arm == std::string("rerun") ? "control, rerun" : arm;
    const double items = found.at("items"), upper = found.at("gross_loss_upper"), losses = found.at("losses");
    rows.push_back({label, fmt::format("{} of {}", found.at("right").get<int>(), found.at("items").get<int>()), std::to_string(found.at("losses").get<int>()), std::to_string(found.at("gains").get<int>()), percent(upper)});
    chart.rows.push_back({.label = label, .values = {100 * losses / items}, .interval = Interval{100 * losses / items, 100 * upper}, .text = percent(upper)});
  }
  chart.lines = {{.at = 100 * f.at("limit").get<double>(), .label = "limit", .vertical = true}};
  page.table(std::vector<std::string>{"arm", "right", "losses", "gains", "gross loss, upper limit"}, rows);
  page.paragraph(fmt::format("Control: {} of {} right, floor {}. Power: {} losses pass; at the control's own loss rate of {} the gate passes with chance {}.", f.at("candidate").at("control_right").get<int>(),
                             f.at("candidate").at("items").get<int>(), percent(floor.at("control_right_at_least")),
                             power.at("most_losses_that_pass").is_null() ? std::string("not even no") : "at most " + std::to_string(power.at("most_losses_that_pass").get<int>()),
                             percent(power.at("control_own_loss_rate")), percent(power.at("chance_to_pass_at_that_rate"))));
  page.chart(draw(chart), "Dots are what was counted, whiskers reach to the one-sided 95 % upper limit.");
  // Needles say their length before the comma of their label.
  std::map<std::int64_t, std::array<int, 4>> by_length;  // cases, right of control, rerun and candidate
  for (const Figures& item : gate.at("items")) {
    const std::string label = text_of(item, "item");
    const std::size_t end = label.find(" tokens,");
    if (end == std::string::npos) continue;
    std::array<int, 4>& counts = by_length[std::stoll(label.substr(0, end))];
    ++counts[0];
    for (int arm = 0; arm < 3; ++arm) counts[static_cast<std::size_t>(arm) + 1] += item.at(arm == 0 ? "control" : arm == 1 ? "rerun" : "candidate").at("right").get<bool>();
  }
  if (!by_length.empty()) {
    std::vector<std::vector<std::string>> lengths;
    for (const auto& [length, counts] : by_length) {
      lengths.push_back({std::to_string(length), std::to_string(counts[0]), std::to_string(counts[1]), std::to_string(counts[2]), std::to_string(counts[3])});
    }
    page.table(std::vector<std::string>{"context (tokens)", "cases", "control right", "rerun right", "candidate right"}, lengths);
  }
  // What changed, in the model's words.
  std::string changed;
  for (const Figures& item : gate.at("items")) {
    const bool native = item.at("control").at("right"), right = item.at("candidate").at("right");
    if (native == right) continue;
    changed += fmt::format("{}: {}\n  control:   {}\n  candidate: {}\n", text_of(item, "item"), native ? "lost" : "gained", item.at("control").at("answer").dump(), item.at("candidate").at("answer").dump());
  }
  if (!changed.empty()) page.details("Items whose outcome changed", changed);
}

}  // namespace

std::string record_report(const nlohmann::ordered_json& record) {
  const Figures& plan = record.at("plan");
  const Figures& subject = plan.at("subject");
  const std::string verdict = record.at("verdict");
  HtmlPage page(fmt::format("{} on {}", text_of(subject, "candidate"), text_of(subject, "model")), "Qualification of a KV cache format against the same model with 16-bit keys and values.");
  page.verdict(tone_of(verdict), verdict == "pass" ? "Qualified" : verdict == "fail" ? "Not qualified" : "Not reached", text_of(record, "why"));
  std::vector<std::pair<std::string, std::string>> facts{{"model", text_of(subject, "model") + ", " + text_of(subject, "weights")},
                                                         {"model digest", text_of(subject, "model_digest")},
                                                         {"candidate", text_of(subject, "candidate")},
                                                         {"control", text_of(subject, "control")},
                                                         {"scales", text_of(subject, "scales")},
                                                         {"device", text_of(record.at("ran"), "device")},
                                                         {"build", text_of(subject, "build_line") + ", commit " + text_of(record.at("ran"), "keel_commit")},
                                                         {"plan", text_of(record, "plan_sha256")},
                                                         {"text", text_of(plan.at("panel"), "text")}};
  page.facts(facts);
  for (const Figures& gate : record.at("gates")) {
    const std::string name = text_of(gate, "gate"), outcome = text_of(gate, "verdict");
    page.section(name == "production" ? "Production" : name == "nll" ? "NLL of cached decode" : name == "retrieval" ? "Retrieval" : "Questions: " + text_of(plan.at("gates").at(3), "panel"));
    page.verdict(tone_of(outcome), outcome, text_of(gate, "why"));
    if (gate.at("figures").is_null()) continue;
    if (name == "production") {
      add_production(page, gate);
    } else if (name == "nll") {
      add_nll(page, gate);
    } else {
      add_answers(page, gate);
    }
  }
  page.section("What this does not cover");
  page.list(record.at("does_not_cover").get<std::vector<std::string>>());
  page.details("The frozen plan", plan.dump(1));
  return page.text();
}

}  // namespace keel
