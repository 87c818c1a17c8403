#include "lab/html_page.h"

#include <fmt/format.h>

#include "base/error.h"
#include "lab/markup.h"

namespace keel {
namespace {

// A number, perhaps with a unit's sign, an interval, or no value at all.
bool numeric(std::string_view cell) {
  if (cell.empty() || cell == "—" || cell == "none" || cell == "n/a") return true;
  bool digit = false;
  for (std::size_t i = 0; i < cell.size(); ++i) {
    const char c = cell[i];
    digit |= c >= '0' && c <= '9';
    const bool mark = std::string_view("0123456789.,+- %×x[]()<>=e").find(c) != std::string_view::npos;
    if (!mark && static_cast<unsigned char>(c) < 0x80) return false;
  }
  return digit;
}

constexpr std::string_view kPageStyle = R"(
:root{color-scheme:light dark}
body{margin:0;background:#fff;color:#1d2733;font:15px/1.55 system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif}
main{max-width:60rem;margin:0 auto;padding:2rem 1.25rem 4rem}
h1{font-size:1.6rem;line-height:1.25;margin:0 0 .4rem}
h2{font-size:1.15rem;margin:2.2rem 0 .6rem;padding-top:.9rem;border-top:1px solid #e3e7eb}
p{margin:.5rem 0;max-width:46rem}
.lead{color:#566371}
.verdict{margin:1.2rem 0;padding:.8rem 1rem;border-left:4px solid #566371;background:#f4f6f8;border-radius:0 6px 6px 0}
.verdict strong{font-size:1.08rem}
.good{border-color:#0a7a58}.bad{border-color:#b3263a}.warning{border-color:#c2500a}
.scroll{overflow-x:auto;margin:.8rem 0}
table{border-collapse:collapse;font-size:13.5px;font-variant-numeric:tabular-nums}
th,td{text-align:left;padding:.32rem .75rem .32rem 0;border-bottom:1px solid #e3e7eb;vertical-align:top}
th{font-weight:600;color:#566371}
td.n,th.n{text-align:right;white-space:nowrap}
figure{margin:1rem 0 1.4rem;overflow-x:auto}
figure svg{max-width:100%;height:auto}
figcaption{color:#566371;font-size:13px;max-width:46rem}
pre{font:12.5px/1.5 ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;background:#f4f6f8;padding:.8rem 1rem;overflow-x:auto;border-radius:6px}
summary{cursor:pointer;color:#566371}
@media (prefers-color-scheme:dark){
body{background:#12171d;color:#e4e9ee}
h2,th,td{border-color:#2b3540}
.lead,th,figcaption,summary{color:#a3b0bd}
.verdict,pre{background:#1b222a}
.verdict{border-color:#a3b0bd}.good{border-color:#35c796}.bad{border-color:#ff7d8b}.warning{border-color:#ff9a52}
}
@media print{figure,table{break-inside:avoid}}
)";

}  // namespace

HtmlPage::HtmlPage(std::string_view title, std::string_view lead) : title_(title) {
  body_ = fmt::format("<h1>{}</h1>\n", escaped(title));
  if (!lead.empty()) body_ += fmt::format("<p class=\"lead\">{}</p>\n", escaped(lead));
}

HtmlPage& HtmlPage::section(std::string_view title) {
  body_ += fmt::format("<h2>{}</h2>\n", escaped(title));
  return *this;
}

HtmlPage& HtmlPage::paragraph(std::string_view text) {
  body_ += fmt::format("<p>{}</p>\n", escaped(text));
  return *this;
}

HtmlPage& HtmlPage::verdict(Tone tone, std::string_view headline, std::string_view text) {
  constexpr const char* kClasses[] = {"", " good", " bad", " warning"};
  body_ += fmt::format("<div class=\"verdict{}\"><strong>{}</strong>{}</div>\n", kClasses[static_cast<int>(tone)], escaped(headline),
                       text.empty() ? "" : fmt::format("<br/>{}", escaped(text)));
  return *this;
}

HtmlPage& HtmlPage::list(std::span<const std::string> items) {
  if (items.empty()) return *this;
  body_ += "<ul>\n";
  for (const std::string& item : items) body_ += fmt::format("<li>{}</li>\n", escaped(item));
  body_ += "</ul>\n";
  return *this;
}

HtmlPage& HtmlPage::preformatted(std::string_view text) {
  body_ += fmt::format("<pre>{}</pre>\n", escaped(text));
  return *this;
}

HtmlPage& HtmlPage::table(std::span<const std::string> head, std::span<const std::vector<std::string>> rows) {
  std::vector<std::string> classes(head.size(), " class=\"n\"");
  for (const auto& row : rows) {
    check(row.size() == head.size(), "a row of a table has a cell a column");
    for (std::size_t i = 0; i < row.size(); ++i) {
      if (!numeric(row[i])) classes[i].clear();
    }
  }
  body_ += "<div class=\"scroll\"><table>\n<thead><tr>";
  for (std::size_t i = 0; i < head.size(); ++i) body_ += fmt::format("<th{}>{}</th>", classes[i], escaped(head[i]));
  body_ += "</tr></thead>\n<tbody>\n";
  for (const auto& row : rows) {
    body_ += "<tr>";
    for (std::size_t i = 0; i < row.size(); ++i) body_ += fmt::format("<td{}>{}</td>", classes[i], escaped(row[i]));
    body_ += "</tr>\n";
  }
  body_ += "</tbody></table></div>\n";
  return *this;
}

HtmlPage& HtmlPage::facts(std::span<const std::pair<std::string, std::string>> facts) {
  body_ += "<div class=\"scroll\"><table>\n<tbody>\n";
  for (const auto& [name, value] : facts) body_ += fmt::format("<tr><th>{}</th><td>{}</td></tr>\n", escaped(name), escaped(value));
  body_ += "</tbody></table></div>\n";
  return *this;
}

HtmlPage& HtmlPage::chart(const Svg& chart, std::string_view caption) {
  body_ += fmt::format("<figure>{}{}</figure>\n", inline_svg(chart), caption.empty() ? "" : fmt::format("<figcaption>{}</figcaption>", escaped(caption)));
  return *this;
}

HtmlPage& HtmlPage::details(std::string_view summary, std::string_view preformatted_text) {
  body_ += fmt::format("<details><summary>{}</summary><pre>{}</pre></details>\n", escaped(summary), escaped(preformatted_text));
  return *this;
}

std::string HtmlPage::text() const {
  return fmt::format("<!DOCTYPE html>\n<html xmlns=\"http://www.w3.org/1999/xhtml\" lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n"
                     "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n<title>{}</title>\n<style>{}{}</style>\n</head>\n"
                     "<body>\n<main>\n{}</main>\n</body>\n</html>\n",
                     escaped(title_), kPageStyle, chart_style(), body_);
}

}  // namespace keel
