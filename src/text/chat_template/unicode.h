// Text as Python sees it: code points, Unicode white space, full case mappings. Strings are UTF-8 throughout.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace keel::jinja {

bool is_valid_utf8(std::string_view text);

// The functions below take valid UTF-8.
std::vector<char32_t> code_points(std::string_view text);
std::int64_t code_point_count(std::string_view text);
void append_code_point(std::string& text, char32_t c);
// Bytes of the code point that starts at text[0].
std::size_t code_point_bytes(std::string_view text);

bool is_space(char32_t c);       // str.isspace: also what strip() and split() take away
bool is_line_end(char32_t c);    // str.splitlines
bool is_printable(char32_t c);   // what repr() leaves as it is
bool is_alphabetic(char32_t c);  // categories L*
bool is_digit(char32_t c);       // categories Nd and, for is_numeric, No and Nl too
bool is_numeric(char32_t c);
bool is_upper(char32_t c);
bool is_lower(char32_t c);
bool is_cased(char32_t c);

std::string to_upper(std::string_view text);
std::string to_lower(std::string_view text);
std::string to_title(std::string_view text);       // str.title
std::string to_capitalized(std::string_view text); // str.capitalize
std::string swap_case(std::string_view text);

// Without the leading and trailing code points that are in `characters` (white space when absent).
std::string_view strip(std::string_view text,
                       std::optional<std::string_view> characters,
                       bool left,
                       bool right);
// Lines without their ends.
std::vector<std::string_view> split_lines(std::string_view text, bool keep_ends = false);

}  // namespace keel::jinja
