#include "server/openai/models.h"

#include "server/json_input.h"
#include "server/openai/answer.h"
#include "server/openai/chat.h"
#include "server/openai/logprobs.h"
#include "server/openai/sampling_params.h"

namespace keel {

Json model_card(const Api& api, const std::string& name) {
  const Attestation& engine = api.engine.attestation();
  return {{"id", name},
          {"object", "model"},
          {"created", api.started},
          {"owned_by", "keel"},
          {"root", engine.model},
          {"parent", nullptr},
          {"max_model_len", engine.max_model_len},
          {"vocab_size", api.engine.config().vocabulary},
          {"family", engine.family},
          {"weights", {{"format", engine.weights_format}, {"bytes", engine.weight_bytes}}},
          {"kv_cache",
           {{"key_dtype", keel::name(engine.format.key)},
            {"value_dtype", keel::name(engine.format.value)},
            {"format", short_name(engine.format)},
            {"scales", engine.scales},
            {"bytes_per_token", engine.bytes_per_token},
            {"page_size", engine.page_size},
            {"pages", engine.pages},
            {"slots", engine.slots},
            {"pool_bytes", engine.pool_bytes}}},
          {"device", engine.device},
          {"cpu_target", engine.cpu_target},
          {"threads", engine.threads}};
}

Json model_list(const Api& api) {
  Json cards = Json::array();
  for (const std::string& name : api.models) cards.push_back(model_card(api, name));
  return {{"object", "list"}, {"data", std::move(cards)}};
}

Json tokenize(const Api& api, std::string_view body) {
  const Json json = parse_json(body);
  JsonFields fields(json);
  if (const auto model = fields.string("model")) check_model(api, *model);
  std::vector<TokenId> tokens;
  if (const auto text = fields.string("prompt")) {
    tokens = encode_text(
        api, *text, {.add_special = fields.boolean("add_special_tokens").value_or(true), .parse_special = true}, "prompt");
  } else if (fields.find("messages") != nullptr) {
    tokens = encode_text(
        api, render_chat(api, fields),
        {.add_special = fields.boolean("add_special_tokens").value_or(false), .parse_special = true}, "messages");
  } else {
    refuse("prompt", "prompt: wanted a string, or messages, found neither");
  }
  Json words;
  if (fields.boolean("return_token_strs").value_or(false)) {
    words = Json::array();
    for (const TokenId token : tokens) words.push_back(token_text(api.tokenizer, token));
  }
  log_ignored(fields);
  return {{"count", tokens.size()},
          {"max_model_len", api.engine.attestation().max_model_len},
          {"tokens", tokens},
          {"token_strs", std::move(words)}};
}

Json detokenize(const Api& api, std::string_view body) {
  const Json json = parse_json(body);
  JsonFields fields(json);
  if (const auto model = fields.string("model")) check_model(api, *model);
  const Json* array = fields.array("tokens");
  if (array == nullptr) refuse("tokens", "tokens: wanted an array of token ids, found nothing");
  std::vector<TokenId> tokens;
  for (const Json& id : *array) {
    tokens.push_back(static_cast<TokenId>(integer_value(id, "tokens", 0, api.engine.config().vocabulary - 1)));
  }
  log_ignored(fields);
  return {{"prompt", api.tokenizer.decode(tokens, true)}};
}

}  // namespace keel
