#include "text/vocabulary.h"

namespace keel {

Vocabulary::Vocabulary(std::vector<std::string> texts) : texts_(std::move(texts)) {
  ids_.reserve(texts_.size());
  for (std::size_t id = 0; id < texts_.size(); ++id)
    if (!texts_[id].empty()) ids_.emplace(texts_[id], static_cast<TokenId>(id));
}

std::optional<TokenId> Vocabulary::find(std::string_view text) const {
  const auto found = ids_.find(text);
  if (found == ids_.end()) return std::nullopt;
  return found->second;
}

const std::string& Vocabulary::text(TokenId id) const {
  static const std::string nothing;
  return id >= 0 && id < size() ? texts_[static_cast<std::size_t>(id)] : nothing;
}

}  // namespace keel
