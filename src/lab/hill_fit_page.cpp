#include <algorithm>
#include <cmath>
#include <fmt/format.h>

#include "lab/chart.h"
#include "lab/hill_fit_report.h"
#include "lab/html_page.h"

namespace keel {
namespace {

std::string name_of(const HillFit& fit) { return fmt::format("context {:.6g}{}", fit.context, fit.flags.empty() ? "" : " (flagged)"); }

// Values between two ends, evenly in their logarithms, ends exact.
std::vector<double> spaced(double low, double high, int steps) {
  std::vector<double> values{low};
  for (int i = 1; i < steps && high > low; ++i) values.push_back(low * std::pow(high / low, static_cast<double>(i) / steps));
  if (high > low) values.push_back(high);
  return values;
}

Chart throughput_chart(std::span<const HillFit> fits) {
  Chart chart{.title = "Decode throughput", .x = {.label = "sequences in a decode step", .scale = Scale::log2}, .y = {.label = "output tokens/s", .low = 0}};
  double high = 0;
  for (std::size_t i = 0; i < fits.size(); ++i) {
    const HillFit& fit = fits[i];
    Series curve{.name = name_of(fit), .points = {}, .mark = Mark::line, .colour = static_cast<int>(i), .band = true};
    for (const double batch : spaced(fit.points.front().batch, fit.points.back().batch, 60)) {
      curve.points.push_back({.x = batch, .y = fit.hill.at(batch), .interval = curve_interval(fit, batch)});
      high = std::max(high, curve.points.back().y);
    }
    Series measured{.name = curve.name, .points = {}, .mark = Mark::dots, .colour = curve.colour};
    for (const SweepPoint& point : fit.points) {
      measured.points.push_back({.x = point.batch, .y = point.tokens_per_s, .note = fmt::format("context {:.6g}, batch {:.6g}: {:.6g} tokens/s", fit.context, point.batch, point.tokens_per_s)});
      high = std::max(high, point.tokens_per_s);
    }
    chart.series.push_back(std::move(curve));
    chart.series.push_back(std::move(measured));
  }
  chart.y.high = 1.06 * high;  // a band that is wider than the data is cut
  return chart;
}

Chart residual_chart(std::span<const HillFit> fits) {
  Chart chart{.title = "Residuals", .x = {.label = "sequences in a decode step", .scale = Scale::log2}, .y = {.label = "(measured − fitted) / fitted, %"}, .lines = {{.at = 0}}, .height = 240};
  for (std::size_t i = 0; i < fits.size(); ++i) {
    Series off{.name = name_of(fits[i]), .points = {}, .mark = Mark::dots, .colour = static_cast<int>(i)};
    for (std::size_t p = 0; p < fits[i].points.size(); ++p) {
      const double batch = fits[i].points[p].batch, share = 100 * fits[i].residuals[p] / fits[i].hill.at(batch);
      off.points.push_back({.x = batch, .y = share, .note = fmt::format("batch {:.6g}: {:+.3g} %", batch, share)});
    }
    chart.series.push_back(std::move(off));
  }
  return chart;
}

// What so many times the largest batch buys and costs.
Chart capacity_chart(std::span<const HillFit> fits, double asked) {
  Chart chart{.title = "More sequences at once, by the fitted curves", .x = {.label = "times the largest measured batch"}, .y = {.label = "throughput (line) and time per token (dashed), times"}};
  const double most = std::max(4.0, 1.2 * asked);
  for (std::size_t i = 0; i < fits.size(); ++i) {
    const HillFit& fit = fits[i];
    Series gain{.name = name_of(fit), .points = {}, .mark = Mark::line, .colour = static_cast<int>(i)};
    Series cost{.name = "", .points = {}, .mark = Mark::line, .colour = static_cast<int>(i), .dashed = true};
    for (const double factor : spaced(1, most, 30)) {
      gain.points.push_back({.x = factor, .y = fit.hill.throughput_gain(fit.points.back().batch, factor)});
      cost.points.push_back({.x = factor, .y = fit.hill.token_time_gain(fit.points.back().batch, factor)});
    }
    chart.series.push_back(std::move(gain));
    chart.series.push_back(std::move(cost));
  }
  chart.lines = {{.at = asked, .label = fmt::format("{:.4g} ×", asked), .vertical = true}};
  return chart;
}

RowChart parameter_chart(std::span<const HillFit> fits, const std::string& title, double (*value)(const Hill&), std::optional<HillInterval> HillFit::*interval) {
  RowChart chart;
  chart.title = title, chart.bars = false;
  double low = INFINITY, high = 0;
  for (const HillFit& fit : fits) {
    const std::optional<HillInterval>& range = fit.*interval;
    const double at = value(fit.hill);
    ChartRow row{.label = fmt::format("context {:.6g}", fit.context), .values = {at}, .interval = {}, .text = fmt::format("{:.5g}", at)};
    if (range) {
      row.interval = Interval{range->low, range->high};
      row.text += fmt::format(" [{}{:.4g}, {}{:.4g}]", range->low_open ? "≤" : "", range->low, range->high_open ? "≥" : "", range->high);
    }
    low = std::min({low, at, range ? range->low : at}), high = std::max({high, at, range ? range->high : at});
    chart.rows.push_back(std::move(row));
  }
  if (high > 8 * low) chart.axis.scale = Scale::log10;
  return chart;
}

}  // namespace

std::string to_svg(std::span<const HillFit> fits, const std::string& title) {
  const Chart charts[] = {throughput_chart(fits), residual_chart(fits)};
  return svg_file(draw(charts, 1, title));
}

std::string to_html(std::span<const HillFit> fits, const FitQuestions& questions, const std::string& title) {
  HtmlPage page(title, "S(B) = Smax · B^γ / (B½^γ + B^γ), least squares in tokens/s, one fit a context. A description of these measurements: "
                       "it names no cause, and nothing outside them is measured.");
  std::vector<std::string> flags;
  for (const HillFit& fit : fits) {
    for (const std::string& flag : fit.flags) flags.push_back(fmt::format("context {:.6g}: {}", fit.context, flag));
  }
  if (!flags.empty()) page.verdict(Tone::warning, "What keeps these fits from being trusted whole").list(flags);
  page.section("Measured and fitted");
  page.chart(draw(throughput_chart(fits)), "Dots: measured. Lines: fitted; bands: pointwise 95 % interval of the fitted curve (linearised), not of a new measurement; none where the data do not give one.");
  page.chart(draw(residual_chart(fits)));
  page.section("Parameters");
  page.chart(draw(parameter_chart(fits, "Smax, tokens/s", [](const Hill& hill) { return hill.ceiling; }, &HillFit::ceiling)));
  page.chart(draw(parameter_chart(fits, "B½, sequences", [](const Hill& hill) { return hill.half_batch; }, &HillFit::half_batch)));
  page.chart(draw(parameter_chart(fits, "γ", [](const Hill& hill) { return hill.gamma; }, &HillFit::gamma)),
             "95 % profile intervals: values for which a refit of the other two is not worse than the F-test allows. ≤ and ≥: no limit found inside the search.");
  page.section("What a larger batch buys");
  page.chart(draw(capacity_chart(fits, questions.capacity)), "Extrapolated along the fitted curves: no queueing, prefill or speculation; another format is another curve.");
  std::vector<std::string> head{"context", "R²", "largest batch", "share of ceiling there", "elasticity there"};
  for (const double share : questions.shares) head.push_back(fmt::format("batch for {:.3g} %", 100 * share));
  std::vector<std::vector<std::string>> rows;
  for (const HillFit& fit : fits) {
    const double last = fit.points.back().batch;
    std::vector<std::string>& row = rows.emplace_back();
    row = {fmt::format("{:.6g}", fit.context), fmt::format("{:.6f}", fit.r_squared), fmt::format("{:.6g}", last), fmt::format("{:.1f} %", 100 * fit.hill.share(last)),
           fmt::format("{:.3f}", fit.hill.elasticity(last))};
    for (const double share : questions.shares) row.push_back(fmt::format("{:.5g}", fit.hill.batch_for_share(share)));
  }
  page.table(head, rows);
  page.section("Every number").details("as `keel fit` prints it", to_table(fits, questions)).details("as `keel fit --json` prints it", as_json(fits, questions).dump(2));
  return page.text();
}

}  // namespace keel
