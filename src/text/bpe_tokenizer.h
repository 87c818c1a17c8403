// A tokenizer put together from steps: find added tokens, normalise, split, merge; and back.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "text/added_tokens.h"
#include "text/bpe_model.h"
#include "text/normalizer.h"
#include "text/pre_tokenizer.h"
#include "text/token_decoder.h"
#include "text/tokenizer.h"
#include "text/tokenizer_config.h"

namespace keel {

struct BpeParts {
  std::unique_ptr<Vocabulary> vocabulary;  // by pointer: the model refers to it
  std::unique_ptr<BpeModel> model;
  Normalizer normalizer;
  PreTokenizer pre_tokenizer;
  TokenDecoder decoder;
  std::vector<AddedToken> added_tokens;
  bool added_tokens_are_verbatim = false;  // their text is not put through the decoder
  std::vector<TokenId> prefix, suffix;     // what add_special puts around the text
  std::string description;
};

class BpeTokenizer final : public Tokenizer {
 public:
  // `config` names BOS, EOS and the chat template. Throws Error where an added token contradicts the vocabulary.
  BpeTokenizer(BpeParts parts, const TokenizerConfig& config);

  std::vector<TokenId> encode(std::string_view text, EncodeOptions options) const override;
  std::string token_bytes(TokenId id, bool first) const override;
  bool is_special(TokenId id) const override;
  TokenId size() const override { return size_; }
  std::optional<TokenId> id_of(std::string_view token) const override;

 private:
  const AddedToken* added(TokenId id) const;

  BpeParts parts_;
  TokenMatcher in_text_, in_normalized_text_;
  std::unordered_map<TokenId, const AddedToken*> added_by_id_;
  std::unordered_map<std::string_view, TokenId> added_by_text_;
  TokenId size_;
};

}  // namespace keel
