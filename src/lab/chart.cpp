#include "lab/chart.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "base/error.h"
#include "lab/chart_canvas.h"
#include "lab/markup.h"

namespace keel {
namespace {

using Colours = std::map<std::string, int>;

void take_colours(const Chart& chart, Colours& colours) {
  for (const Series& series : chart.series) {
    if (series.colour) {
      colours[series.name] = *series.colour;
    } else if (!series.name.empty()) {
      colours.try_emplace(series.name, static_cast<int>(colours.size()));
    }
  }
}

int colour_of(const Series& series, const Colours& colours) {
  const auto found = colours.find(series.name);
  return (series.colour ? *series.colour : found == colours.end() ? 0 : found->second) % kChartColours;
}

std::vector<double> values_of(const Chart& chart, bool of_x) {
  std::vector<double> values;
  for (const Series& series : chart.series) {
    for (const ChartPoint& point : series.points) {
      values.push_back(of_x ? point.x : point.y);
      if (!of_x && point.interval) values.insert(values.end(), {point.interval->lower, point.interval->upper});
    }
  }
  for (const ReferenceLine& line : chart.lines) {
    if (line.vertical == of_x) values.push_back(line.at);
  }
  return values;
}

std::vector<Legend> legend_of(std::span<const Chart> charts, const Colours& colours) {
  std::vector<Legend> legend;
  for (const Chart& chart : charts) {
    for (const Series& series : chart.series) {
      const bool known = std::ranges::any_of(legend, [&](const Legend& one) { return one.name == series.name; });
      if (!series.name.empty() && !known) legend.push_back({series.name, colour_of(series, colours)});
    }
  }
  return legend;
}

// The part of a chart that holds data.
struct Plot {
  double left, top, right, bottom;
  AxisRange x, y;

  double at_x(double value) const { return left + (right - left) * x.place(value); }
  double at_y(double value) const { return bottom - (bottom - top) * y.place(value); }
};

void draw_axes(Canvas& canvas, const Plot& plot, const Chart& chart) {
  for (const double tick : plot.y.ticks()) {
    canvas.line(plot.left, plot.at_y(tick), plot.right, plot.at_y(tick), "grid");
    canvas.text(plot.left - 7, plot.at_y(tick) + 4, plot.y.tick_label(tick), "tick", "end");
  }
  for (const double tick : plot.x.ticks()) {
    canvas.line(plot.at_x(tick), plot.top, plot.at_x(tick), plot.bottom, "grid");
    canvas.text(plot.at_x(tick), plot.bottom + 17, plot.x.tick_label(tick), "tick", "middle");
  }
  canvas.line(plot.left, plot.bottom, plot.right, plot.bottom, "axis");
  canvas.text(plot.left, plot.top - 9, fitted(chart.y.label, chart.width - plot.left, kFont), "name");
  canvas.text(plot.right, plot.bottom + 34, fitted(chart.x.label, plot.right, kFont), "name", "end");
}

void draw_lines(Canvas& canvas, const Plot& plot, std::span<const ReferenceLine> lines) {
  for (const ReferenceLine& line : lines) {
    if (line.vertical ? !plot.x.holds(line.at) : !plot.y.holds(line.at)) continue;
    if (line.vertical) {
      const double x = plot.at_x(line.at);
      canvas.line(x, plot.top, x, plot.bottom, "rule");
      const bool right = x + 5 + text_width(line.label, 11) < plot.right;
      canvas.text(right ? x + 4 : x - 4, plot.top + 11, line.label, "tick halo", right ? "start" : "end");
    } else {
      const double y = plot.at_y(line.at);
      canvas.line(plot.left, y, plot.right, y, "rule");
      // By turns at either end, since two lines may lie close together.
      const bool left = (&line - lines.data()) % 2 == 0;
      canvas.text(left ? plot.left + 4 : plot.right - 4, y - 4, line.label, "tick halo", left ? "start" : "end");
    }
  }
}

// Runs of points that can be drawn; a line is broken where one cannot.
std::vector<std::vector<ChartPoint>> drawable_runs(const Plot& plot, const Series& series, int& lost) {
  std::vector<std::vector<ChartPoint>> runs(1);
  for (const ChartPoint& point : series.points) {
    if (plot.x.holds(point.x) && plot.y.holds(point.y)) {
      runs.back().push_back(point);
    } else {
      ++lost;
      if (!runs.back().empty()) runs.emplace_back();
    }
  }
  return runs;
}

void draw_interval(Canvas& canvas, const Plot& plot, const ChartPoint& point, int colour) {
  const auto within = [&](double y) { return std::clamp(plot.at_y(y), plot.top, plot.bottom); };
  const double x = plot.at_x(point.x), low = within(point.interval->lower), high = within(point.interval->upper);
  const std::string from = coordinate(x - 3), to = coordinate(x + 3);
  canvas.add(R"(<path d="M{3} {0}H{4}M{3} {1}H{4}M{2} {0}V{1}" class="line c{5}"/>)", coordinate(low), coordinate(high), coordinate(x), from, to, colour);
}

void draw_run(Canvas& canvas, const Plot& plot, const Series& series, const std::vector<ChartPoint>& run, int colour) {
  if (series.band) {
    std::string there, back;
    for (const ChartPoint& point : run) {
      const Interval interval = point.interval.value_or(Interval{point.y, point.y});
      const auto corner = [&](double y) { return fmt::format("{} {}", coordinate(plot.at_x(point.x)), coordinate(std::clamp(plot.at_y(y), plot.top, plot.bottom))); };
      there += fmt::format("{}{}", there.empty() ? "M" : "L", corner(interval.upper));
      back = fmt::format("L{}{}", corner(interval.lower), back);
    }
    if (run.size() > 1) canvas.add(R"(<path d="{}{}Z" class="band c{}"/>)", there, back, colour);
  }
  if (series.mark != Mark::dots && run.size() > 1) {
    std::string path;
    for (const ChartPoint& point : run) {
      path += fmt::format("{}{} {}", path.empty() ? "M" : "L", coordinate(plot.at_x(point.x)), coordinate(plot.at_y(point.y)));
    }
    canvas.add(R"(<path d="{}" class="line c{}{}"/>)", path, colour, series.dashed ? " dashed" : "");
  }
  for (const ChartPoint& point : run) {
    const bool whisker = point.interval && !series.band && std::isfinite(point.interval->lower) && std::isfinite(point.interval->upper);
    if (whisker) draw_interval(canvas, plot, point, colour);
    if (series.mark != Mark::line || run.size() == 1) canvas.dot(plot.at_x(point.x), plot.at_y(point.y), colour, point.note);
  }
}

struct EndLabel {
  double y;
  std::string name;
  int colour;
};

// Names at the ends of their series, moved apart where they would touch.
void draw_end_labels(Canvas& canvas, const Plot& plot, std::vector<EndLabel> labels) {
  constexpr double kApart = 15;
  std::ranges::stable_sort(labels, {}, &EndLabel::y);
  for (std::size_t i = 1; i < labels.size(); ++i) labels[i].y = std::max(labels[i].y, labels[i - 1].y + kApart);
  double most = plot.bottom;
  for (std::size_t i = labels.size(); i-- > 0; most = labels[i].y - kApart) labels[i].y = std::min(labels[i].y, most);
  for (const EndLabel& label : labels) {
    canvas.text(plot.right + 10, label.y + 4, label.name, fmt::format("own c{}", label.colour));
  }
}

// Everything of one chart but its legend, within its width and height, from (0, top) on.
double draw_chart(Canvas& canvas, const Chart& chart, const Colours& colours, double top, bool label_ends) {
  const std::vector<double> xs = values_of(chart, true), ys = values_of(chart, false);
  const AxisRange y(chart.y, ys, std::max(2, static_cast<int>(chart.height / 62)));
  double left = 0, right = kMargin;
  for (const double tick : y.ticks()) left = std::max(left, text_width(y.tick_label(tick), 11));
  if (label_ends) {
    for (const Series& series : chart.series) right = std::max(right, 18 + text_width(series.name, kFont));
  }
  left += kMargin + 8;
  const double title = chart.title.empty() ? 0 : 24;
  const double inner = chart.width - left - right;
  const Plot plot{.left = left, .top = top + title + (chart.y.label.empty() ? 8 : 26), .right = chart.width - right,
                  .bottom = top + chart.height - (chart.x.label.empty() ? 26 : 44),
                  .x = AxisRange(chart.x, xs, std::max(2, static_cast<int>(inner / 62))), .y = y};
  if (!chart.title.empty()) canvas.text(kMargin, top + 18, fitted(chart.title, chart.width - kMargin, kTitleFont), "title");
  draw_axes(canvas, plot, chart);
  draw_lines(canvas, plot, chart.lines);
  int lost = 0, drawn = 0;
  std::vector<EndLabel> labels;
  for (const Series& series : chart.series) {
    const int colour = colour_of(series, colours);
    for (const auto& run : drawable_runs(plot, series, lost)) {
      if (run.empty()) continue;
      drawn += static_cast<int>(run.size());
      draw_run(canvas, plot, series, run, colour);
      const auto same = std::ranges::find(labels, series.name, &EndLabel::name);
      if (same != labels.end()) {
        same->y = plot.at_y(run.back().y);
      } else if (!series.name.empty()) {
        labels.push_back({plot.at_y(run.back().y), series.name, colour});
      }
    }
  }
  if (label_ends) draw_end_labels(canvas, plot, std::move(labels));
  if (drawn == 0) canvas.text((plot.left + plot.right) / 2, (plot.top + plot.bottom) / 2, "no data", "name", "middle");
  if (lost == 0) return chart.height;
  canvas.text(kMargin, top + chart.height + 12, fmt::format("{} of {} points cannot be drawn on these axes", lost, lost + drawn), "name");
  return chart.height + 20;
}

}  // namespace

Svg draw(const Chart& chart) {
  Colours colours;
  take_colours(chart, colours);
  const std::vector<Legend> legend = legend_of({&chart, 1}, colours);
  double widest = 0;
  for (const Legend& one : legend) widest = std::max(widest, text_width(one.name, kFont));
  const bool label_ends = legend.size() > 1 && widest < chart.width / 4 && static_cast<double>(legend.size()) * 15 < chart.height - 90 &&
                          std::ranges::any_of(chart.series, [](const Series& series) { return series.mark != Mark::dots; });
  Canvas canvas;
  double top = 0;
  Chart body = chart;
  if (!label_ends && legend.size() > 1) {
    body.title.clear();
    top = draw_title(canvas, chart.title, chart.width, 24);
    top += draw_legend(canvas, legend, kMargin, top + 14, chart.width - kMargin) + 4;
    body.height -= top;
  }
  const double height = top + draw_chart(canvas, body, colours, top, label_ends);
  return {chart.width, height, chart.title, canvas.take()};
}

Svg draw(std::span<const Chart> charts, int columns, const std::string& title) {
  check(columns > 0, "small multiples have a column");
  Colours colours;
  double cell = 0;
  for (const Chart& chart : charts) take_colours(chart, colours), cell = std::max(cell, chart.width);
  const double width = cell * std::min<double>(columns, static_cast<double>(std::max<std::size_t>(charts.size(), 1)));
  Canvas canvas;
  double top = draw_title(canvas, title, width, 26);
  const std::vector<Legend> legend = legend_of(charts, colours);
  if (legend.size() > 1) top += draw_legend(canvas, legend, kMargin, top + 14, width - kMargin) + 4;
  for (std::size_t i = 0; i < charts.size();) {
    double tallest = 0;
    for (int column = 0; column < columns && i < charts.size(); ++column, ++i) {
      canvas.add(R"-(<g transform="translate({} 0)">)-", coordinate(cell * column));
      tallest = std::max(tallest, draw_chart(canvas, charts[i], colours, top, false));
      canvas.add("</g>");
    }
    top += tallest + 6;
  }
  return {std::max(width, 2 * kMargin), std::max(top, 2 * kMargin), title, canvas.take()};
}

}  // namespace keel
