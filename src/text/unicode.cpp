#include "text/unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <vector>

#include "base/error.h"

namespace keel {
namespace {

utf8proc_category_t category(char32_t c) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(c));
}

int combining_class(std::int32_t c) {
  return utf8proc_get_property(c)->combining_class;
}

}  // namespace

bool is_white_space(char32_t c) {
  if (c < 0x80) return c == ' ' || (c >= 9 && c <= 13);
  return c == 0x85 || c == 0xa0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200a) || c == 0x2028 ||
         c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

bool is_letter(char32_t c) {
  if (c < 0x80) return (c | 32) >= 'a' && (c | 32) <= 'z';
  const auto kind = category(c);
  return kind >= UTF8PROC_CATEGORY_LU && kind <= UTF8PROC_CATEGORY_LO;
}

bool is_number(char32_t c) {
  if (c < 0x80) return c >= '0' && c <= '9';
  const auto kind = category(c);
  return kind >= UTF8PROC_CATEGORY_ND && kind <= UTF8PROC_CATEGORY_NO;
}

bool is_punctuation(char32_t c) {
  const auto kind = category(c);
  return kind >= UTF8PROC_CATEGORY_PC && kind <= UTF8PROC_CATEGORY_PO;
}

bool is_word(char32_t c) {
  const auto kind = category(c);
  if ((kind >= UTF8PROC_CATEGORY_LU && kind <= UTF8PROC_CATEGORY_NL) ||
      kind == UTF8PROC_CATEGORY_PC)
    return true;
  // Joiners, and the circled and squared letters, which are symbols by category but alphabetic by property.
  return c == 0x200c || c == 0x200d || (c >= 0x24b6 && c <= 0x24e9) ||
         (c >= 0x1f130 && c <= 0x1f149) || (c >= 0x1f150 && c <= 0x1f169) ||
         (c >= 0x1f170 && c <= 0x1f189);
}

std::string lowercase(std::string_view text) {
  std::string result;
  result.reserve(text.size());
  for (std::size_t at = 0; at < text.size();) {
    const CodePoint point = decode_utf8(text, at);
    at += point.length;
    if (point.value == 0x130) {  // the one letter whose lower case is two characters
      result += "i\xcc\x87";
    } else {
      append_utf8(result, static_cast<char32_t>(utf8proc_tolower(point.value)));
    }
  }
  return result;
}

// utf8proc's own whole-string functions order combining marks by exchanging neighbours, which is quadratic in a run's
// length: here utf8proc decomposes and composes, and the runs are sorted in between.
std::string normalize_unicode(std::string_view text, NormalForm form) {
  if (std::all_of(
          text.begin(), text.end(), [](char c) { return static_cast<signed char>(c) >= 0; }))
    return std::string(text);
  const bool compatible = form == NormalForm::nfkc || form == NormalForm::nfkd;
  const bool compose = form == NormalForm::nfc || form == NormalForm::nfkc;
  const auto decomposing = static_cast<utf8proc_option_t>(UTF8PROC_DECOMPOSE | UTF8PROC_STABLE |
                                                          (compatible ? UTF8PROC_COMPAT : 0));
  std::vector<std::int32_t> points;
  points.reserve(text.size());
  constexpr int kLongestDecomposition = 18;  // U+FDFA
  std::int32_t parts[2 * kLongestDecomposition];
  for (std::size_t at = 0; at < text.size();) {
    const CodePoint point = decode_utf8(text, at);
    at += point.length;
    const auto count = utf8proc_decompose_char(
        static_cast<std::int32_t>(point.value), parts, std::size(parts), decomposing, nullptr);
    check(count >= 0 && count <= static_cast<int>(std::size(parts)), "decomposition fits");
    points.insert(points.end(), parts, parts + count);
  }
  for (auto run = points.begin(); run != points.end();) {
    if (combining_class(*run) == 0) {
      ++run;
      continue;
    }
    auto end = run;
    while (end != points.end() && combining_class(*end) != 0) ++end;
    std::stable_sort(run, end, [](std::int32_t a, std::int32_t b) {
      return combining_class(a) < combining_class(b);
    });
    run = end;
  }
  auto length = static_cast<utf8proc_ssize_t>(points.size());
  if (compose) {
    length = utf8proc_normalize_utf32(
        points.data(), length, static_cast<utf8proc_option_t>(UTF8PROC_COMPOSE | UTF8PROC_STABLE));
    check(length >= 0, "composition of valid code points");
  }
  std::string result;
  result.reserve(text.size());
  for (utf8proc_ssize_t i = 0; i < length; ++i)
    append_utf8(result, static_cast<char32_t>(points[i]));
  return result;
}

}  // namespace keel
