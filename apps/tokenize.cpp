// keel tokenize: standard input to ids and back, or a chat request through the template. Needs no weights.
#include <iostream>
#include <iterator>
#include <sstream>

#include "base/error.h"
#include "base/json.h"
#include "base/text_file.h"
#include "options.h"

namespace keel {
namespace {

struct TokenizeFlags {
  std::string model, messages_file, template_file;
  bool jsonl = false, decode = false, special = false, add_special = false, render = false;
};

Json parse_json(const std::string& text, const std::string& what) {
  if (const auto problem = json_problem(text)) fail("{}: {}", what, *problem);
  return Json::parse(text);
}

std::string json_text(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

std::vector<TokenId> ids_of(const Json& json, const Tokenizer& tokenizer, const std::string& what) {
  if (!json.is_array()) fail("{}: wanted a JSON array of token ids", what);
  std::vector<TokenId> ids;
  for (const Json& item : json) {
    if (!item.is_number_integer() || item.get<std::int64_t>() < 0 || item.get<std::int64_t>() >= tokenizer.size()) {
      fail("{}: {} is no token id; they are 0 to {}", what, json_text(item), tokenizer.size() - 1);
    }
    ids.push_back(item.get<TokenId>());
  }
  return ids;
}

// Ids separated by anything that is not a digit: "[1, 2]" as well as "1 2".
std::vector<TokenId> ids_in_text(std::string text, const Tokenizer& tokenizer) {
  for (char& c : text) {
    if (c == '[' || c == ']' || c == ',') c = ' ';
  }
  Json ids = Json::array();
  std::istringstream words(text);
  for (std::string word; words >> word;) {
    const Json number = Json::parse(word, nullptr, false);
    ids.push_back(number.is_discarded() ? Json(word) : number);
  }
  return ids_of(ids, tokenizer, "standard input");
}

void tokenize_lines(const TokenizeFlags& flags, const Tokenizer& tokenizer, EncodeOptions options) {
  std::int64_t number = 0;
  for (std::string line; std::getline(std::cin, line);) {
    const std::string what = fmt::format("line {}", ++number);
    const Json json = parse_json(line, what);
    if (flags.decode) {
      std::cout << json_text(tokenizer.decode(ids_of(json, tokenizer, what), flags.special)) << '\n';
    } else {
      if (!json.is_string()) fail("{}: wanted a JSON string", what);
      std::cout << Json(tokenizer.encode(json.get<std::string>(), options)).dump() << '\n';
    }
  }
}

void tokenize(const TokenizeFlags& flags) {
  const std::shared_ptr<const Tokenizer> tokenizer = open_tokenizer(find_model(flags.model));
  if (!tokenizer) fail("{}: holds no tokenizer", flags.model);
  const EncodeOptions options{.add_special = flags.add_special, .parse_special = flags.special};
  if (!flags.messages_file.empty()) {
    const auto chat_template = open_chat_template(*tokenizer, flags.template_file);
    if (!chat_template) fail("{}: the tokenizer brings no chat template; give one with --chat-template FILE", flags.model);
    const Json request = parse_json(read_text_file(flags.messages_file), flags.messages_file);
    if (!request.is_object() || !request.contains("messages")) {
      fail("{}: wanted a chat request: a JSON object with \"messages\"", flags.messages_file);
    }
    const std::string text = render_chat(*chat_template, *tokenizer, request);
    if (flags.render) {
      std::cout << text;
    } else {  // a template writes its own special tokens
      std::cout << Json(tokenizer->encode(text, {.add_special = flags.add_special, .parse_special = true})).dump() << '\n';
    }
    return;
  }
  if (flags.jsonl) return tokenize_lines(flags, *tokenizer, options);
  const std::string text(std::istreambuf_iterator<char>(std::cin), {});
  if (flags.decode) {
    std::cout << tokenizer->decode(ids_in_text(text, *tokenizer), flags.special);
  } else {
    std::cout << Json(tokenizer->encode(text, options)).dump() << '\n';
  }
}

}  // namespace

void add_tokenize(CLI::App& app) {
  auto flags = std::make_shared<TokenizeFlags>();
  CLI::App* command = app.add_subcommand("tokenize", "Standard input to token ids, or back; needs no weights");
  command->add_option("model", flags->model, "A folder with a tokenizer, an org/name in the local cache, or a .gguf file")->required();
  command->add_flag("--jsonl", flags->jsonl, "One JSON string a line in, one array of ids a line out");
  command->add_flag("--decode", flags->decode, "Ids to text");
  command->add_flag("--special", flags->special, "Text of special tokens becomes their ids (decoding: is written)");
  command->add_flag("--add-special", flags->add_special, "Add what the tokenizer adds by itself, such as BOS");
  command->add_option("--messages", flags->messages_file, "A chat request's JSON, through the chat template");
  command->add_option("--chat-template", flags->template_file, "File with another chat template");
  command->add_flag("--render", flags->render, "With --messages: the text instead of ids");
  command->callback([flags] { tokenize(*flags); });
}

}  // namespace keel
