// The steps of a tokenizer.json: each reader refuses, by name, what keel does not do.
#pragma once

#include <vector>

#include "text/file_fields.h"
#include "text/normalizer.h"
#include "text/pre_tokenizer.h"
#include "text/token_decoder.h"
#include "text/tokenizer.h"

namespace keel {

void read_normalizer(const FileFields& fields, Normalizer& normalizer);
// True when the steps end in ByteLevel: the pieces' bytes are what the model merges.
bool read_pre_tokenizer(const FileFields& fields, PreTokenizer& pre_tokenizer);
void read_decoder(const FileFields& fields, TokenDecoder& decoder);

struct Surroundings {
  std::vector<TokenId> prefix, suffix;
};
Surroundings read_post_processor(const FileFields& fields);

}  // namespace keel
