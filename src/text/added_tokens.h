// Tokens that are found in the text as they stand, before anything else looks at it.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "text/tokenizer.h"

namespace keel {

struct AddedToken {
  TokenId id;
  std::string text;
  bool special = false;      // plain text unless the caller parses specials
  bool single_word = false;  // only where no word character touches it
  bool lstrip = false;       // takes the white space before it along
  bool rstrip = false;       // … and after it
  bool normalized = false;   // is looked for in the normalised text
};

// Finds the leftmost, and of those the longest, token again and again. A token that is then refused (special while
// those are not parsed, part of a word) still hides the shorter ones beneath it.
class TokenMatcher {
 public:
  // `pattern` is what the text must hold: the token's text, normalised where the token asks for it.
  void add(std::string_view pattern, const AddedToken& token);
  bool empty() const { return tokens_.empty(); }

  // Calls on_text and on_token in the text's order; the stripped white space goes to neither.
  // Time: the text's length times the longest pattern's, at worst.
  void cut(std::string_view text,
           bool parse_special,
           const std::function<void(std::size_t begin, std::size_t end)>& on_text,
           const std::function<void(const AddedToken&)>& on_token) const;

 private:
  const AddedToken* longest_at(std::string_view text, std::size_t at, std::size_t& length) const;

  std::vector<AddedToken> tokens_;
  std::vector<int> token_of_node_{-1};                     // a trie; node 0 is its root
  std::unordered_map<std::uint64_t, std::uint32_t> next_;  // node << 8 | byte -> node
  std::array<bool, 256> starts_{};                         // bytes that some pattern starts with
};

}  // namespace keel
