// Text to token ids and back, for every vocabulary kind keel reads.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "files/gguf.h"

namespace keel {

using TokenId = std::int32_t;

struct EncodeOptions {
  bool add_special = false;    // BOS, EOS and whatever else the post-processor adds
  bool parse_special = false;  // "<|im_end|>" in the text becomes its token; else it is plain text
};

// Immutable after construction; any thread may use it at once.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  // Input that is not valid UTF-8 is encoded with U+FFFD in place of each bad sequence, as the reference libraries do.
  virtual std::vector<TokenId> encode(std::string_view text, EncodeOptions options) const = 0;

  // The bytes a token stands for: may be part of a UTF-8 character. Special tokens give their text. `first` drops the
  // leading space that SentencePiece-style decoders strip at the start of a text. Unknown ids give "".
  virtual std::string token_bytes(TokenId id, bool first = false) const = 0;
  virtual bool is_special(TokenId id) const = 0;      // never part of an answer's text
  virtual TokenId size() const = 0;                   // ids are in [0, size)
  virtual std::optional<TokenId> id_of(std::string_view token) const = 0;  // exact token text, special or not

  std::optional<TokenId> bos() const { return bos_; }
  std::optional<TokenId> eos() const { return eos_; }
  // The chat template that comes with the tokenizer, empty where there is none.
  const std::string& chat_template() const { return chat_template_; }
  const std::string& description() const { return description_; }  // "byte-level BPE, 4096 tokens, tokenizer.json"

  // Whole text of ids, invalid UTF-8 as U+FFFD; specials left out unless asked for.
  std::string decode(std::span<const TokenId> ids, bool with_special = false) const;

 protected:
  std::optional<TokenId> bos_, eos_;
  std::string chat_template_;
  std::string description_;
};

// From a folder (tokenizer.json, else tokenizer.model; with tokenizer_config.json, chat_template.jinja and
// special_tokens_map.json where present). Throws Error naming the file and what in it is not supported.
std::unique_ptr<Tokenizer> load_tokenizer(const std::filesystem::path& folder);
// From the vocabulary inside a GGUF (tokenizer.ggml.*).
std::unique_ptr<Tokenizer> load_tokenizer(const GgufFile& file);

}  // namespace keel
