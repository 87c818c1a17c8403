#include "lab/chart.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <fmt/format.h>
#include <map>

#include "base/error.h"
#include "lab/markup.h"

namespace keel {
namespace {

constexpr double kFont = 12, kTitleFont = 14, kLine = 16;  // text sizes and a line of text
constexpr double kMargin = 12;                             // around everything

using Colours = std::map<std::string, int>;

// What is drawn, piece by piece.
class Canvas {
 public:
  template <class... Args>
  void add(fmt::format_string<Args...> format, Args&&... args) {
    out_ += fmt::format(format, std::forward<Args>(args)...) + '\n';
  }
  void text(double x, double y, std::string_view words, std::string_view classes = "", std::string_view anchor = "start") {
    add(R"(<text x="{}" y="{}"{}{}>{}</text>)", coordinate(x), coordinate(y), classes.empty() ? "" : fmt::format(" class=\"{}\"", classes),
        anchor == "start" ? "" : fmt::format(" text-anchor=\"{}\"", anchor), escaped(words));
  }
  void line(double x1, double y1, double x2, double y2, std::string_view classes) {
    add(R"(<path d="M{} {}L{} {}" class="{}"/>)", coordinate(x1), coordinate(y1), coordinate(x2), coordinate(y2), classes);
  }
  // A shape a colour as well, for those who see no difference between two colours, and for print.
  void dot(double x, double y, int colour, std::string_view note) {
    const std::string title = note.empty() ? "" : fmt::format("<title>{}</title>", escaped(note));
    const std::string at = fmt::format(R"-(transform="translate({} {})" class="dot c{}")-", coordinate(x), coordinate(y), colour);
    switch (colour % 4) {
      case 0: add(R"(<circle r="3.6" {}>{}</circle>)", at, title); break;
      case 1: add(R"(<path d="M-3.3 -3.3H3.3V3.3H-3.3Z" {}>{}</path>)", at, title); break;
      case 2: add(R"(<path d="M0 -4.4L4.2 3.2H-4.2Z" {}>{}</path>)", at, title); break;
      default: add(R"(<path d="M0 -4.7L4.7 0L0 4.7L-4.7 0Z" {}>{}</path>)", at, title);
    }
  }
  std::string take() { return std::move(out_); }

 private:
  std::string out_;
};

// As much of a text as there is room for.
std::string fitted(const std::string& text, double width, double font_size) {
  const auto room = static_cast<std::size_t>(std::max(width, 0.0) / text_width("x", font_size));
  if (characters(text) <= room) return text;
  std::string cut;
  std::size_t seen = 0;
  for (const char c : text) {
    seen += (static_cast<unsigned char>(c) & 0xc0) != 0x80;
    if (seen >= room) break;
    cut += c;
  }
  return cut + "…";
}

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

struct Legend {
  std::string name;
  int colour;
};

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

// Draws names in rows from (x, y) on; gives the height it took.
double draw_legend(Canvas& canvas, std::span<const Legend> legend, double left, double y, double right, bool squares = false) {
  double x = left, top = y;
  for (const Legend& one : legend) {
    const double width = 16 + text_width(one.name, kFont);
    if (x > left && x + width > right) x = left, y += kLine;
    if (squares) {
      canvas.add(R"(<rect x="{}" y="{}" width="10" height="10" class="bar c{}"/>)", coordinate(x), coordinate(y - 9), one.colour);
    } else {
      canvas.dot(x + 5, y - 4, one.colour, "");
    }
    canvas.text(x + 14, y, one.name);
    x += width + 18;
  }
  return legend.empty() ? 0 : y - top + kLine;
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
    if (!chart.title.empty()) canvas.text(kMargin, 18, fitted(chart.title, chart.width - kMargin, kTitleFont), "title"), top = 24;
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
  double top = 0;
  if (!title.empty()) canvas.text(kMargin, 18, fitted(title, width - kMargin, kTitleFont), "title"), top = 26;
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

Svg draw(const RowChart& chart) {
  constexpr double kRow = 26;
  std::vector<double> ends;
  double labels = 0, texts = 0;
  std::vector<double> sums;
  std::vector<std::string> row_texts;
  for (const ChartRow& row : chart.rows) {
    double sum = 0;
    for (const double value : row.values) sum += value;
    sums.push_back(row.values.empty() ? NAN : sum);
    row_texts.push_back(!row.text.empty() ? row.text : row.values.empty() ? "none" : fmt::format("{:.6g}", sum));
    ends.push_back(sums.back());
    if (row.interval) ends.insert(ends.end(), {row.interval->lower, row.interval->upper});
    labels = std::max(labels, text_width(row.label, kFont));
    texts = std::max(texts, text_width(row_texts.back(), kFont));
  }
  for (const ReferenceLine& line : chart.lines) ends.push_back(line.at);
  Axis axis = chart.axis;
  if (chart.bars && !axis.low) {
    check(axis.scale == Scale::linear, "bars begin at 0, which a logarithmic axis has not");
    ends.push_back(0);
    if (std::ranges::none_of(ends, [](double end) { return end < 0; })) axis.low = 0;
  }
  Canvas canvas;
  double top = 0;
  if (!chart.title.empty()) canvas.text(kMargin, 18, fitted(chart.title, chart.width - kMargin, kTitleFont), "title"), top = 26;
  std::vector<Legend> legend;
  for (std::size_t part = 0; part < chart.parts.size(); ++part) legend.push_back({chart.parts[part], static_cast<int>(part) % kChartColours});
  if (legend.size() > 1) top += draw_legend(canvas, legend, kMargin, top + 14, chart.width - kMargin, true) + 4;
  const double left = kMargin + labels + 10, right = chart.width - kMargin - texts - 10;
  const double first = top + (chart.lines.empty() ? 6 : 18), bottom = first + kRow * static_cast<double>(chart.rows.size());
  const AxisRange range(axis, ends, std::max(2, static_cast<int>((right - left) / 70)));
  const auto at = [&](double value) { return left + (right - left) * std::clamp(range.place(value), 0.0, 1.0); };
  for (const double tick : range.ticks()) {
    canvas.line(at(tick), first, at(tick), bottom, "grid");
    canvas.text(at(tick), bottom + 17, range.tick_label(tick), "tick", "middle");
  }
  for (const ReferenceLine& line : chart.lines) {
    if (!range.holds(line.at)) continue;
    canvas.line(at(line.at), first - 4, at(line.at), bottom, "rule");
    canvas.text(at(line.at), first - 8, line.label, "tick", "middle");
  }
  for (std::size_t i = 0; i < chart.rows.size(); ++i) {
    const ChartRow& row = chart.rows[i];
    const double middle = first + kRow * (static_cast<double>(i) + 0.5);
    canvas.text(left - 9, middle + 4, row.label, "", "end");
    canvas.text(right + 10, middle + 4, row_texts[i], "name");
    if (!std::isfinite(sums[i])) continue;
    double from = 0;
    for (std::size_t part = 0; chart.bars && part < row.values.size(); ++part) {
      const double to = from + row.values[part], x = std::min(at(from), at(to));
      canvas.add(R"(<rect x="{}" y="{}" width="{}" height="14" class="bar c{}"/>)", coordinate(x), coordinate(middle - 7),
                 coordinate(std::abs(at(to) - at(from))), part % kChartColours);
      from = to;
    }
    if (row.interval && std::isfinite(row.interval->lower) && std::isfinite(row.interval->upper)) {
      canvas.add(R"(<path d="M{0} {2}H{1}M{0} {3}V{4}M{1} {3}V{4}" class="line {5}"/>)", coordinate(at(row.interval->lower)), coordinate(at(row.interval->upper)),
                 coordinate(middle), coordinate(middle - 4), coordinate(middle + 4), chart.bars ? "ink" : "c0");
    }
    if (!chart.bars && range.holds(sums[i])) canvas.dot(at(sums[i]), middle, 0, row_texts[i]);
  }
  canvas.line(left, bottom, right, bottom, "axis");
  if (chart.rows.empty()) canvas.text((left + right) / 2, bottom - 2, "no data", "name", "middle");
  canvas.text(right, bottom + 34, chart.axis.label, "name", "end");
  return {chart.width, bottom + 42, chart.title, canvas.take()};
}

std::string chart_style() {
  // Light, dark: after Okabe and Ito's colours, darkened and lightened until text in them reads on either page.
  constexpr std::array<std::pair<const char*, const char*>, kChartColours> kPalette = {{{"#0b66b0", "#62b0f5"}, {"#c2500a", "#ff9a52"}, {"#0a7a58", "#35c796"},
      {"#a03a80", "#e58bc6"}, {"#806000", "#dcb93c"}, {"#5b4fc7", "#a79df7"}, {"#b3263a", "#ff7d8b"}, {"#4d5b66", "#a9b7c2"}}};
  std::string style = R"(
.keel-chart{font:12px system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif;fill:#1d2733}
.keel-chart .title{font-size:14px;font-weight:600}
.keel-chart .name{fill:#566371}
.keel-chart .tick{fill:#566371;font-size:11px}
.keel-chart .halo{paint-order:stroke;stroke:#fff;stroke-width:3px}
.keel-chart .grid{stroke:#e3e7eb;fill:none}
.keel-chart .axis{stroke:#8793a0;fill:none}
.keel-chart .rule{stroke:#566371;fill:none;stroke-dasharray:2 3}
.keel-chart .line{stroke:currentColor;fill:none;stroke-width:1.8;stroke-linejoin:round}
.keel-chart .dashed{stroke-dasharray:6 4}
.keel-chart .band{fill:currentColor;fill-opacity:.14}
.keel-chart .dot{fill:currentColor;stroke:#fff;stroke-width:.8}
.keel-chart .bar{fill:currentColor;fill-opacity:.85}
.keel-chart .own{fill:currentColor;font-weight:500}
.keel-chart .ink{color:#1d2733}
.keel-chart .paper{fill:#fff}
)";
  std::string dark = R"(@media (prefers-color-scheme:dark){
.keel-chart{fill:#e4e9ee}
.keel-chart .name,.keel-chart .tick{fill:#a3b0bd}
.keel-chart .grid{stroke:#2b3540}
.keel-chart .axis{stroke:#66737f}
.keel-chart .rule{stroke:#a3b0bd}
.keel-chart .dot,.keel-chart .halo{stroke:#12171d}
.keel-chart .ink{color:#e4e9ee}
.keel-chart .paper{fill:#12171d}
)";
  for (std::size_t i = 0; i < kPalette.size(); ++i) {
    style += fmt::format(".keel-chart .c{}{{color:{}}}\n", i, kPalette[i].first);
    dark += fmt::format(".keel-chart .c{}{{color:{}}}\n", i, kPalette[i].second);
  }
  return style + dark + "}\n";
}

std::string inline_svg(const Svg& svg) {
  return fmt::format(R"(<svg xmlns="http://www.w3.org/2000/svg" class="keel-chart" viewBox="0 0 {0} {1}" width="{0}" height="{1}" role="img" aria-label="{2}">)"
                     "\n{3}</svg>\n",
                     coordinate(svg.width), coordinate(svg.height), escaped(svg.label), svg.content);
}

std::string svg_file(const Svg& svg) {
  Svg alone = svg;
  alone.content = fmt::format("<style>{}</style>\n<rect width=\"100%\" height=\"100%\" class=\"paper\"/>\n{}", chart_style(), svg.content);
  return inline_svg(alone);
}

}  // namespace keel
