// Charts as SVG in one style: no script, no font, nothing fetched; all text escaped; for light and dark pages.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lab/chart_axis.h"
#include "lab/stats.h"

namespace keel {

struct ChartPoint {
  double x, y;
  std::optional<Interval> interval = std::nullopt;  // of y
  std::string note = {};                            // shown under the pointer
};

enum class Mark { dots, line, line_and_dots };

struct Series {
  std::string name;  // series of one name share a colour and one label; without a name there is no label
  std::vector<ChartPoint> points;
  Mark mark = Mark::line_and_dots;
  std::optional<int> colour = std::nullopt;  // of the palette; else names take colours in order
  bool dashed = false;
  bool band = false;  // intervals as a band along the line, else a whisker a point
};

struct ReferenceLine {
  double at;
  std::string label = {};
  bool vertical = false;
};

struct Chart {
  std::string title = {};
  Axis x = {}, y = {};
  std::vector<Series> series = {};
  std::vector<ReferenceLine> lines = {};
  double width = 680, height = 380;
};

// A bar or dot a row. With several values a row is a stacked bar.
struct ChartRow {
  std::string label;
  std::vector<double> values;
  std::optional<Interval> interval = std::nullopt;  // of their sum
  std::string text = {};                            // written at the row's end; else the value
};

struct RowChart {
  std::string title = {};
  Axis axis = {};
  std::vector<ChartRow> rows = {};
  bool bars = true;                      // from 0 on; else dots
  std::vector<std::string> parts = {};   // names of a row's values
  std::vector<ReferenceLine> lines = {};  // all vertical
  double width = 680;
};

// One picture, its `content` being SVG elements without the element around them.
struct Svg {
  double width, height;
  std::string label;  // what it shows, for those who do not see it
  std::string content;
};

// What cannot be drawn (not finite, not positive on a logarithmic axis, beyond an axis that was given its ends) is counted
// in a line under the chart.
Svg draw(const Chart& chart);
Svg draw(const RowChart& chart);
// Small multiples: charts side by side in `columns`, one legend for all, the same colour for the same name.
Svg draw(std::span<const Chart> charts, int columns, const std::string& title);

std::string chart_style();                 // CSS that both of these need: part of svg_file, and of an HtmlPage
std::string inline_svg(const Svg& svg);    // for a page that has the style
std::string svg_file(const Svg& svg);      // stands alone

inline constexpr int kChartColours = 8;

}  // namespace keel
