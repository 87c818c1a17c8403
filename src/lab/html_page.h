// A report as one HTML file that needs nothing else: no script, no other file. It is well-formed XML; all text is escaped.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lab/chart.h"

namespace keel {

enum class Tone { plain, good, bad, warning };

class HtmlPage {
 public:
  explicit HtmlPage(std::string_view title, std::string_view lead = "");

  HtmlPage& section(std::string_view title);
  HtmlPage& paragraph(std::string_view text);
  HtmlPage& verdict(Tone tone, std::string_view headline, std::string_view text = "");  // set apart, as the first thing read
  HtmlPage& list(std::span<const std::string> items);
  HtmlPage& preformatted(std::string_view text);
  // Columns whose cells are all numbers (or "—", "none", "n/a") are set right. Every row has as many cells as the head.
  HtmlPage& table(std::span<const std::string> head, std::span<const std::vector<std::string>> rows);
  HtmlPage& facts(std::span<const std::pair<std::string, std::string>> facts);  // a name and a value a line
  HtmlPage& chart(const Svg& chart, std::string_view caption = "");
  HtmlPage& details(std::string_view summary, std::string_view preformatted_text);  // folded until clicked

  std::string text() const;

 private:
  std::string title_, body_;
};

}  // namespace keel
