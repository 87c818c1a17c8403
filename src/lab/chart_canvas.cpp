#include "lab/chart_canvas.h"

#include <algorithm>

#include "lab/markup.h"

namespace keel {

void Canvas::text(double x, double y, std::string_view words, std::string_view classes, std::string_view anchor) {
  add(R"(<text x="{}" y="{}"{}{}>{}</text>)", coordinate(x), coordinate(y), classes.empty() ? "" : fmt::format(" class=\"{}\"", classes),
      anchor == "start" ? "" : fmt::format(" text-anchor=\"{}\"", anchor), escaped(words));
}

void Canvas::line(double x1, double y1, double x2, double y2, std::string_view classes) {
  add(R"(<path d="M{} {}L{} {}" class="{}"/>)", coordinate(x1), coordinate(y1), coordinate(x2), coordinate(y2), classes);
}

void Canvas::dot(double x, double y, int colour, std::string_view note) {
  const std::string title = note.empty() ? "" : fmt::format("<title>{}</title>", escaped(note));
  const std::string at = fmt::format(R"-(transform="translate({} {})" class="dot c{}")-", coordinate(x), coordinate(y), colour);
  switch (colour % 4) {
    case 0: add(R"(<circle r="3.6" {}>{}</circle>)", at, title); break;
    case 1: add(R"(<path d="M-3.3 -3.3H3.3V3.3H-3.3Z" {}>{}</path>)", at, title); break;
    case 2: add(R"(<path d="M0 -4.4L4.2 3.2H-4.2Z" {}>{}</path>)", at, title); break;
    default: add(R"(<path d="M0 -4.7L4.7 0L0 4.7L-4.7 0Z" {}>{}</path>)", at, title);
  }
}

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

double draw_legend(Canvas& canvas, std::span<const Legend> legend, double left, double y, double right, bool squares) {
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

double draw_title(Canvas& canvas, const std::string& title, double width, double height) {
  if (title.empty()) return 0;
  canvas.text(kMargin, 18, fitted(title, width - kMargin, kTitleFont), "title");
  return height;
}

}  // namespace keel
