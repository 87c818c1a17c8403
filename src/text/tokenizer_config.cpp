#include "text/tokenizer_config.h"

#include <charconv>

#include "base/error.h"
#include "base/log.h"
#include "base/text_file.h"
#include "text/file_fields.h"

namespace keel {
namespace {

using nlohmann::json;

// "<s>" or {"content": "<s>", …}
std::optional<std::string> token_text(const FileFields& fields, const char* key) {
  if (!fields.has(key)) return std::nullopt;
  return fields.at(key).is_object() ? fields.inside(key).text("content") : fields.text(key);
}

std::string chat_template(const FileFields& config) {
  if (!config.has("chat_template")) return {};
  const json& value = config.at("chat_template");
  if (!value.is_array()) return config.text("chat_template");
  std::string names;
  for (const json& entry : value) {
    const FileFields named(entry, config.where + ", \"chat_template\"");
    if (named.text("name") == "default") return named.text("template");
    names += names.empty() ? "" : ", ";
    names += named.text("name");
  }
  log_warning(
      "{}: none of the chat templates ({}) is named default: none is used", config.where, names);
  return {};
}

TokenId id_from(const std::string& text, const std::string& where) {
  TokenId id = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), id);
  if (error != std::errc() || end != text.data() + text.size() || id < 0)
    fail("{}: \"added_tokens_decoder\" has the id {:?}", where, text);
  return id;
}

void read_main_file(const std::filesystem::path& path, TokenizerConfig& config) {
  const json document = parse_json(read_text_file(path), path.string());
  const FileFields fields(document, path.string());
  config.source = path.string();
  config.bos_token = token_text(fields, "bos_token");
  config.eos_token = token_text(fields, "eos_token");
  if (fields.has("add_bos_token")) config.add_bos_token = fields.flag_or("add_bos_token", false);
  if (fields.has("add_eos_token")) config.add_eos_token = fields.flag_or("add_eos_token", false);
  config.chat_template = chat_template(fields);
  if (!fields.has("added_tokens_decoder")) return;
  for (const auto& [id, value] : fields.inside("added_tokens_decoder").object.items()) {
    const FileFields token(value, path.string() + ", \"added_tokens_decoder\", " + id);
    const bool special = token.flag_or("special", false);
    config.added_tokens.push_back({.id = id_from(id, path.string()),
                                   .text = token.text("content"),
                                   .special = special,
                                   .single_word = token.flag_or("single_word", false),
                                   .lstrip = token.flag_or("lstrip", false),
                                   .rstrip = token.flag_or("rstrip", false),
                                   .normalized = token.flag_or("normalized", !special)});
  }
}

}  // namespace

TokenizerConfig read_tokenizer_config(const std::filesystem::path& folder) {
  TokenizerConfig config;
  const auto main_file = folder / "tokenizer_config.json";
  if (std::filesystem::exists(main_file)) read_main_file(main_file, config);
  const auto map_file = folder / "special_tokens_map.json";
  if (std::filesystem::exists(map_file)) {
    const json document = parse_json(read_text_file(map_file), map_file.string());
    const FileFields fields(document, map_file.string());
    if (!config.bos_token) config.bos_token = token_text(fields, "bos_token");
    if (!config.eos_token) config.eos_token = token_text(fields, "eos_token");
  }
  const auto jinja_file = folder / "chat_template.jinja";
  if (std::filesystem::exists(jinja_file)) config.chat_template = read_text_file(jinja_file);
  return config;
}

}  // namespace keel
