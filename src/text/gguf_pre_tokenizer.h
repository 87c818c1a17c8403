// How texts are split before merging, by the name that a GGUF has for it (tokenizer.ggml.pre).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "text/pre_tokenizer.h"

namespace keel {

// Patterns are applied one after the other, each isolating its matches within the pieces so far. Where converters and a
// model's own tokenizer.json disagree, they are the model's.
struct GgufPreTokenizer {
  std::vector<std::string_view> patterns;
  bool ignore_merges = false;
  bool adds_bos = false;  // where tokenizer.ggml.add_bos_token is silent
  bool nfc = false;

  PreTokenizer pre_tokenizer(const std::string& where) const;  // `where` names the file for errors
};

const GgufPreTokenizer* find_gguf_pre_tokenizer(std::string_view name);  // null: not known

}  // namespace keel
