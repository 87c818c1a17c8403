// The small files beside a tokenizer: tokenizer_config.json, special_tokens_map.json, chat_template.jinja.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "text/added_tokens.h"

namespace keel {

struct TokenizerConfig {
  std::string source = "no tokenizer_config.json";  // for messages
  std::optional<std::string> bos_token, eos_token;
  std::optional<bool> add_bos_token, add_eos_token;
  std::string chat_template;
  std::vector<AddedToken> added_tokens;  // added_tokens_decoder
};

// Every file is optional. Throws Error naming the file that is malformed.
TokenizerConfig read_tokenizer_config(const std::filesystem::path& folder);

}  // namespace keel
