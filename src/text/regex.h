// A regular expression in Oniguruma's own syntax over UTF-8, which is what tokenizer.json patterns are written in.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

namespace keel {

// Immutable; any thread may search.
class Regex {
 public:
  // `where` names file and construct for errors. Throws Error when the pattern does not compile.
  Regex(std::string_view pattern, const std::string& where);

  // Calls visit(begin, end) for each match from left to right; none overlap, and no empty match follows a match.
  // REQUIRES: text is UTF-8. Throws Error when the search exceeds its stack or retry limit,
  // or a match goes backwards.
  void for_each_match(std::string_view text,
                      const std::function<void(std::size_t, std::size_t)>& visit) const;

  const std::string& pattern() const { return pattern_; }

 private:
  std::string pattern_;
  std::shared_ptr<void>
      compiled_;  // Oniguruma's regex_t; shared because copies of a pipeline read the same one
};

}  // namespace keel
