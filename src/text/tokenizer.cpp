#include "text/tokenizer.h"

#include "base/error.h"
#include "base/text_file.h"
#include "text/detokenizer.h"
#include "text/sentencepiece_tokenizer.h"
#include "text/tokenizer_config.h"
#include "text/tokenizer_json.h"

namespace keel {

std::string Tokenizer::decode(std::span<const TokenId> ids, bool with_special) const {
  Detokenizer detokenizer(*this, with_special);
  std::string text;
  for (TokenId id : ids) text += detokenizer.push(id);
  return text + detokenizer.finish();
}

std::unique_ptr<Tokenizer> load_tokenizer(const std::filesystem::path& folder) {
  const TokenizerConfig config = read_tokenizer_config(folder);
  const auto json_file = folder / "tokenizer.json";
  if (std::filesystem::exists(json_file))
    return parse_tokenizer_json(json_file.string(), read_text_file(json_file), config);
  const auto model_file = folder / "tokenizer.model";
  if (std::filesystem::exists(model_file)) return load_sentencepiece(model_file, config);
  fail("{}: there is neither a tokenizer.json nor a tokenizer.model", folder.string());
}

}  // namespace keel
