// UTF-8.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace keel {

// What stands at one place of a text. A byte sequence that is not UTF-8 is cut into maximal subparts (Unicode 3.9, as
// Python's errors="replace" does), each read as one U+FFFD.
struct CodePoint {
  char32_t value;
  int length;  // in bytes, 1 to 4
  bool valid;
  bool unfinished;  // not valid, but more bytes after the text's end could make it so
};

// REQUIRES: at < text.size().
CodePoint decode_utf8(std::string_view text, std::size_t at);
void append_utf8(std::string& text, char32_t value);

bool is_valid_utf8(std::string_view text);
// Each maximal subpart of what is not UTF-8 becomes U+FFFD.
std::string replace_invalid_utf8(std::string_view text);
// So, too, and control characters become blanks: one line that a terminal takes for nothing else.
std::string plain_line(std::string_view text);

}  // namespace keel
