#include "text/unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <vector>

#include "base/error.h"

namespace keel {
namespace {

// The second byte's range is what rules out overlong forms, surrogates and values past U+10FFFF.
struct LeadByte {
  int length;
  unsigned char second_low, second_high;
};

LeadByte lead_byte(unsigned char byte) {
  if (byte < 0x80) return {1, 0, 0};
  if (byte < 0xc2) return {0, 0, 0};
  if (byte < 0xe0) return {2, 0x80, 0xbf};
  if (byte == 0xe0) return {3, 0xa0, 0xbf};
  if (byte == 0xed) return {3, 0x80, 0x9f};
  if (byte < 0xf0) return {3, 0x80, 0xbf};
  if (byte == 0xf0) return {4, 0x90, 0xbf};
  if (byte < 0xf4) return {4, 0x80, 0xbf};
  if (byte == 0xf4) return {4, 0x80, 0x8f};
  return {0, 0, 0};
}

utf8proc_category_t category(char32_t c) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(c));
}

int combining_class(std::int32_t c) {
  return utf8proc_get_property(c)->combining_class;
}

}  // namespace

CodePoint decode_utf8(std::string_view text, std::size_t at) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[at + i]); };
  const LeadByte lead = lead_byte(byte(0));
  if (lead.length == 1) return {byte(0), 1, true, false};
  if (lead.length == 0) return {0xfffd, 1, false, false};
  char32_t value = byte(0) & (0xffu >> (lead.length + 1));
  for (int i = 1; i < lead.length; ++i) {
    if (at + i == text.size()) return {0xfffd, i, false, true};
    const unsigned char low = i == 1 ? lead.second_low : 0x80;
    const unsigned char high = i == 1 ? lead.second_high : 0xbf;
    if (byte(i) < low || byte(i) > high) return {0xfffd, i, false, false};
    value = value << 6 | (byte(i) & 0x3fu);
  }
  return {value, lead.length, true, false};
}

void append_utf8(std::string& text, char32_t value) {
  const auto push = [&](char32_t byte) { text.push_back(static_cast<char>(byte)); };
  if (value < 0x80) {
    push(value);
  } else if (value < 0x800) {
    push(0xc0 | value >> 6);
    push(0x80 | (value & 0x3f));
  } else if (value < 0x10000) {
    push(0xe0 | value >> 12);
    push(0x80 | (value >> 6 & 0x3f));
    push(0x80 | (value & 0x3f));
  } else {
    push(0xf0 | value >> 18);
    push(0x80 | (value >> 12 & 0x3f));
    push(0x80 | (value >> 6 & 0x3f));
    push(0x80 | (value & 0x3f));
  }
}

bool is_valid_utf8(std::string_view text) {
  for (std::size_t at = 0; at < text.size();) {
    if (static_cast<unsigned char>(text[at]) < 0x80) {
      ++at;
      continue;
    }
    const CodePoint point = decode_utf8(text, at);
    if (!point.valid) return false;
    at += point.length;
  }
  return true;
}

std::string replace_invalid_utf8(std::string_view text) {
  std::string result;
  result.reserve(text.size());
  for (std::size_t at = 0; at < text.size();) {
    const CodePoint point = decode_utf8(text, at);
    if (point.valid) {
      result.append(text, at, point.length);
    } else {
      append_utf8(result, 0xfffd);
    }
    at += point.length;
  }
  return result;
}

std::string plain_line(std::string_view text) {
  std::string line;
  for (std::size_t at = 0; at < text.size();) {
    const CodePoint c = decode_utf8(text, at);
    append_utf8(line, category(c.value) == UTF8PROC_CATEGORY_CC ? U' ' : c.value);
    at += static_cast<std::size_t>(c.length);
  }
  return line;
}

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
