#include "server/openai/completions.h"

#include <algorithm>

#include "server/openai/sampling_params.h"

namespace keel {
namespace {

constexpr std::size_t kMaxPrompts = 1024;  // in one request
constexpr std::int64_t kDefaultMaxTokens = 16;  // OpenAI's

struct Prompt {
  std::vector<TokenId> tokens;
  std::optional<std::string> text;  // as given; none for token ids
};

Prompt from_ids(const Api& api, const Json& ids) {
  Prompt prompt;
  for (const Json& id : ids) {
    prompt.tokens.push_back(
        static_cast<TokenId>(integer_value(id, "prompt", 0, api.engine.config().vocabulary - 1)));
  }
  return prompt;
}

Prompt from_text(const Api& api, const std::string& text, bool add_special) {
  return {encode_text(api, text, {.add_special = add_special, .parse_special = true}, "prompt"), text};
}

std::vector<Prompt> read_prompts(const Api& api, JsonFields& fields) {
  constexpr const char* kWanted = "a string, strings, token ids or arrays of token ids";
  const bool add_special = fields.boolean("add_special_tokens").value_or(true);
  const Json* value = fields.find("prompt");
  if (value == nullptr) refuse("prompt", fmt::format("prompt: wanted {}, found nothing", kWanted));
  std::vector<Prompt> prompts;
  if (value->is_string()) {
    prompts.push_back(from_text(api, value->get_ref<const std::string&>(), add_special));
  } else if (!value->is_array() || value->empty()) {
    refuse("prompt", fmt::format("prompt: wanted {}, found {}", kWanted, describe(*value)));
  } else if (value->front().is_number()) {
    prompts.push_back(from_ids(api, *value));
  } else {
    if (value->size() > kMaxPrompts) {
      refuse("prompt", fmt::format("prompt: wanted at most {} prompts, found {}", kMaxPrompts, value->size()));
    }
    for (const Json& one : *value) {
      if (one.type() != value->front().type() || !(one.is_string() || one.is_array())) {
        refuse("prompt", fmt::format("prompt: wanted {}, found {}", kWanted, describe(one)));
      }
      prompts.push_back(one.is_string() ? from_text(api, one.get_ref<const std::string&>(), add_special)
                                        : from_ids(api, one));
    }
  }
  if (std::ranges::any_of(prompts, [](const Prompt& p) { return p.tokens.empty(); })) {
    refuse("prompt", "prompt: wanted at least one token, found none");
  }
  return prompts;
}

}  // namespace

AnswerPlan read_completion(const Api& api, std::string_view body) {
  const Json json = parse_json(body);
  JsonFields fields(json);
  AnswerPlan plan;
  plan.endpoint = Endpoint::completions;
  read_common(api, fields, plan);
  plan.echo = fields.boolean("echo").value_or(false);

  SamplingParams sampling = read_sampling(
      fields, api.options.model_sampling_defaults ? model_defaults(api.engine.config()) : SamplingParams());
  const auto logprobs = fields.integer("logprobs", 0, kMaxLogprobs);
  const auto prompt_logprobs = fields.integer("prompt_logprobs", 0, kMaxLogprobs);
  plan.logprobs = logprobs.has_value();
  plan.prompt_logprobs = prompt_logprobs.has_value();
  if (plan.prompt_logprobs && plan.stream) {
    refuse("prompt_logprobs", "prompt_logprobs: not supported with stream = true; echo with logprobs is");
  }
  if (logprobs) sampling.logprobs = static_cast<int>(*logprobs);
  if (prompt_logprobs) sampling.prompt_logprobs = static_cast<int>(*prompt_logprobs);
  if (plan.echo && logprobs) {
    sampling.prompt_logprobs = std::max(sampling.prompt_logprobs.value_or(0), static_cast<int>(*logprobs));
  }

  const auto max_tokens = fields.integer("max_tokens", plan.echo ? 0 : 1);
  plan.prompt_only = max_tokens == 0;
  const auto keep_last = fields.integer("truncate_prompt_tokens", 1);
  const std::string salt = fields.string("cache_salt").value_or("");
  for (Prompt& prompt : read_prompts(api, fields)) {
    if (keep_last && static_cast<std::int64_t>(prompt.tokens.size()) > *keep_last) {
      prompt.tokens.erase(prompt.tokens.begin(), prompt.tokens.end() - *keep_last);
      prompt.text.reset();
    }
    // No request runs without making a token; max_tokens 0 makes one and drops it.
    sampling.max_tokens = std::max<std::int64_t>(
        1, fit_context(api, prompt.tokens.size(), max_tokens, kDefaultMaxTokens, "prompt"));
    check_sampling(sampling, api.engine.config().vocabulary);
    if (plan.echo) {
      plan.prompt_texts.push_back(prompt.text ? *prompt.text : api.tokenizer.decode(prompt.tokens, true));
    }
    plan.requests.push_back(
        {.prompt = std::move(prompt.tokens), .sampling = sampling, .n = plan.n, .cache_salt = salt});
  }
  log_ignored(fields);
  return plan;
}

}  // namespace keel
