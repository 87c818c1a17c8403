#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "lab/chart.h"
#include "lab/chart_canvas.h"
#include "lab/markup.h"

namespace keel {
namespace {

constexpr double kRow = 26;  // its height

// A row's sum, NaN without values, and what is written at its end.
struct RowEnd {
  double sum;
  std::string text;
};

RowEnd end_of(const ChartRow& row) {
  double sum = row.values.empty() ? NAN : 0;
  for (const double value : row.values) sum += value;
  return {sum, !row.text.empty() ? row.text : row.values.empty() ? "none" : fmt::format("{:.6g}", sum)};
}

AxisRange range_of(const RowChart& chart, std::span<const RowEnd> ends, double width) {
  std::vector<double> values;
  for (std::size_t i = 0; i < ends.size(); ++i) {
    values.push_back(ends[i].sum);
    if (const auto& interval = chart.rows[i].interval) values.insert(values.end(), {interval->lower, interval->upper});
  }
  for (const ReferenceLine& line : chart.lines) values.push_back(line.at);
  Axis axis = chart.axis;
  if (chart.bars && !axis.low) {
    check(axis.scale == Scale::linear, "bars begin at 0, which a logarithmic axis has not");
    values.push_back(0);
    if (std::ranges::none_of(values, [](double value) { return value < 0; })) axis.low = 0;
  }
  return {axis, values, std::max(2, static_cast<int>(width / 70))};
}

// The part of the chart that holds data.
struct Plot {
  double left, right, top, bottom;
  AxisRange range;

  double at(double value) const { return left + (right - left) * std::clamp(range.place(value), 0.0, 1.0); }
};

void draw_axis(Canvas& canvas, const Plot& plot, const RowChart& chart) {
  for (const double tick : plot.range.ticks()) {
    canvas.line(plot.at(tick), plot.top, plot.at(tick), plot.bottom, "grid");
    canvas.text(plot.at(tick), plot.bottom + 17, plot.range.tick_label(tick), "tick", "middle");
  }
  for (const ReferenceLine& line : chart.lines) {
    if (!plot.range.holds(line.at)) continue;
    canvas.line(plot.at(line.at), plot.top - 4, plot.at(line.at), plot.bottom, "rule");
    canvas.text(plot.at(line.at), plot.top - 8, line.label, "tick", "middle");
  }
}

void draw_row(Canvas& canvas, const Plot& plot, const ChartRow& row, const RowEnd& end, double middle, bool bars) {
  canvas.text(plot.left - 9, middle + 4, row.label, "", "end");
  canvas.text(plot.right + 10, middle + 4, end.text, "name");
  if (!std::isfinite(end.sum)) return;
  double from = 0;
  for (std::size_t part = 0; bars && part < row.values.size(); ++part) {
    const double to = from + row.values[part], x = std::min(plot.at(from), plot.at(to));
    canvas.add(R"(<rect x="{}" y="{}" width="{}" height="14" class="bar c{}"/>)", coordinate(x), coordinate(middle - 7), coordinate(std::abs(plot.at(to) - plot.at(from))),
               part % kChartColours);
    from = to;
  }
  if (row.interval && std::isfinite(row.interval->lower) && std::isfinite(row.interval->upper)) {
    canvas.add(R"(<path d="M{0} {2}H{1}M{0} {3}V{4}M{1} {3}V{4}" class="line {5}"/>)", coordinate(plot.at(row.interval->lower)), coordinate(plot.at(row.interval->upper)),
               coordinate(middle), coordinate(middle - 4), coordinate(middle + 4), bars ? "ink" : "c0");
  }
  if (!bars && plot.range.holds(end.sum)) canvas.dot(plot.at(end.sum), middle, 0, end.text);
}

}  // namespace

Svg draw(const RowChart& chart) {
  std::vector<RowEnd> ends;
  double labels = 0, texts = 0;
  for (const ChartRow& row : chart.rows) {
    ends.push_back(end_of(row));
    labels = std::max(labels, text_width(row.label, kFont));
    texts = std::max(texts, text_width(ends.back().text, kFont));
  }
  Canvas canvas;
  double top = draw_title(canvas, chart.title, chart.width, 26);
  std::vector<Legend> legend;
  for (std::size_t part = 0; part < chart.parts.size(); ++part) legend.push_back({chart.parts[part], static_cast<int>(part) % kChartColours});
  if (legend.size() > 1) top += draw_legend(canvas, legend, kMargin, top + 14, chart.width - kMargin, true) + 4;
  const double left = kMargin + labels + 10, right = chart.width - kMargin - texts - 10, first = top + (chart.lines.empty() ? 6 : 18);
  const Plot plot{.left = left, .right = right, .top = first, .bottom = first + kRow * static_cast<double>(chart.rows.size()), .range = range_of(chart, ends, right - left)};
  draw_axis(canvas, plot, chart);
  for (std::size_t i = 0; i < chart.rows.size(); ++i) draw_row(canvas, plot, chart.rows[i], ends[i], first + kRow * (static_cast<double>(i) + 0.5), chart.bars);
  canvas.line(left, plot.bottom, right, plot.bottom, "axis");
  if (chart.rows.empty()) canvas.text((left + right) / 2, plot.bottom - 2, "no data", "name", "middle");
  canvas.text(right, plot.bottom + 34, chart.axis.label, "name", "end");
  return {chart.width, plot.bottom + 42, chart.title, canvas.take()};
}

}  // namespace keel
