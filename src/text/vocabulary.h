// The texts of tokens by id and the ids by text.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "text/tokenizer.h"

namespace keel {

class Vocabulary {
 public:
  // texts[id]; an empty text is a hole in the numbering. Of equal texts the lowest id is found.
  explicit Vocabulary(std::vector<std::string> texts);
  Vocabulary(Vocabulary&&) =
      default;  // moving a vector leaves the strings that ids_ points into where they are
  Vocabulary(const Vocabulary&) = delete;

  TokenId size() const { return static_cast<TokenId>(texts_.size()); }
  std::optional<TokenId> find(std::string_view text) const;
  // Empty for an id that stands for nothing.
  const std::string& text(TokenId id) const;

 private:
  std::vector<std::string> texts_;
  std::unordered_map<std::string_view, TokenId> ids_;
};

}  // namespace keel
