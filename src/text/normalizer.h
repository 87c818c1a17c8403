// What happens to a text before it is split: the "normalizer" of a tokenizer.json.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "text/regex.h"
#include "text/unicode.h"

namespace keel {

struct Lowercase {};
struct StripSpace {
  bool left, right;
};
struct Prepend {
  std::string text;  // not put before an empty text
};
struct Replace {
  std::variant<std::string, Regex> pattern;  // a plain string is never empty
  std::string content;

  std::string apply(std::string_view text) const;
};

using NormalizerStep = std::variant<NormalForm, Lowercase, StripSpace, Prepend, Replace>;

struct Normalizer {
  std::vector<NormalizerStep> steps;

  // REQUIRES: text is UTF-8.
  std::string apply(std::string_view text) const;
};

}  // namespace keel
