// The few Unicode properties that tokenizers ask about (utf8proc's tables).
#pragma once

#include <string>
#include <string_view>

#include "base/utf8.h"

namespace keel {

bool is_white_space(char32_t c);  // the White_Space property
bool is_letter(char32_t c);       // L*
bool is_number(char32_t c);       // N*
bool is_punctuation(char32_t c);  // P*
bool is_word(char32_t c);         // \w: alphabetic, marks, decimal digits, connectors, joiners
std::string lowercase(std::string_view text);  // one character at a time, without context

enum class NormalForm { nfc, nfd, nfkc, nfkd };
// REQUIRES: text is UTF-8. Time n log n also for long runs of combining marks.
std::string normalize_unicode(std::string_view text, NormalForm form);

}  // namespace keel
