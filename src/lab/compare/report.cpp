#include "lab/compare/report.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>

#include "lab/html_page.h"

namespace keel {
namespace {

std::string ratio_words(const RatioFigures& figures) {
  if (!figures.median) return "none";
  return fmt::format("{:.5f} [{:.5f}, {:.5f}]", *figures.median, figures.interval->lower, figures.interval->upper);
}

std::string gate_words(const ComparisonResult& one) {
  if (one.gates.empty()) return "none planned: this says nothing about quality";
  std::string words;
  for (const ComparisonGate& gate : one.gates) words += fmt::format("{}{} {} ({})", words.empty() ? "" : "; ", gate.record, gate.passes ? "passes" : "does not pass", gate.words);
  return words;
}

std::string sign_words(const ComparisonResult& one) {
  if (!one.sign) return fmt::format("{} of {} blocks have a ratio: no test", one.figures.present, one.figures.ratios.size());
  return fmt::format("{} wins, {} ties, {} losses", one.sign->wins, one.sign->ties, one.sign->losses);
}

// What every reader of a result has to know.
std::vector<std::string> limits_of(const ComparePlan& plan, const CompareResult& result) {
  std::vector<std::string> limits{fmt::format("One workload ({} requests at once of {} tokens in and {} out), one machine, the builds named below.", plan.workload.prompts,
                                              plan.workload.input_tokens, plan.workload.output_tokens),
                                  "The interval is descriptive: the exact bootstrap of the median, not adjusted for several comparisons. Figures beside the planned metric are described, not tested."};
  if (least_adjusted_p(plan) > kMostGainP) limits.push_back(fmt::format("{} blocks with a family of {} can confirm no gain: even all wins give an adjusted p of {:.4g}.", plan.blocks, plan.family, least_adjusted_p(plan)));
  const bool ungated = std::ranges::any_of(result.comparisons, [](const ComparisonResult& one) { return one.gates.empty() && one.planned.kind == ComparisonKind::gain; });
  if (ungated) limits.emplace_back("A gain without a quality gate is a gain in speed alone.");
  const bool guards = std::ranges::any_of(result.comparisons, [](const ComparisonResult& one) { return one.planned.kind == ComparisonKind::guard; });
  if (guards) limits.push_back(fmt::format("A guard (median at least {}) screens for harm; it does not show that two arms are alike.", kLeastGuard));
  return limits;
}

PlanJson figures_json(const RatioFigures& figures, ArmMetric metric) {
  PlanJson json{{"metric", info(metric).key}, {"unit", info(metric).unit}, {"ratio_is", info(metric).rate ? "candidate / control" : "control / candidate"}, {"ratios", PlanJson::array()}};
  for (const auto& ratio : figures.ratios) json["ratios"].push_back(ratio ? PlanJson(*ratio) : PlanJson());
  json["median_ratio"] = figures.median ? PlanJson(*figures.median) : PlanJson();
  json["interval"] = figures.interval ? PlanJson{figures.interval->lower, figures.interval->upper} : PlanJson();
  json["median_candidate"] = figures.candidate ? PlanJson(*figures.candidate) : PlanJson();
  json["median_control"] = figures.control ? PlanJson(*figures.control) : PlanJson();
  return json;
}

// What an arm attested in its first run that did not fail.
PlanJson ran_of(const std::string& arm, const std::vector<CompareBlock>& blocks) {
  for (const CompareBlock& block : blocks) {
    for (const ArmRun& run : block.runs) {
      if (run.arm == arm && run.error.empty()) return run.ran;
    }
  }
  return nullptr;
}

Tone tone_of(ComparisonVerdict verdict) {
  switch (verdict) {
    case ComparisonVerdict::gain:
    case ComparisonVerdict::guard_holds: return Tone::good;
    case ComparisonVerdict::no_gain: return Tone::plain;
    case ComparisonVerdict::guard_fails: return Tone::bad;
    case ComparisonVerdict::not_reached: return Tone::warning;
  }
  return Tone::plain;
}

Chart ratio_chart(const ComparisonResult& one) {
  const bool gain = one.planned.kind == ComparisonKind::gain;
  Chart chart{.title = "Ratio in each block", .x = {.label = "block"}, .y = {.label = fmt::format("{}, above 1 the candidate is better", info(one.planned.metric).title)}, .series = {}, .height = 300};
  chart.lines = {{.at = 1, .label = "equal"}, gain ? ReferenceLine{.at = kLeastGain, .label = "least gain"} : ReferenceLine{.at = kLeastGuard, .label = "guard"}};
  Series series{.name = one.planned.name, .points = {}, .mark = Mark::dots};
  for (std::size_t i = 0; i < one.figures.ratios.size(); ++i) {
    if (!one.figures.ratios[i]) continue;
    series.points.push_back({.x = static_cast<double>(i + 1), .y = *one.figures.ratios[i], .interval = {}, .note = fmt::format("block {}: {:.5f}", i + 1, *one.figures.ratios[i])});
  }
  chart.series.push_back(std::move(series));
  chart.x.low = 0.5, chart.x.high = static_cast<double>(one.figures.ratios.size()) + 0.5;
  return chart;
}

RowChart metric_chart(const ComparisonResult& one) {
  RowChart chart;
  chart.title = "Median ratio and its 95 % interval", chart.axis.label = "above 1 the candidate is better", chart.bars = false;
  chart.lines = {{.at = 1, .label = "equal"}};
  const auto row = [&](ArmMetric metric, const RatioFigures& figures) {
    ChartRow one_row{.label = info(metric).title, .values = {}, .interval = figures.interval, .text = ratio_words(figures)};
    if (figures.median) one_row.values = {*figures.median};
    chart.rows.push_back(std::move(one_row));
  };
  row(one.planned.metric, one.figures);
  for (const auto& [metric, figures] : one.beside) row(metric, figures);
  return chart;
}

Chart arm_chart(const ComparePlan& plan, const std::vector<CompareBlock>& blocks, ArmMetric metric) {
  Chart chart{.title = fmt::format("Each arm's {}", info(metric).title), .x = {.label = "block"}, .y = {.label = info(metric).unit}, .series = {}, .height = 300};
  for (const CompareArm& arm : plan.arms) {
    Series series{.name = arm.name, .points = {}};
    for (const CompareBlock& block : blocks) {
      for (std::size_t place = 0; place < block.runs.size(); ++place) {
        const ArmRun& run = block.runs[place];
        if (run.arm != arm.name) continue;
        const auto found = run.error.empty() ? run.figures.find(metric) : run.figures.end();
        const double value = found == run.figures.end() ? NAN : found->second;
        series.points.push_back({.x = static_cast<double>(block.number), .y = value, .interval = {}, .note = fmt::format("{}, block {}, run {} of {}: {:.6g}", arm.name, block.number, place + 1, block.runs.size(), value)});
      }
    }
    chart.series.push_back(std::move(series));
  }
  chart.x.low = 0.5, chart.x.high = static_cast<double>(plan.blocks) + 0.5;
  return chart;
}

void add_comparison(HtmlPage& page, const ComparisonResult& one) {
  page.section(one.planned.name);
  std::string words;
  for (const std::string& reason : one.reasons) words += (words.empty() ? "" : "; ") + reason;
  page.verdict(tone_of(one.verdict), name(one.verdict), words);
  std::vector<std::pair<std::string, std::string>> facts{{"candidate, control", one.planned.candidate + ", " + one.planned.control},
                                                         {"metric", fmt::format("{}, {}", info(one.planned.metric).title, info(one.planned.metric).unit)},
                                                         {"median of within-block ratios", ratio_words(one.figures)}, {"blocks", sign_words(one)}};
  if (one.planned.kind == ComparisonKind::gain) {
    facts.emplace_back("one-sided sign test", one.sign ? fmt::format("p = {:.6g}", one.p) : "p = 1: a block is missing");
    facts.emplace_back("adjusted by Holm", fmt::format("p = {:.6g}", one.adjusted_p));
  }
  facts.emplace_back("gates", gate_words(one));
  page.facts(facts).chart(draw(ratio_chart(one))).chart(draw(metric_chart(one)), "Times are turned over, control / candidate. Only the planned metric is tested.");
  std::vector<std::vector<std::string>> rows;
  const auto row = [&](ArmMetric metric, const RatioFigures& figures) {
    const auto cell = [](const std::optional<double>& value) { return value ? fmt::format("{:.6g}", *value) : "none"; };
    rows.push_back({fmt::format("{}, {}", info(metric).title, info(metric).unit), cell(figures.candidate), cell(figures.control), ratio_words(figures), fmt::format("{}", figures.present)});
  };
  row(one.planned.metric, one.figures);
  for (const auto& [metric, figures] : one.beside) row(metric, figures);
  const std::vector<std::string> head{"figure", one.planned.candidate + ", median", one.planned.control + ", median", "median ratio [95 %]", "blocks"};
  page.table(head, rows);
}

}  // namespace

std::string to_text(const ComparePlan& plan, const CompareResult& result) {
  std::string text = fmt::format("{}: {} of {} blocks, plan {}\n", plan.name, result.finished, result.planned, plan.sha256.substr(0, 16));
  for (const ComparisonResult& one : result.comparisons) {
    std::string verdict(name(one.verdict));
    if (one.verdict == ComparisonVerdict::gain) std::ranges::transform(verdict, verdict.begin(), [](char c) { return std::toupper(c); });
    text += fmt::format("\n{}: {}\n", one.planned.name, verdict);
    text += fmt::format("  {}: median ratio {}; {}\n", info(one.planned.metric).title, ratio_words(one.figures), sign_words(one));
    if (one.planned.kind == ComparisonKind::gain) text += fmt::format("  p {:.6g}, adjusted {:.6g} (Holm, family of {})\n", one.p, one.adjusted_p, plan.family);
    text += fmt::format("  gates: {}\n", gate_words(one));
    for (const auto& [metric, figures] : one.beside) text += fmt::format("  beside: {:<28} {}\n", info(metric).title, ratio_words(figures));
    for (const std::string& reason : one.reasons) text += fmt::format("  because {}\n", reason);
  }
  for (const FailedRun& run : result.failed) text += fmt::format("\nfailed: block {}, {}: {}\n", run.block, run.arm, run.reason);
  return text + fmt::format("\n{}.\n", result.headline);
}

PlanJson as_json(const ComparePlan& plan, const CompareResult& result, const std::vector<CompareBlock>& blocks) {
  PlanJson json{{"plan_sha256", plan.sha256}, {"record", "keel bench compare report"}, {"name", plan.name}, {"headline", result.headline}, {"verdict", name(result.overall)},
                {"exit_code", result.exit_code}, {"blocks_planned", result.planned}, {"blocks_finished", result.finished}, {"family", plan.family},
                {"rules", {{"least_gain", kLeastGain}, {"most_adjusted_p", kMostGainP}, {"least_guard", kLeastGuard}}}, {"comparisons", PlanJson::array()}};
  for (const ComparisonResult& one : result.comparisons) {
    const bool gain = one.planned.kind == ComparisonKind::gain;
    PlanJson entry{{"name", one.planned.name}, {"candidate", one.planned.candidate}, {"control", one.planned.control}, {"kind", gain ? "gain" : "guard"}, {"verdict", name(one.verdict)}, {"reasons", one.reasons}};
    entry["gates"] = PlanJson::array();
    for (const ComparisonGate& gate : one.gates) entry["gates"].push_back({{"record", gate.record}, {"passes", gate.passes}, {"found", gate.words}});
    if (one.gates.empty()) entry["gates"] = "none";
    entry["judged"] = figures_json(one.figures, one.planned.metric);
    entry["sign"] = one.sign ? PlanJson{{"wins", one.sign->wins}, {"ties", one.sign->ties}, {"losses", one.sign->losses}} : PlanJson();
    if (gain) entry["p"] = one.p, entry["adjusted_p"] = one.adjusted_p;
    entry["beside"] = PlanJson::array();
    for (const auto& [metric, figures] : one.beside) entry["beside"].push_back(figures_json(figures, metric));
    json["comparisons"].push_back(std::move(entry));
  }
  json["failed"] = PlanJson::array();
  for (const FailedRun& run : result.failed) json["failed"].push_back({{"block", run.block}, {"arm", run.arm}, {"reason", run.reason}});
  for (const CompareArm& arm : plan.arms) json["ran"][arm.name] = ran_of(arm.name, blocks);
  json["limits"] = limits_of(plan, result);
  return json;
}

std::string to_html(const ComparePlan& plan, const CompareResult& result, const std::vector<CompareBlock>& blocks) {
  HtmlPage page(plan.name, plan.question);
  std::string words = fmt::format("{} of {} blocks; plan {}", result.finished, result.planned, plan.sha256.substr(0, 16));
  for (const ComparisonResult& one : result.comparisons) words += fmt::format("; {}: {}", one.planned.name, name(one.verdict));
  page.verdict(tone_of(result.overall), result.headline, words);
  for (const ComparisonResult& one : result.comparisons) add_comparison(page, one);
  page.section("Arms");
  std::vector<ArmMetric> shown;
  for (const ComparisonResult& one : result.comparisons) {
    if (std::ranges::find(shown, one.planned.metric) == shown.end()) shown.push_back(one.planned.metric);
  }
  for (const ArmMetric metric : shown) page.chart(draw(arm_chart(plan, blocks, metric)), "In each block every arm ran once, in the frozen counterbalanced order.");
  for (const CompareArm& arm : plan.arms) page.details(arm.name + ": what ran", ran_of(arm.name, blocks).dump(2, ' ', false, PlanJson::error_handler_t::replace));
  if (!result.failed.empty()) {
    page.section("Failed runs").paragraph("A failed run is in no figure; a comparison that lacks a block has no verdict, and p = 1 in its family.");
    std::vector<std::vector<std::string>> rows;
    for (const FailedRun& run : result.failed) rows.push_back({std::to_string(run.block), run.arm, run.reason});
    page.table(std::vector<std::string>{"block", "arm", "reason"}, rows);
  }
  page.section("What this does not say").list(limits_of(plan, result));
  page.section("Plan").details("frozen, SHA-256 " + plan.sha256, plan.source.dump(2, ' ', false, PlanJson::error_handler_t::replace));
  return page.text();
}

}  // namespace keel
