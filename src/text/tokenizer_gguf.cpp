// The vocabulary inside a GGUF: byte-level BPE ("gpt2") and SentencePiece BPE by scores ("llama").
#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "text/bpe_tokenizer.h"
#include "text/gguf_pre_tokenizer.h"

namespace keel {
namespace {

constexpr std::string_view kSpaceMark = "\xe2\x96\x81";  // ▁, U+2581

enum TokenType : std::int64_t { kNormal = 1, kUnknown, kControl, kUserDefined, kUnused, kByte };

// Ends of a turn that converters often leave "user-defined": never part of an answer's text.
bool ends_a_turn(std::string_view text) {
  static constexpr std::string_view kEnds[] = {"</s>",
                                               "<|im_end|>",
                                               "<|eot_id|>",
                                               "<|eom_id|>",
                                               "<|end|>",
                                               "<end_of_turn>",
                                               "<|endoftext|>",
                                               "<|EOT|>",
                                               "<|END_OF_TURN_TOKEN|>"};
  return std::find(std::begin(kEnds), std::end(kEnds), text) != std::end(kEnds);
}

std::vector<AddedToken> read_added_tokens(const GgufFile& file,
                                          const std::vector<std::string>& texts,
                                          const std::vector<std::int64_t>& types) {
  // Phi-3's own files say that most of its special tokens take the white space after them along; a GGUF cannot.
  std::string name = file.string("general.name") ? *file.string("general.name") : "";
  std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) {
    return static_cast<char>(c < 128 ? std::tolower(c) : c);
  });
  const bool is_phi3 = name.find("phi-3") != name.npos || name.find("phi3") != name.npos;

  std::vector<AddedToken> added;
  for (std::size_t id = 0; id < texts.size(); ++id) {
    const std::int64_t type = types[id];
    if (texts[id].empty() || (type != kControl && type != kUserDefined && type != kUnknown))
      continue;
    const std::string& text = texts[id];
    added.push_back(
        {.id = static_cast<TokenId>(id),
         .text = text,
         .special = type != kUserDefined || ends_a_turn(text),
         .rstrip = is_phi3 && text != "<unk>" && text != "<s>" && text != "<|endoftext|>"});
  }
  return added;
}

MergeTable read_merges(const GgufFile& file, const Vocabulary& vocabulary) {
  const auto* list = file.strings("tokenizer.ggml.merges");
  if (!list) fail("{}: tokenizer.ggml.merges is missing", file.label());
  MergeTable merges(list->size());
  for (std::size_t rank = 0; rank < list->size(); ++rank) {
    const std::string& text = (*list)[rank];
    const std::size_t space = text.find(' ', 1);
    if (space == text.npos) fail("{}: the merge {:?} is not two texts", file.label(), text);
    const auto left = vocabulary.find(text.substr(0, space));
    const auto right = vocabulary.find(text.substr(space + 1));
    const auto whole = vocabulary.find(text.substr(0, space) + text.substr(space + 1));
    if (!left || !right || !whole)
      fail(
          "{}: a part or the whole of the merge {:?} is not in the vocabulary", file.label(), text);
    merges.add(*left, *right, {static_cast<std::int32_t>(rank), *whole});
  }
  return merges;
}

void set_up_gpt2(const GgufFile& file, BpeParts& parts, bool& adds_bos) {
  const std::string* pre = file.string("tokenizer.ggml.pre");
  if (!pre)
    fail("{}: tokenizer.ggml.pre is missing, so how texts are split is unknown", file.label());
  const GgufPreTokenizer* splitting = find_gguf_pre_tokenizer(*pre);
  if (!splitting) fail("{}: tokenizer.ggml.pre {:?} is not supported", file.label(), *pre);
  parts.pre_tokenizer = splitting->pre_tokenizer(file.label());
  if (splitting->nfc) parts.normalizer.steps.emplace_back(NormalForm::nfc);
  parts.decoder.steps.emplace_back(DecodeByteLevel{});
  parts.model = std::make_unique<BpeModel>(
      *parts.vocabulary,
      read_merges(file, *parts.vocabulary),
      BpeModel::Options{.byte_level = true, .ignore_merges = splitting->ignore_merges});
  adds_bos = splitting->adds_bos;
}

void set_up_llama(const GgufFile& file, const std::vector<std::int64_t>& types, BpeParts& parts) {
  const auto* given = file.numbers("tokenizer.ggml.scores");
  if (!given || given->size() != types.size())
    fail("{}: tokenizer.ggml.scores has {} entries for {} tokens",
         file.label(),
         given ? given->size() : 0,
         types.size());
  std::vector<float> scores(given->begin(), given->end());
  for (std::size_t id = 0; id < scores.size(); ++id)
    if (types[id] != kNormal && types[id] != kUserDefined && types[id] != kUnused)
      scores[id] = std::numeric_limits<float>::quiet_NaN();

  const bool prefix_space = file.boolean("tokenizer.ggml.add_space_prefix").value_or(true);
  if (prefix_space) parts.normalizer.steps.emplace_back(Prepend{std::string(kSpaceMark)});
  parts.normalizer.steps.emplace_back(Replace{" ", std::string(kSpaceMark)});
  parts.decoder.steps.emplace_back(Replace{std::string(kSpaceMark), " "});
  parts.decoder.steps.emplace_back(DecodeByteFallback{});
  if (prefix_space) parts.decoder.steps.emplace_back(DecodeStrip{" ", 1, 0, true});

  BpeModel::Options options{.byte_fallback = true};
  if (const auto unknown = file.integer("tokenizer.ggml.unknown_token_id")) {
    if (*unknown < 0 || *unknown >= parts.vocabulary->size())
      fail("{}: tokenizer.ggml.unknown_token_id is {}", file.label(), *unknown);
    options.unknown = static_cast<TokenId>(*unknown);
  }
  parts.model = std::make_unique<BpeModel>(*parts.vocabulary, std::move(scores), options);
}

// The token that a key names; nullopt where the key is absent.
std::optional<TokenId> token_of(const GgufFile& file, const char* key, std::size_t tokens) {
  const auto id = file.integer(key);
  if (!id) return std::nullopt;
  if (*id < 0 || *id >= static_cast<std::int64_t>(tokens))
    fail("{}: {} is {}, of {} tokens", file.label(), key, *id, tokens);
  return static_cast<TokenId>(*id);
}

}  // namespace

std::unique_ptr<Tokenizer> load_tokenizer(const GgufFile& file) {
  const std::string* model = file.string("tokenizer.ggml.model");
  if (!model) fail("{}: tokenizer.ggml.model is missing: the file has no vocabulary", file.label());
  const bool is_gpt2 = *model == "gpt2";
  if (!is_gpt2 && *model != "llama")
    fail("{}: tokenizer.ggml.model {:?} is not supported (gpt2 and llama are)",
         file.label(),
         *model);
  const auto* texts = file.strings("tokenizer.ggml.tokens");
  if (!texts || texts->empty()) fail("{}: tokenizer.ggml.tokens is missing", file.label());
  const auto* types = file.integers("tokenizer.ggml.token_type");
  if (!types || types->size() != texts->size())
    fail("{}: tokenizer.ggml.token_type has {} entries for {} tokens",
         file.label(),
         types ? types->size() : 0,
         texts->size());

  BpeParts parts;
  parts.vocabulary = std::make_unique<Vocabulary>(*texts);
  parts.added_tokens = read_added_tokens(file, *texts, *types);
  parts.added_tokens_are_verbatim = true;
  bool adds_bos = true;
  if (is_gpt2) {
    set_up_gpt2(file, parts, adds_bos);
  } else {
    set_up_llama(file, *types, parts);
  }
  adds_bos = file.boolean("tokenizer.ggml.add_bos_token").value_or(adds_bos);
  const auto bos = token_of(file, "tokenizer.ggml.bos_token_id", texts->size());
  const auto eos = token_of(file, "tokenizer.ggml.eos_token_id", texts->size());
  if (adds_bos && bos) parts.prefix.push_back(*bos);
  if (file.boolean("tokenizer.ggml.add_eos_token").value_or(false) && eos)
    parts.suffix.push_back(*eos);
  parts.description = fmt::format("{}, {} tokens, {}",
                                  is_gpt2 ? "byte-level BPE" : "SentencePiece BPE",
                                  texts->size(),
                                  file.label());
  TokenizerConfig config;
  config.source = file.label();
  if (bos) config.bos_token = (*texts)[static_cast<std::size_t>(*bos)];
  if (eos) config.eos_token = (*texts)[static_cast<std::size_t>(*eos)];
  if (const auto* text = file.string("tokenizer.chat_template")) config.chat_template = *text;
  return std::make_unique<BpeTokenizer>(std::move(parts), config);
}

}  // namespace keel
