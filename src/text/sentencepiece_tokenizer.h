// tokenizer.model: a SentencePiece model, run by libsentencepiece.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

#include "text/tokenizer.h"
#include "text/tokenizer_config.h"

namespace keel {

std::unique_ptr<Tokenizer> load_sentencepiece(const std::filesystem::path& file,
                                              const TokenizerConfig& config);
// `model` is the file's bytes, `label` what errors call it.
std::unique_ptr<Tokenizer> parse_sentencepiece(const std::string& label,
                                               std::string_view model,
                                               const TokenizerConfig& config);

}  // namespace keel
