#include "text/tokenizer_json.h"

#include <algorithm>

#include "base/error.h"
#include "text/bpe_tokenizer.h"
#include "text/file_fields.h"
#include "text/tokenizer_json_steps.h"

namespace keel {
namespace {

using nlohmann::json;

constexpr TokenId kMostTokens = 1 << 24;  // an id past it is a broken file, not a vocabulary

std::unique_ptr<Vocabulary> read_vocabulary(const FileFields& model) {
  const FileFields vocab = model.inside("vocab");
  TokenId size = 0;
  for (const auto& [text, id] : vocab.object.items()) {
    if (!id.is_number_integer() || id.get<std::int64_t>() < 0 ||
        id.get<std::int64_t>() >= kMostTokens)
      fail("{}: {:?} has the id {}", vocab.where, text, id.dump());
    if (text.empty()) fail("{}: id {} has an empty text", vocab.where, id.dump());
    size = std::max(size, id.get<TokenId>() + 1);
  }
  std::vector<std::string> texts(static_cast<std::size_t>(size));
  for (const auto& [text, id] : vocab.object.items()) {
    std::string& place = texts[id.get<std::size_t>()];
    if (!place.empty())
      fail("{}: {:?} and {:?} have the same id {}", vocab.where, place, text, id.dump());
    place = text;
  }
  return std::make_unique<Vocabulary>(std::move(texts));
}

// "a b" or ["a", "b"]
std::pair<std::string, std::string> merge_parts(const json& merge, const std::string& where) {
  if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string())
    return {merge[0].get<std::string>(), merge[1].get<std::string>()};
  if (merge.is_string()) {
    const auto text = merge.get<std::string>();
    const std::size_t space = text.find(' ');
    if (space != text.npos && text.find(' ', space + 1) == text.npos)
      return {text.substr(0, space), text.substr(space + 1)};
  }
  fail("{}: a merge is two texts, found {}",
       where,
       merge.dump(-1, ' ', false, json::error_handler_t::replace));
}

MergeTable read_merges(const FileFields& model, const Vocabulary& vocabulary) {
  const std::string where = model.where + ", \"merges\"";
  const json& list = model.array("merges");
  MergeTable merges(list.size());
  std::int32_t rank = 0;
  const auto id_of = [&](const std::string& text) {
    const auto id = vocabulary.find(text);
    if (!id) fail("{}: {:?} of merge {} is not in the vocabulary", where, text, rank);
    return *id;
  };
  for (const json& merge : list) {
    const auto [left, right] = merge_parts(merge, where);
    merges.add(id_of(left), id_of(right), {rank, id_of(left + right)});
    ++rank;
  }
  return merges;
}

void require_absent(const FileFields& fields, const char* key) {
  if (fields.has(key) && fields.at(key) != json("") && fields.at(key) != json(0.0))
    fail("{}: \"{}\" {} is not supported", fields.where, key, fields.at(key).dump());
}

void read_model(const FileFields& document, BpeParts& parts, bool byte_level) {
  const FileFields model = document.inside("model");
  // Old files leave the type out; only BPE has merges.
  const std::string type = model.text_or("type", model.has("merges") ? "BPE" : "unnamed");
  if (type != "BPE") fail("{}: the type {:?} is not supported (BPE is)", model.where, type);
  require_absent(model, "dropout");
  require_absent(model, "continuing_subword_prefix");
  require_absent(model, "end_of_word_suffix");
  parts.vocabulary = read_vocabulary(model);
  BpeModel::Options options{.byte_level = byte_level,
                            .byte_fallback = model.flag_or("byte_fallback", false),
                            .ignore_merges = model.flag_or("ignore_merges", false),
                            .fuse_unknown = model.flag_or("fuse_unk", false)};
  if (model.has("unk_token")) {
    options.unknown = parts.vocabulary->find(model.text("unk_token"));
    if (!options.unknown)
      fail("{}: the unk_token {:?} is not in the vocabulary", model.where, model.text("unk_token"));
  }
  parts.model =
      std::make_unique<BpeModel>(*parts.vocabulary, read_merges(model, *parts.vocabulary), options);
}

void read_added_tokens(const FileFields& document, const TokenizerConfig& config, BpeParts& parts) {
  if (document.has("added_tokens")) {
    for (const json& entry : document.array("added_tokens")) {
      const FileFields token(entry, document.where + ", \"added_tokens\"");
      const std::int64_t id = token.integer("id");
      if (id < 0 || id >= kMostTokens)
        fail("{}: {:?} has the id {}", token.where, token.text("content"), id);
      const bool special = token.flag_or("special", false);
      parts.added_tokens.push_back({.id = static_cast<TokenId>(id),
                                    .text = token.text("content"),
                                    .special = special,
                                    .single_word = token.flag_or("single_word", false),
                                    .lstrip = token.flag_or("lstrip", false),
                                    .rstrip = token.flag_or("rstrip", false),
                                    .normalized = token.flag_or("normalized", !special)});
    }
  }
  // What tokenizer_config.json says of a token wins: the reference library adds it again, with those flags.
  for (const AddedToken& token : config.added_tokens) {
    if (token.id >= kMostTokens)
      fail("{}: {:?} has the id {}", config.source, token.text, token.id);
    const auto same = std::find_if(parts.added_tokens.begin(),
                                   parts.added_tokens.end(),
                                   [&](const AddedToken& t) { return t.id == token.id; });
    if (same == parts.added_tokens.end()) {
      parts.added_tokens.push_back(token);
    } else if (same->text == token.text) {
      *same = token;
    } else {
      fail("{}: id {} is {:?}, but {:?} in {}",
           config.source,
           token.id,
           token.text,
           same->text,
           document.where);
    }
  }
}

}  // namespace

std::unique_ptr<Tokenizer> parse_tokenizer_json(const std::string& label,
                                                std::string_view text,
                                                const TokenizerConfig& config) {
  const json root = parse_json(text, label);
  const FileFields document(root, label);
  require_absent(document, "truncation");
  require_absent(document, "padding");

  BpeParts parts;
  bool byte_level = false;
  if (document.has("normalizer")) read_normalizer(document.inside("normalizer"), parts.normalizer);
  if (document.has("pre_tokenizer"))
    byte_level = read_pre_tokenizer(document.inside("pre_tokenizer"), parts.pre_tokenizer);
  if (document.has("decoder")) read_decoder(document.inside("decoder"), parts.decoder);
  read_model(document, parts, byte_level);
  read_added_tokens(document, config, parts);
  if (document.has("post_processor")) {
    Surroundings around = read_post_processor(document.inside("post_processor"));
    parts.prefix = std::move(around.prefix);
    parts.suffix = std::move(around.suffix);
  }
  TokenId size = parts.vocabulary->size();
  for (const AddedToken& token : parts.added_tokens) size = std::max(size, token.id + 1);
  for (const auto* ids : {&parts.prefix, &parts.suffix})
    for (TokenId id : *ids)
      if (id < 0 || id >= size)
        fail("{}: the post_processor adds the id {}, which no token has", label, id);
  parts.description = fmt::format(
      "{} BPE, {} tokens, {}", byte_level ? "byte-level" : "character-level", size, label);
  return std::make_unique<BpeTokenizer>(std::move(parts), config);
}

}  // namespace keel
