// What charts are drawn with: SVG elements, texts that fit, legends.
#pragma once

#include <fmt/format.h>

#include <span>
#include <string>
#include <string_view>

namespace keel {

inline constexpr double kFont = 12, kTitleFont = 14, kLine = 16;  // text sizes and a line of text
inline constexpr double kMargin = 12;                             // around everything

// What is drawn, piece by piece.
class Canvas {
 public:
  template <class... Args>
  void add(fmt::format_string<Args...> format, Args&&... args) {
    out_ += fmt::format(format, std::forward<Args>(args)...) + '\n';
  }
  void text(double x, double y, std::string_view words, std::string_view classes = "", std::string_view anchor = "start");
  void line(double x1, double y1, double x2, double y2, std::string_view classes);
  // A shape a colour as well, for those who see no difference between two colours, and for print.
  void dot(double x, double y, int colour, std::string_view note);
  std::string take() { return std::move(out_); }

 private:
  std::string out_;
};

// As much of a text as there is room for.
std::string fitted(const std::string& text, double width, double font_size);

struct Legend {
  std::string name;
  int colour;
};
// Draws names in rows from (left, y) on; gives the height it took.
double draw_legend(Canvas& canvas, std::span<const Legend> legend, double left, double y, double right, bool squares = false);
// In the chart's first line; gives the height it took, 0 without a title.
double draw_title(Canvas& canvas, const std::string& title, double width, double height);

}  // namespace keel
