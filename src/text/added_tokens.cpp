#include "text/added_tokens.h"

#include <algorithm>

#include "text/unicode.h"

namespace keel {
namespace {

// Where the character that ends just before `at` begins. REQUIRES: at > 0, text is UTF-8.
std::size_t character_before(std::string_view text, std::size_t at) {
  do {
    --at;
  } while (at > 0 && (static_cast<unsigned char>(text[at]) & 0xc0) == 0x80);
  return at;
}

bool touches_word(std::string_view text, std::size_t begin, std::size_t end) {
  return (begin > 0 && is_word(decode_utf8(text, character_before(text, begin)).value)) ||
         (end < text.size() && is_word(decode_utf8(text, end).value));
}

}  // namespace

void TokenMatcher::add(std::string_view pattern, const AddedToken& token) {
  if (pattern.empty()) return;
  std::uint32_t node = 0;
  for (unsigned char byte : pattern) {
    const auto [edge, is_new] =
        next_.try_emplace(std::uint64_t{node} << 8 | byte, token_of_node_.size());
    if (is_new) token_of_node_.push_back(-1);
    node = edge->second;
  }
  starts_[static_cast<unsigned char>(pattern[0])] = true;
  token_of_node_[node] = static_cast<int>(tokens_.size());
  tokens_.push_back(token);
}

const AddedToken* TokenMatcher::longest_at(std::string_view text,
                                           std::size_t at,
                                           std::size_t& length) const {
  const AddedToken* found = nullptr;
  std::uint32_t node = 0;
  for (std::size_t i = at; i < text.size(); ++i) {
    const auto edge = next_.find(std::uint64_t{node} << 8 | static_cast<unsigned char>(text[i]));
    if (edge == next_.end()) break;
    node = edge->second;
    if (token_of_node_[node] < 0) continue;
    found = &tokens_[static_cast<std::size_t>(token_of_node_[node])];
    length = i + 1 - at;
  }
  return found;
}

void TokenMatcher::cut(std::string_view text,
                       bool parse_special,
                       const std::function<void(std::size_t, std::size_t)>& on_text,
                       const std::function<void(const AddedToken&)>& on_token) const {
  std::size_t done = 0;  // everything before was handed on
  for (std::size_t at = 0; at < text.size();) {
    std::size_t length = 0;
    const AddedToken* token =
        starts_[static_cast<unsigned char>(text[at])] ? longest_at(text, at, length) : nullptr;
    if (!token) {
      ++at;
      continue;
    }
    std::size_t begin = at, end = at + length;
    at = end;
    if (token->special && !parse_special) continue;
    if (token->single_word && touches_word(text, begin, end)) continue;
    if (token->lstrip) {
      while (begin > done) {
        const std::size_t before = character_before(text, begin);
        if (!is_white_space(decode_utf8(text, before).value)) break;
        begin = before;
      }
    }
    if (token->rstrip) {
      while (end < text.size()) {
        const CodePoint point = decode_utf8(text, end);
        if (!is_white_space(point.value)) break;
        end += static_cast<std::size_t>(point.length);
      }
    }
    if (begin > done) on_text(done, begin);
    on_token(*token);
    done = end;
    // The search goes on right after the token's own text: a token among the stripped white space is found as well.
  }
  if (done < text.size()) on_text(done, text.size());
}

}  // namespace keel
