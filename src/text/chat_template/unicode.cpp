#include "text/chat_template/unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <string>
#include <utility>

namespace keel::jinja {
namespace {

// Code points whose upper case is more than one (Unicode's SpecialCasing.txt, unconditional mappings), in order.
constexpr std::pair<char32_t, std::string_view> kSpecialUpper[] = {
// clang-format off
    {0x00DF, "SS"}, {0x0149, "\u02BCN"}, {0x01F0, "J\u030C"},
    {0x0390, "\u0399\u0308\u0301"}, {0x03B0, "\u03A5\u0308\u0301"}, {0x0587, "\u0535\u0552"},
    {0x1E96, "H\u0331"}, {0x1E97, "T\u0308"}, {0x1E98, "W\u030A"},
    {0x1E99, "Y\u030A"}, {0x1E9A, "A\u02BE"}, {0x1F50, "\u03A5\u0313"},
    {0x1F52, "\u03A5\u0313\u0300"}, {0x1F54, "\u03A5\u0313\u0301"}, {0x1F56, "\u03A5\u0313\u0342"},
    {0x1F80, "\u1F08\u0399"}, {0x1F81, "\u1F09\u0399"}, {0x1F82, "\u1F0A\u0399"},
    {0x1F83, "\u1F0B\u0399"}, {0x1F84, "\u1F0C\u0399"}, {0x1F85, "\u1F0D\u0399"},
    {0x1F86, "\u1F0E\u0399"}, {0x1F87, "\u1F0F\u0399"}, {0x1F88, "\u1F08\u0399"},
    {0x1F89, "\u1F09\u0399"}, {0x1F8A, "\u1F0A\u0399"}, {0x1F8B, "\u1F0B\u0399"},
    {0x1F8C, "\u1F0C\u0399"}, {0x1F8D, "\u1F0D\u0399"}, {0x1F8E, "\u1F0E\u0399"},
    {0x1F8F, "\u1F0F\u0399"}, {0x1F90, "\u1F28\u0399"}, {0x1F91, "\u1F29\u0399"},
    {0x1F92, "\u1F2A\u0399"}, {0x1F93, "\u1F2B\u0399"}, {0x1F94, "\u1F2C\u0399"},
    {0x1F95, "\u1F2D\u0399"}, {0x1F96, "\u1F2E\u0399"}, {0x1F97, "\u1F2F\u0399"},
    {0x1F98, "\u1F28\u0399"}, {0x1F99, "\u1F29\u0399"}, {0x1F9A, "\u1F2A\u0399"},
    {0x1F9B, "\u1F2B\u0399"}, {0x1F9C, "\u1F2C\u0399"}, {0x1F9D, "\u1F2D\u0399"},
    {0x1F9E, "\u1F2E\u0399"}, {0x1F9F, "\u1F2F\u0399"}, {0x1FA0, "\u1F68\u0399"},
    {0x1FA1, "\u1F69\u0399"}, {0x1FA2, "\u1F6A\u0399"}, {0x1FA3, "\u1F6B\u0399"},
    {0x1FA4, "\u1F6C\u0399"}, {0x1FA5, "\u1F6D\u0399"}, {0x1FA6, "\u1F6E\u0399"},
    {0x1FA7, "\u1F6F\u0399"}, {0x1FA8, "\u1F68\u0399"}, {0x1FA9, "\u1F69\u0399"},
    {0x1FAA, "\u1F6A\u0399"}, {0x1FAB, "\u1F6B\u0399"}, {0x1FAC, "\u1F6C\u0399"},
    {0x1FAD, "\u1F6D\u0399"}, {0x1FAE, "\u1F6E\u0399"}, {0x1FAF, "\u1F6F\u0399"},
    {0x1FB2, "\u1FBA\u0399"}, {0x1FB3, "\u0391\u0399"}, {0x1FB4, "\u0386\u0399"},
    {0x1FB6, "\u0391\u0342"}, {0x1FB7, "\u0391\u0342\u0399"}, {0x1FBC, "\u0391\u0399"},
    {0x1FC2, "\u1FCA\u0399"}, {0x1FC3, "\u0397\u0399"}, {0x1FC4, "\u0389\u0399"},
    {0x1FC6, "\u0397\u0342"}, {0x1FC7, "\u0397\u0342\u0399"}, {0x1FCC, "\u0397\u0399"},
    {0x1FD2, "\u0399\u0308\u0300"}, {0x1FD3, "\u0399\u0308\u0301"}, {0x1FD6, "\u0399\u0342"},
    {0x1FD7, "\u0399\u0308\u0342"}, {0x1FE2, "\u03A5\u0308\u0300"}, {0x1FE3, "\u03A5\u0308\u0301"},
    {0x1FE4, "\u03A1\u0313"}, {0x1FE6, "\u03A5\u0342"}, {0x1FE7, "\u03A5\u0308\u0342"},
    {0x1FF2, "\u1FFA\u0399"}, {0x1FF3, "\u03A9\u0399"}, {0x1FF4, "\u038F\u0399"},
    {0x1FF6, "\u03A9\u0342"}, {0x1FF7, "\u03A9\u0342\u0399"}, {0x1FFC, "\u03A9\u0399"},
    {0xFB00, "FF"}, {0xFB01, "FI"}, {0xFB02, "FL"},
    {0xFB03, "FFI"}, {0xFB04, "FFL"}, {0xFB05, "ST"},
    {0xFB06, "ST"}, {0xFB13, "\u0544\u0546"}, {0xFB14, "\u0544\u0535"},
    {0xFB15, "\u0544\u053B"}, {0xFB16, "\u054E\u0546"}, {0xFB17, "\u0544\u053D"},
    // clang-format on
};

constexpr char32_t kReplacement = 0xFFFD;

// Decodes one code point and moves `text` past it.
char32_t take(std::string_view& text) {
  utf8proc_int32_t c = 0;
  const auto bytes = utf8proc_iterate(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                                      static_cast<utf8proc_ssize_t>(text.size()),
                                      &c);
  text.remove_prefix(bytes > 0 ? static_cast<std::size_t>(bytes) : 1);
  return bytes > 0 ? static_cast<char32_t>(c) : kReplacement;
}

utf8proc_category_t category(char32_t c) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(c));
}

void append_upper(std::string& out, char32_t c) {
  if (c >= 0x80) {
    const auto* found = std::lower_bound(
        std::begin(kSpecialUpper), std::end(kSpecialUpper), c, [](const auto& entry, char32_t wanted) {
          return entry.first < wanted;
        });
    if (found != std::end(kSpecialUpper) && found->first == c) {
      out += found->second;
      return;
    }
  }
  append_code_point(out, static_cast<char32_t>(utf8proc_toupper(static_cast<utf8proc_int32_t>(c))));
}

// The lower case of points[i]; a sigma that ends a word has its own form.
void append_lower(std::string& out, const std::vector<char32_t>& points, std::size_t i) {
  constexpr char32_t kCapitalSigma = 0x3A3, kFinalSigma = 0x3C2, kDottedCapitalI = 0x130;
  const char32_t c = points[i];
  if (c == kDottedCapitalI) {
    out += "i\u0307";
    return;
  }
  if (c == kCapitalSigma) {
    const bool after_letter = i > 0 && is_cased(points[i - 1]);
    const bool before_letter = i + 1 < points.size() && is_cased(points[i + 1]);
    append_code_point(out, after_letter && !before_letter ? kFinalSigma : 0x3C3);
    return;
  }
  append_code_point(out, static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c))));
}

void append_title(std::string& out, char32_t c) {
  // The first letter of a special upper case is a capital, the others small: "ﬁ" becomes "Fi".
  std::string upper;
  append_upper(upper, c);
  if (code_point_count(upper) > 1) {
    const std::size_t first = code_point_bytes(upper);
    out += upper.substr(0, first);
    out += to_lower(upper.substr(first));
    return;
  }
  append_code_point(out, static_cast<char32_t>(utf8proc_totitle(static_cast<utf8proc_int32_t>(c))));
}

}  // namespace

bool is_valid_utf8(std::string_view text) {
  while (!text.empty()) {
    utf8proc_int32_t c = 0;
    const auto bytes = utf8proc_iterate(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                                        static_cast<utf8proc_ssize_t>(text.size()),
                                        &c);
    if (bytes <= 0) return false;
    text.remove_prefix(static_cast<std::size_t>(bytes));
  }
  return true;
}

std::vector<char32_t> code_points(std::string_view text) {
  std::vector<char32_t> points;
  points.reserve(text.size());
  while (!text.empty()) points.push_back(take(text));
  return points;
}

std::int64_t code_point_count(std::string_view text) {
  return std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; });
}

void append_code_point(std::string& text, char32_t c) {
  utf8proc_uint8_t bytes[4];
  const auto count = utf8proc_encode_char(static_cast<utf8proc_int32_t>(c), bytes);
  text.append(reinterpret_cast<const char*>(bytes), static_cast<std::size_t>(count));
}

std::size_t code_point_bytes(std::string_view text) {
  std::size_t bytes = 1;
  while (bytes < text.size() && (text[bytes] & 0xC0) == 0x80) ++bytes;
  return bytes;
}

bool is_space(char32_t c) {
  if (c < 0x80) return (c >= 9 && c <= 13) || (c >= 28 && c <= 32);
  return c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 ||
         c == 0x202F || c == 0x205F || c == 0x3000;
}

bool is_line_end(char32_t c) {
  return (c >= 10 && c <= 13) || (c >= 28 && c <= 30) || c == 0x85 || c == 0x2028 || c == 0x2029;
}

bool is_printable(char32_t c) {
  if (c == ' ') return true;
  switch (category(c)) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
    case UTF8PROC_CATEGORY_ZS:
      return false;
    default:
      return true;
  }
}

bool is_alphabetic(char32_t c) {
  const auto kind = category(c);
  return kind >= UTF8PROC_CATEGORY_LU && kind <= UTF8PROC_CATEGORY_LO;
}
bool is_digit(char32_t c) { return category(c) == UTF8PROC_CATEGORY_ND; }
bool is_numeric(char32_t c) {
  const auto kind = category(c);
  return kind >= UTF8PROC_CATEGORY_ND && kind <= UTF8PROC_CATEGORY_NO;
}
bool is_upper(char32_t c) { return category(c) == UTF8PROC_CATEGORY_LU; }
bool is_lower(char32_t c) { return category(c) == UTF8PROC_CATEGORY_LL; }
bool is_cased(char32_t c) { return is_upper(c) || is_lower(c) || category(c) == UTF8PROC_CATEGORY_LT; }

std::string to_upper(std::string_view text) {
  std::string out;
  while (!text.empty()) append_upper(out, take(text));
  return out;
}

std::string to_lower(std::string_view text) {
  const std::vector<char32_t> points = code_points(text);
  std::string out;
  for (std::size_t i = 0; i < points.size(); ++i) append_lower(out, points, i);
  return out;
}

std::string to_title(std::string_view text) {
  const std::vector<char32_t> points = code_points(text);
  std::string out;
  bool inside_word = false;
  for (std::size_t i = 0; i < points.size(); ++i) {
    inside_word ? append_lower(out, points, i) : append_title(out, points[i]);
    inside_word = is_cased(points[i]);
  }
  return out;
}

std::string to_capitalized(std::string_view text) {
  const std::vector<char32_t> points = code_points(text);
  std::string out;
  for (std::size_t i = 0; i < points.size(); ++i) {
    i == 0 ? append_title(out, points[i]) : append_lower(out, points, i);
  }
  return out;
}

std::string swap_case(std::string_view text) {
  const std::vector<char32_t> points = code_points(text);
  std::string out;
  for (std::size_t i = 0; i < points.size(); ++i) {
    is_upper(points[i]) ? append_lower(out, points, i) : append_upper(out, points[i]);
  }
  return out;
}

std::string_view strip(std::string_view text,
                       std::optional<std::string_view> characters,
                       bool left,
                       bool right) {
  std::vector<char32_t> set;
  if (characters) set = code_points(*characters);
  std::sort(set.begin(), set.end());
  const auto goes = [&](char32_t c) {
    return characters ? std::binary_search(set.begin(), set.end(), c) : is_space(c);
  };
  while (left && !text.empty()) {
    std::string_view rest = text;
    if (!goes(take(rest))) break;
    text = rest;
  }
  while (right && !text.empty()) {
    std::size_t start = text.size() - 1;
    while (start > 0 && (text[start] & 0xC0) == 0x80) --start;
    std::string_view last = text.substr(start);
    if (!goes(take(last))) break;
    text = text.substr(0, start);
  }
  return text;
}

std::vector<std::string_view> split_lines(std::string_view text, bool keep_ends) {
  std::vector<std::string_view> lines;
  std::string_view rest = text;
  const char* start = text.data();
  while (!rest.empty()) {
    const char* end = rest.data();
    const char32_t c = take(rest);
    if (!is_line_end(c)) continue;
    if (c == '\r' && !rest.empty() && rest.front() == '\n') rest.remove_prefix(1);
    lines.emplace_back(start, static_cast<std::size_t>((keep_ends ? rest.data() : end) - start));
    start = rest.data();
  }
  if (start != text.data() + text.size()) {
    lines.emplace_back(start, static_cast<std::size_t>(text.data() + text.size() - start));
  }
  return lines;
}

}  // namespace keel::jinja
