// Cuts a text into the pieces that merges never cross: the "pre_tokenizer" of a tokenizer.json.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "text/regex.h"

namespace keel {

enum class SplitBehavior { removed, isolated, merged_with_previous, merged_with_next, contiguous };

struct Split {
  std::variant<std::string, Regex> pattern;  // a plain string is never empty
  SplitBehavior behavior;
  bool invert = false;  // what is between the matches counts as matched, and the other way round
};
struct SplitDigits {
  bool individual;
};
struct SplitPunctuation {
  SplitBehavior behavior;
};
struct SplitWhiteSpace {};  // white space is dropped
struct PrefixSpace {};      // ByteLevel's add_prefix_space: every piece starts with a space
struct Metaspace {
  enum class Prepending { never, first, always };
  std::string replacement;  // one character, "▁"
  Prepending prepending;    // first: only the piece at the start of the whole text
  bool split;
};

using PreTokenizerStep =
    std::variant<Split, SplitDigits, SplitPunctuation, SplitWhiteSpace, PrefixSpace, Metaspace>;

// The pieces of a text: slices of `text`, in order, none empty.
struct Pieces {
  struct Slice {
    std::size_t begin, end;
  };
  std::string text;
  std::vector<Slice> slices;
};

struct PreTokenizer {
  std::vector<PreTokenizerStep> steps;

  // `at_start`: the text begins where the whole input begins.
  // REQUIRES: text is UTF-8.
  Pieces apply(std::string_view text, bool at_start) const;
};

// GPT-2's pattern, which ByteLevel with use_regex stands for.
extern const std::string_view kGpt2Pattern;

}  // namespace keel
