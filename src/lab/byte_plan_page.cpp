#include <algorithm>
#include <cmath>
#include <fmt/format.h>

#include "base/bytes.h"
#include "lab/byte_plan_report.h"
#include "lab/html_page.h"

namespace keel {
namespace {

// From low to high, six values for every doubling.
std::vector<double> doubled(double low, double high) {
  std::vector<double> values;
  for (double value = low; value < high; value *= std::exp2(1.0 / 6)) values.push_back(value);
  values.push_back(high);
  return values;
}

double longest_context(const BytePlan& plan) {
  const std::int64_t limit = plan.rank.context_limit ? std::min(*plan.rank.context_limit, plan.rank.max_positions) : plan.rank.max_positions;
  return static_cast<double>(limit);
}

RowChart bytes_chart(const BytePlan& plan) {
  RowChart chart;
  chart.title = "Bytes a token", chart.axis.label = "bytes, all layers", chart.parts = {"keys", "values"};
  const KvGeometry geometry{plan.rank.layers, plan.rank.kv_heads, plan.rank.head_dim, plan.options.page_size};
  for (const FormatPlan& format : plan.formats) {
    const KvLayout layout(format.format, geometry);
    const double slots = static_cast<double>(geometry.page_size) / static_cast<double>(geometry.layers);
    chart.rows.push_back({.label = short_name(format.format),
                          .values = {static_cast<double>(layout.key_page_bytes()) / slots, static_cast<double>(layout.value_page_bytes()) / slots},
                          .interval = {},
                          .text = number_label(static_cast<double>(format.bytes_per_token), 1)});
  }
  return chart;
}

RowChart residents_chart(const BytePlan& plan) {
  RowChart chart;
  chart.title = fmt::format("Resident requests of {} slots", number_label(static_cast<double>(plan.request_slots), 1)), chart.axis.label = "requests";
  for (const FormatPlan& format : plan.formats) {
    const auto residents = static_cast<double>(format.residents);
    ChartRow row{.label = short_name(format.format), .values = {}, .interval = {}, .text = format.pool ? number_label(residents, 1) : "no pool"};
    if (format.pool) row.values = {residents};
    chart.rows.push_back(std::move(row));
  }
  return chart;
}

// A line a format over some quantity.
template <class Value>
Chart lines_over(const BytePlan& plan, Chart chart, const std::vector<double>& at, Value value) {
  for (const FormatPlan& format : plan.formats) {
    Series line{.name = short_name(format.format), .points = {}, .mark = Mark::line};
    for (const double x : at) line.points.push_back({.x = x, .y = value(format, x)});
    chart.series.push_back(std::move(line));
  }
  return chart;
}

Chart share_over_context(const BytePlan& plan) {
  const auto context = static_cast<double>(plan.options.context), longest = longest_context(plan);
  Chart chart{.title = fmt::format("KV share of a decode step's bytes, {} sequence{}", plan.options.batch, plan.options.batch == 1 ? "" : "s"),
              .x = {.label = "context, tokens", .scale = Scale::log2}, .y = {.label = "%", .low = 0, .high = 100}, .lines = {{context, "planned", true}}, .height = 320};
  return lines_over(plan, std::move(chart), doubled(std::min(256.0, longest), longest), [&](const FormatPlan& format, double x) {
    return 100 * kv_traffic_share(static_cast<double>(plan.weights.step), static_cast<double>(plan.options.batch), x, static_cast<double>(format.bytes_per_token), plan.options.other_step_bytes);
  });
}

Chart share_over_batch(const BytePlan& plan) {
  const auto batch = static_cast<double>(plan.options.batch);
  Chart chart{.title = fmt::format("KV share of a decode step's bytes, context {}", number_label(static_cast<double>(plan.options.context), 1)),
              .x = {.label = "sequences", .scale = Scale::log2}, .y = {.label = "%", .low = 0, .high = 100}, .lines = {{batch, "planned", true}}, .height = 320};
  return lines_over(plan, std::move(chart), doubled(1, std::max(256.0, batch)), [&](const FormatPlan& format, double x) {
    return 100 * kv_traffic_share(static_cast<double>(plan.weights.step), x, static_cast<double>(plan.options.context), static_cast<double>(format.bytes_per_token), plan.options.other_step_bytes);
  });
}

Chart residents_over_context(const BytePlan& plan) {
  const double output = static_cast<double>(plan.options.output), longest = longest_context(plan);
  const double most = std::max(1.0, longest - output), least = std::min(256.0, most);
  Chart chart{.title = "Resident requests over their context", .x = {.label = fmt::format("context, tokens ({} more are generated)", plan.options.output), .scale = Scale::log2},
              .y = {.label = "requests", .scale = Scale::log2}, .lines = {{static_cast<double>(plan.options.context), "planned", true}}, .height = 320};
  return lines_over(plan, std::move(chart), doubled(least, most), [&](const FormatPlan& format, double x) {
    return format.pool ? static_cast<double>(resident_requests(*format.pool, plan.options.page_size, std::llround(x + output) - 1)) : NAN;
  });
}

// The measured curve, with the batch that each format's pool holds.
Chart curve_chart(const BytePlan& plan, bool token_time) {
  const MeasuredCurve& curve = *plan.options.curve;
  const auto y = [&](double batch) { return token_time ? 1e3 * batch / curve.hill.at(batch) : curve.hill.at(batch); };
  double most = curve.largest_batch;
  for (const FormatPlan& format : plan.formats) most = std::max(most, static_cast<double>(format.residents));
  Chart chart{.title = token_time ? "Time per token" : "Throughput", .x = {.label = "sequences that decode at once", .scale = Scale::log2},
              .y = {.label = token_time ? "ms" : "output tokens/s", .low = 0}, .lines = {{curve.largest_batch, "largest measured", true}}, .height = 320};
  Series line{.name = fmt::format("fitted at context {:.6g}", curve.context), .points = {}, .mark = Mark::line, .colour = 7};
  for (const double batch : doubled(1, most)) line.points.push_back({.x = batch, .y = y(batch)});
  chart.series.push_back(std::move(line));
  int colour = 0;
  for (const FormatPlan& format : plan.formats) {
    if (format.residents > 0) {
      const auto batch = static_cast<double>(format.residents);
      const std::string note = fmt::format("{}: {} residents, {:.5g} {}", short_name(format.format), format.residents, y(batch), token_time ? "ms" : "tokens/s");
      chart.series.push_back({.name = short_name(format.format), .points = {{.x = batch, .y = y(batch), .note = note}}, .mark = Mark::dots, .colour = colour});
    }
    ++colour;
  }
  return chart;
}

RowChart link_chart(const BytePlan& plan, std::size_t workload) {
  RowChart chart;
  const LinkWorkload& what = plan.options.workloads[workload];
  chart.title = fmt::format("{}: {} within {} ms", what.name, what.moves, what.deadline_s * 1e3), chart.axis.label = "GB/s over the link, payload alone";
  for (const FormatPlan& format : plan.formats) {
    chart.rows.push_back({.label = short_name(format.format), .values = {format.link_gbps[workload]}, .interval = {}, .text = fmt::format("{:.4g}", format.link_gbps[workload])});
  }
  return chart;
}

}  // namespace

std::string to_html(const BytePlan& plan) {
  const PlanOptions& options = plan.options;
  HtmlPage page("KV cache plan: " + plan.model, fmt::format("{}: {} layers, {} KV heads of {}{}. Every figure is calculated from the config; none is measured{}.", plan.rank.architecture,
                                                            plan.rank.layers, plan.rank.kv_heads, plan.rank.head_dim,
                                                            options.ranks > 1 ? fmt::format("; one of {} tensor-parallel ranks", options.ranks) : "",
                                                            options.curve ? ", but for the throughput curve given with --fit" : ""));
  page.section("Bytes").chart(draw(bytes_chart(plan)));
  const bool pool = std::ranges::any_of(plan.formats, [](const FormatPlan& format) { return format.pool.has_value(); });
  if (options.pool_bytes > 0 || options.gpu_memory_bytes > 0) {
    page.section(options.pool_bytes > 0 ? "Capacity of " + format_bytes(options.pool_bytes) : fmt::format("Capacity of a GPU with {}", format_bytes(options.gpu_memory_bytes)));
    page.chart(draw(residents_chart(plan)));
    if (pool) page.chart(draw(residents_over_context(plan)), "Whole pages, no prefix shared. A line ends where not one request fits.");
    for (const FormatPlan& format : plan.formats) {
      if (!format.gpu_refusal.empty()) page.paragraph(short_name(format.format) + ": " + format.gpu_refusal);
    }
  }
  if (options.curve && pool) {
    page.section("What the residents buy and cost");
    if (!options.curve->flags.empty()) page.verdict(Tone::warning, "The fit is flagged").list(options.curve->flags);
    page.chart(draw(curve_chart(plan, false))).chart(draw(curve_chart(plan, true)),
               "All residents decode at once, along the one fitted curve: a format's own speed at equal batch is another measurement. Leaves out queueing, prefill and speculation; past the largest measured batch it is extrapolated.");
  }
  page.section("KV share of traffic").chart(draw(share_over_context(plan))).chart(draw(share_over_batch(plan)),
               fmt::format("B·T·b / (W + B·T·b + O), with {} of weights read a step. A byte model, not a profile.", format_bytes(plan.weights.step)));
  page.section("Over a link").paragraph("Three different requirements, not one for a disk.");
  for (std::size_t i = 0; i < options.workloads.size(); ++i) page.chart(draw(link_chart(plan, i)));
  page.section("Every number").details("as `keel plan` prints it", to_table(plan)).details("as `keel plan --json` prints it", as_json(plan).dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
  return page.text();
}

}  // namespace keel
