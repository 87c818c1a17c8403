#include "text/sentencepiece_tokenizer.h"

#include <sentencepiece_processor.h>

#include <algorithm>
#include <unordered_map>

#include "base/error.h"
#include "base/log.h"
#include "base/text_file.h"
#include "text/normalizer.h"
#include "text/token_decoder.h"
#include "text/unicode.h"

namespace keel {
namespace {

constexpr std::string_view kSpaceMark = "\xe2\x96\x81";  // ▁, U+2581

class SentencePieceTokenizer final : public Tokenizer {
 public:
  SentencePieceTokenizer(const std::string& label,
                         std::string_view model,
                         const TokenizerConfig& config) {
    const auto status = processor_.LoadFromSerializedProto({model.data(), model.size()});
    if (!status.ok()) fail("{}: not a SentencePiece model: {}", label, status.ToString());
    size_ = processor_.GetPieceSize();
    for (TokenId id = 0; id < size_; ++id)
      if (processor_.IsControl(id))
        add({.id = id, .text = processor_.IdToPiece(id), .special = true}, label);
    for (const AddedToken& token : config.added_tokens) add(token, config.source);
    strips_first_space_ = decoding_strips_first_space();
    bos_ = role(config.bos_token, processor_.bos_id(), config.source);
    eos_ = role(config.eos_token, processor_.eos_id(), config.source);
    add_bos_ = config.add_bos_token.value_or(true) && bos_;
    add_eos_ = config.add_eos_token.value_or(false) && eos_;
    chat_template_ = config.chat_template;
    description_ = fmt::format("SentencePiece, {} tokens, {}", size_, label);
  }

  std::vector<TokenId> encode(std::string_view text, EncodeOptions options) const override {
    std::string repaired;
    if (!is_valid_utf8(text)) text = repaired = replace_invalid_utf8(text);
    std::vector<TokenId> tokens;
    if (options.add_special && add_bos_) tokens.push_back(*bos_);
    matcher_.cut(
        text,
        options.parse_special,
        [&](std::size_t begin, std::size_t end) {
          std::vector<int> ids;
          const auto status = processor_.Encode({text.data() + begin, end - begin}, &ids);
          if (!status.ok()) fail("libsentencepiece: {}", status.ToString());
          tokens.insert(tokens.end(), ids.begin(), ids.end());
        },
        [&](const AddedToken& token) { tokens.push_back(token.id); });
    if (options.add_special && add_eos_) tokens.push_back(*eos_);
    return tokens;
  }

  std::string token_bytes(TokenId id, bool first) const override {
    if (const auto found = added_.find(id); found != added_.end()) return found->second.text;
    if (id < 0 || id >= processor_.GetPieceSize()) return {};
    if (processor_.IsByte(id)) {
      const int byte = byte_token_value(processor_.IdToPiece(id));
      return std::string(1, static_cast<char>(byte));
    }
    std::string text = Replace{std::string(kSpaceMark), " "}.apply(processor_.IdToPiece(id));
    if (first && strips_first_space_ && text.starts_with(' ')) text.erase(0, 1);
    return text;
  }

  bool is_special(TokenId id) const override {
    const auto found = added_.find(id);
    return found != added_.end() && found->second.special;
  }
  TokenId size() const override { return size_; }
  std::optional<TokenId> id_of(std::string_view token) const override {
    for (const auto& [id, added] : added_)
      if (added.text == token) return id;
    const int id = processor_.PieceToId({token.data(), token.size()});
    if (id == processor_.unk_id() && processor_.IdToPiece(id) != token) return std::nullopt;
    return id;
  }

 private:
  // Whether the model adds a leading space, which decoding then takes away, only libsentencepiece knows: a word shows it.
  bool decoding_strips_first_space() const {
    for (int id = 0; id < processor_.GetPieceSize(); ++id) {
      const std::string_view piece = processor_.IdToPiece(id);
      if (!piece.starts_with(kSpaceMark) || piece.substr(kSpaceMark.size()).starts_with(kSpaceMark))
        continue;
      std::string decoded;
      return processor_.Decode(std::vector<int>{id}, &decoded).ok() && !decoded.starts_with(' ');
    }
    return false;
  }

  void add(const AddedToken& token, const std::string& source) {
    if (token.id < processor_.GetPieceSize() && processor_.IdToPiece(token.id) != token.text)
      fail("{}: id {} is {:?}, but {:?} in tokenizer.model",
           source,
           token.id,
           token.text,
           processor_.IdToPiece(token.id));
    added_.insert_or_assign(token.id, token);
    matcher_.add(token.text, token);
    size_ = std::max(size_, token.id + 1);
  }

  std::optional<TokenId> role(const std::optional<std::string>& text,
                              int otherwise,
                              const std::string& source) const {
    if (!text) return otherwise >= 0 ? std::optional(otherwise) : std::nullopt;
    const auto id = id_of(*text);
    if (!id) log_warning("{}: {:?} is not in the vocabulary", source, *text);
    return id;
  }

  sentencepiece::SentencePieceProcessor processor_;
  TokenMatcher matcher_;
  std::unordered_map<TokenId, AddedToken> added_;
  TokenId size_ = 0;
  bool strips_first_space_ = false;
  bool add_bos_ = false, add_eos_ = false;
};

}  // namespace

std::unique_ptr<Tokenizer> parse_sentencepiece(const std::string& label,
                                               std::string_view model,
                                               const TokenizerConfig& config) {
  return std::make_unique<SentencePieceTokenizer>(label, model, config);
}

std::unique_ptr<Tokenizer> load_sentencepiece(const std::filesystem::path& file,
                                              const TokenizerConfig& config) {
  return parse_sentencepiece(file.string(), read_text_file(file), config);
}

}  // namespace keel
