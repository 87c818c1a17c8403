// Charts and pages: well-formed, complete, and nothing left out in silence.
#include "lab/chart.h"

#include <gtest/gtest.h>

#include <cmath>

#include "lab/html_page.h"
#include "lab/markup.h"
#include "lab/xml_problem.h"

namespace keel {
namespace {

std::vector<double> ticks_of(const Axis& axis, std::vector<double> values, int wanted = 6) { return AxisRange(axis, values, wanted).ticks(); }

Chart sample_chart() {
  Series measured{.name = "measured", .mark = Mark::dots};
  Series fitted{.name = "fitted", .mark = Mark::line, .band = true};
  for (const double x : {1.0, 2.0, 4.0, 8.0}) {
    measured.points.push_back({.x = x, .y = 10 * x, .interval = Interval{9 * x, 11 * x}, .note = "a < b"});
    fitted.points.push_back({.x = x, .y = 10 * x, .interval = Interval{9 * x, 11 * x}});
  }
  return {.title = "speed & \"size\"", .x = {.label = "batch", .scale = Scale::log2}, .y = {.label = "tokens/s", .low = 0},
          .series = {measured, fitted}, .lines = {{.at = 20, .label = "limit"}, {.at = 3, .label = "here", .vertical = true}}};
}

TEST(ChartAxis, TicksAreOnesTwosAndFives) {
  EXPECT_EQ(ticks_of({}, {0, 10}), (std::vector<double>{0, 2, 4, 6, 8, 10}));
  EXPECT_EQ(ticks_of({.low = 0}, {0, 483}), (std::vector<double>{0, 100, 200, 300, 400, 500}));
  EXPECT_EQ(ticks_of({.scale = Scale::log2}, {1, 32}), (std::vector<double>{1, 2, 4, 8, 16, 32}));
  EXPECT_EQ(ticks_of({.scale = Scale::log2}, {1, 1024}, 6), (std::vector<double>{1, 4, 16, 64, 256, 1024}));
  EXPECT_EQ(ticks_of({.scale = Scale::log10}, {1, 90}), (std::vector<double>{1, 2, 5, 10, 20, 50, 100}));
  EXPECT_EQ(ticks_of({.scale = Scale::log10}, {1e-6, 1e6}, 4), (std::vector<double>{1e-4, 1, 1e4}));
}

TEST(ChartAxis, EveryRangeHasTwoTicksAndHoldsItsValues) {
  for (const Scale scale : {Scale::linear, Scale::log10, Scale::log2}) {
    for (const std::vector<double>& values : std::vector<std::vector<double>>{{}, {3}, {0.001}, {1e9}, {3, 3}, {1.0001, 1.0002}, {5, 7}, {NAN, INFINITY, 2}}) {
      const AxisRange range({.scale = scale}, values, 5);
      EXPECT_GE(range.ticks().size(), 2u) << static_cast<int>(scale) << " " << (values.empty() ? 0 : values[0]);
      EXPECT_LE(range.ticks().size(), 12u);
      for (const double value : values) {
        EXPECT_EQ(range.holds(value), std::isfinite(value)) << value;
      }
    }
  }
  EXPECT_FALSE(AxisRange({.scale = Scale::log10}, std::vector<double>{1, 10}, 5).holds(-1));
  EXPECT_TRUE(AxisRange({}, std::vector<double>{-4, -2}, 5).holds(-3));
  EXPECT_TRUE(AxisRange({}, std::vector<double>{0, 0}, 5).holds(0));
}

TEST(ChartAxis, LabelsHaveTheStepsDecimals) {
  EXPECT_EQ(number_label(0.15, 0.05), "0.15");
  EXPECT_EQ(number_label(1, 0.5), "1.0");
  EXPECT_EQ(number_label(12500, 500), "12,500");
  EXPECT_EQ(number_label(-1234567, 1), "−1,234,567");
  EXPECT_EQ(number_label(2e9, 1e9), "2e+09");
  EXPECT_EQ(number_label(0, 0.1), "0.0");
}

TEST(Markup, EscapesWhatXmlReservesOrForbids) {
  EXPECT_EQ(escaped("a<b & \"c\">"), "a&lt;b &amp; &quot;c&quot;&gt;");
  EXPECT_EQ(escaped(std::string("x\0y\x1b", 4)), "x\uFFFDy\uFFFD");
  EXPECT_EQ(escaped("½ γ 😀"), "½ γ 😀");
  EXPECT_EQ(escaped("\xff\xc0\xaf\xed\xa0\x80z\xe2\x82"), "\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFDz\uFFFD\uFFFD");
  EXPECT_EQ(coordinate(-0.04), "0");
  EXPECT_EQ(coordinate(12.25), "12.3");
}

TEST(XmlProblem, FindsWhatIsBroken) {
  EXPECT_FALSE(xml_problem("<a b=\"1\"><c/>x &amp; y</a>\n"));
  for (const char* wrong : {"", "<a>", "<a></b>", "<a></a><b/>", "<a b=1/>", "<a b=\"1\" b=\"2\"/>", "<a>&nbsp;</a>", "<a>x & y</a>", "<a>1 < 2</a>", "<a b=\"<\"/>", "<a>\x01</a>"}) {
    EXPECT_TRUE(xml_problem(wrong)) << wrong;
  }
}

TEST(Chart, IsWellFormedAndHoldsEveryPoint) {
  const std::string file = svg_file(draw(sample_chart()));
  EXPECT_EQ(xml_problem(file), std::nullopt) << file;
  EXPECT_EQ(occurrences(file, "<title>a &lt; b</title>"), 4);
  EXPECT_EQ(occurrences(file, "class=\"band"), 1);
  EXPECT_NE(file.find("aria-label=\"speed &amp; &quot;size&quot;\""), std::string::npos);
  for (const char* text : {">batch<", ">tokens/s<", ">measured<", ">fitted<", ">limit<", ">here<"}) EXPECT_EQ(occurrences(file, text), 1) << text;
  EXPECT_EQ(occurrences(file, "nan"), 0);
  EXPECT_EQ(occurrences(file, "inf"), 0);
}

TEST(Chart, CountsWhatItCannotDrawAndBreaksTheLineThere) {
  Chart chart{.title = "t", .x = {.label = "x"}, .y = {.label = "y", .scale = Scale::log10}};
  chart.series.push_back({.name = "s", .points = {{1, 1}, {2, 2}, {3, NAN}, {4, 0}, {5, 3}, {6, 4}}, .mark = Mark::line});
  const std::string file = svg_file(draw(chart));
  EXPECT_EQ(xml_problem(file), std::nullopt);
  EXPECT_NE(file.find("2 of 6 points cannot be drawn"), std::string::npos);
  EXPECT_EQ(occurrences(file, "class=\"line c0\""), 2);
  EXPECT_EQ(occurrences(file, "nan"), 0);
  EXPECT_NE(svg_file(draw(Chart{.title = "t", .series = {{.name = "s"}}})).find("no data"), std::string::npos);
  chart.y = {.label = "y", .low = 0, .high = 3};
  EXPECT_NE(draw(chart).content.find("2 of 6 points cannot be drawn"), std::string::npos);  // NaN, and 4 beyond the end
}

TEST(Chart, SmallMultiplesShareColoursAndOneLegend) {
  std::vector<Chart> charts;
  for (const auto& names : std::vector<std::vector<std::string>>{{"a", "b"}, {"b"}}) {
    Chart chart{.title = "panel", .width = 300, .height = 200};
    for (const std::string& name : names) chart.series.push_back({.name = name, .points = {{1, 1}, {2, 2}}, .mark = Mark::line});
    charts.push_back(chart);
  }
  const Svg svg = draw(charts, 2, "both");
  EXPECT_EQ(svg.width, 600);
  EXPECT_EQ(xml_problem(svg_file(svg)), std::nullopt);
  EXPECT_EQ(occurrences(svg.content, ">b</text>"), 1);
  EXPECT_EQ(occurrences(svg.content, "class=\"line c1\""), 2);  // b in both panels
  EXPECT_EQ(occurrences(svg.content, "class=\"line c0\""), 1);
}

TEST(RowChart, DrawsBarsOfPartsAndDotsWithIntervals) {
  RowChart bytes;
  bytes.title = "bytes", bytes.axis.label = "bytes a token", bytes.parts = {"keys", "values"};
  bytes.rows = {{"k16v16", {4, 4}}, {"k16v8", {4, 2}}};
  const std::string bars = svg_file(draw(bytes));
  EXPECT_EQ(xml_problem(bars), std::nullopt);
  EXPECT_EQ(occurrences(bars, "height=\"14\""), 4);
  EXPECT_EQ(occurrences(bars, ">keys<"), 1);
  RowChart ratios;
  ratios.title = "ratios", ratios.bars = false, ratios.lines = {{1, "equal"}};
  ratios.rows = {{"x", {1.02}, Interval{1.01, 1.03}, "1.02"}, {"missing", {}}};
  const std::string dots = svg_file(draw(ratios));
  EXPECT_EQ(xml_problem(dots), std::nullopt);
  EXPECT_EQ(occurrences(dots, "class=\"dot c0\""), 1);
  EXPECT_EQ(occurrences(dots, ">none<"), 1);
  EXPECT_EQ(xml_problem(svg_file(draw(RowChart{.title = "empty"}))), std::nullopt);
}

TEST(HtmlPage, IsOneWellFormedFileWithoutScriptOrOtherFiles) {
  HtmlPage page("a <b>", "lead & more");
  const std::vector<std::pair<std::string, std::string>> facts = {{"model", "<tiny>"}};
  page.verdict(Tone::bad, "no confirmed gain", "p = 1").section("data").paragraph("x < y").facts(facts).chart(draw(sample_chart()), "a \"chart\"");
  page.table(std::vector<std::string>{"name", "ratio"}, std::vector<std::vector<std::string>>{{"a", "1.02"}, {"b", "none"}});
  page.list(std::vector<std::string>{"one", "two"}).preformatted("a\n  b").details("more", "{\"k\": 1}");
  const std::string text = page.text();
  EXPECT_EQ(xml_problem(text), std::nullopt) << *xml_problem(text);
  EXPECT_EQ(occurrences(text, "<script"), 0);
  EXPECT_EQ(occurrences(text, "http"), 2);  // the names of the XHTML and SVG languages
  EXPECT_EQ(occurrences(text, "<td class=\"n\">"), 2);
  EXPECT_NE(text.find("&lt;tiny&gt;"), std::string::npos);
}

}  // namespace
}  // namespace keel
