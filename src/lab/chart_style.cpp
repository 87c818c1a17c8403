#include <array>
#include <fmt/format.h>

#include "lab/chart.h"
#include "lab/markup.h"

namespace keel {

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
