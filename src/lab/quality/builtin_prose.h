// Prose for when no text is given: the openings of two novels, L. Frank Baum's "Dorothy and the Wizard in Oz" (1908) and Edith
// Wharton's "Ethan Frome" (1911), public domain; from github.com/mlschmitt/classic-books-markdown at 9448827 as
// models/tiny/build_corpus.py cleans it. Both are held out from what models/tiny was trained on.
#pragma once

#include <string_view>

namespace keel {

std::string_view builtin_prose();  // some 280 kB

}  // namespace keel
