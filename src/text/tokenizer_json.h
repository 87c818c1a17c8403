// tokenizer.json, as the Hugging Face library writes it: the byte-pair models and what goes with them.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "text/tokenizer.h"
#include "text/tokenizer_config.h"

namespace keel {

// `label` is what errors call the file. Throws Error naming the construct that is malformed or not supported.
std::unique_ptr<Tokenizer> parse_tokenizer_json(const std::string& label,
                                                std::string_view json,
                                                const TokenizerConfig& config);

}  // namespace keel
