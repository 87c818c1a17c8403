#include "text/bpe_tokenizer.h"

#include <algorithm>

#include "base/error.h"
#include "base/log.h"
#include "text/unicode.h"

namespace keel {
namespace {

std::optional<TokenId> named_token(const Tokenizer& tokenizer,
                                   const std::optional<std::string>& text,
                                   const char* role,
                                   const std::string& source) {
  if (!text) return std::nullopt;
  const auto id = tokenizer.id_of(*text);
  if (!id)
    log_warning("{}: the {} {:?} is not in the vocabulary: there is none", source, role, *text);
  return id;
}

}  // namespace

BpeTokenizer::BpeTokenizer(BpeParts parts, const TokenizerConfig& config)
    : parts_(std::move(parts)), size_(parts_.vocabulary->size()) {
  for (const AddedToken& token : parts_.added_tokens) {
    // Cut out of a text it would leave halves of characters, which nothing after it may be given.
    if (!is_valid_utf8(token.text))
      fail("{}: the added token {:?} of id {} is not UTF-8", parts_.description, token.text, token.id);
    const std::string& known = parts_.vocabulary->text(token.id);
    if (!known.empty() && known != token.text)
      fail("{}: the added token {:?} has the id {}, which is {:?} in the vocabulary",
           parts_.description,
           token.text,
           token.id,
           known);
    added_by_id_[token.id] = &token;
    added_by_text_.emplace(token.text, token.id);
    size_ = std::max(size_, token.id + 1);
    if (token.normalized) {
      in_normalized_text_.add(parts_.normalizer.apply(token.text), token);
    } else {
      in_text_.add(token.text, token);
    }
  }
  bos_ = named_token(*this, config.bos_token, "BOS token", config.source);
  eos_ = named_token(*this, config.eos_token, "EOS token", config.source);
  chat_template_ = config.chat_template;
  description_ = parts_.description;
}

std::vector<TokenId> BpeTokenizer::encode(std::string_view text, EncodeOptions options) const {
  std::string repaired;
  if (!is_valid_utf8(text)) text = repaired = replace_invalid_utf8(text);

  std::vector<TokenId> tokens;
  WordCache cache(text.size());
  const auto push = [&](const AddedToken& token) { tokens.push_back(token.id); };
  if (options.add_special) tokens = parts_.prefix;
  in_text_.cut(
      text,
      options.parse_special,
      [&](std::size_t begin, std::size_t end) {
        const std::string normal = parts_.normalizer.apply(text.substr(begin, end - begin));
        in_normalized_text_.cut(
            normal,
            options.parse_special,
            [&](std::size_t from, std::size_t to) {
              const bool at_start = begin == 0 && from == 0;
              const Pieces pieces = parts_.pre_tokenizer.apply(
                  std::string_view(normal).substr(from, to - from), at_start);
              for (const auto& slice : pieces.slices)
                parts_.model->encode(
                    std::string_view(pieces.text).substr(slice.begin, slice.end - slice.begin),
                    cache,
                    tokens);
            },
            push);
      },
      push);
  if (options.add_special) tokens.insert(tokens.end(), parts_.suffix.begin(), parts_.suffix.end());
  return tokens;
}

std::string BpeTokenizer::token_bytes(TokenId id, bool first) const {
  const AddedToken* token = added(id);
  if (token && parts_.added_tokens_are_verbatim) return token->text;
  return parts_.decoder.bytes(token ? token->text : parts_.vocabulary->text(id), first);
}

bool BpeTokenizer::is_special(TokenId id) const {
  const AddedToken* token = added(id);
  return token && token->special;
}

std::optional<TokenId> BpeTokenizer::id_of(std::string_view token) const {
  if (const auto found = added_by_text_.find(token); found != added_by_text_.end())
    return found->second;
  return parts_.vocabulary->find(token);
}

const AddedToken* BpeTokenizer::added(TokenId id) const {
  const auto found = added_by_id_.find(id);
  return found == added_by_id_.end() ? nullptr : found->second;
}

}  // namespace keel
