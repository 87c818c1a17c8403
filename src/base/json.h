// JSON that nobody vouches for: what would make reading it take too long, too much stack or be ambiguous is found first.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace keel {

struct JsonLimits {
  std::size_t depth = 64;        // of objects and arrays in each other: writing and copying recurse
  std::size_t keys = SIZE_MAX;   // of one object
  bool allow_repeated_keys = true;  // in one object; the last counts
};

// Why `text` is not to be parsed: it is not JSON, or passes a limit. Where there is no such reason nlohmann's parse throws
// nothing. Takes linear time and builds nothing; the library's own way to bound a parse, a callback, looks at all siblings
// again after each object, which is quadratic.
std::optional<std::string> json_problem(std::string_view text, const JsonLimits& limits = {});

// At most `most_bytes` of the text, cut between characters, with an ellipsis where something is missing.
std::string shortened(std::string text, std::size_t most_bytes = 200);

}  // namespace keel
