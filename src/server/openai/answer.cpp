#include "server/openai/answer.h"

#include <algorithm>
#include <ctime>
#include <random>

#include "base/error.h"
#include "server/openai/logprobs.h"
#include "server/openai/sampling_params.h"
#include "server/version.h"

namespace keel {
namespace {

Json finish_reason(FinishReason reason) {
  return reason == FinishReason::none ? Json() : Json(std::string(name(reason)));
}

// The stop string, or the stop token's number; null for the end-of-text token, as vLLM has it.
Json stop_reason(const Piece& piece, const SamplingParams& sampling) {
  if (piece.stop_reason.empty()) return nullptr;
  for (const TokenId id : sampling.stop_token_ids) {
    if (piece.stop_reason == std::to_string(id) && std::ranges::count(sampling.stop, piece.stop_reason) == 0) return id;
  }
  return piece.stop_reason;
}

}  // namespace

Json usage_json(const Usage& usage) {
  return {{"prompt_tokens", usage.prompt_tokens},
          {"total_tokens", usage.prompt_tokens + usage.completion_tokens},
          {"completion_tokens", usage.completion_tokens},
          {"prompt_tokens_details", {{"cached_tokens", usage.cached_tokens}}}};
}

Json envelope(const Api& api, const AnswerPlan& plan, bool chunk) {
  const char* object = plan.endpoint == Endpoint::completions ? "text_completion"
                       : chunk                                ? "chat.completion.chunk"
                                                              : "chat.completion";
  return {{"id", plan.id},
          {"object", object},
          {"created", plan.created},
          {"model", plan.model},
          {"system_fingerprint", fmt::format("keel-{}-{}", kVersion, short_name(api.engine.attestation().format))}};
}

Json choice_json(const Tokenizer& tokenizer, const AnswerPlan& plan, std::size_t index, Piece& piece) {
  const std::size_t prompt = index / static_cast<std::size_t>(plan.n);
  Json choice = {{"index", index}};
  if (plan.endpoint == Endpoint::completions) {
    const bool echo = plan.echo && piece.first;
    choice["text"] = echo ? plan.prompt_texts[prompt] + piece.text : piece.text;
    Json logprobs;
    if (plan.logprobs) {
      std::vector<TokenReport> reports;
      if (echo) reports = piece.prompt_reports;
      reports.insert(reports.end(), piece.reports.begin(), piece.reports.end());
      logprobs = completion_logprobs(tokenizer, reports, piece.text_offset);
    }
    choice["logprobs"] = std::move(logprobs);
    if (plan.prompt_logprobs && piece.first) {
      choice["prompt_logprobs"] = prompt_logprobs(tokenizer, piece.prompt_reports);
    }
  } else {
    Json message = Json::object();
    if (piece.first) message["role"] = "assistant";
    message["content"] = piece.text;
    choice[plan.stream ? "delta" : "message"] = std::move(message);
    choice["logprobs"] = plan.logprobs ? chat_logprobs(tokenizer, piece.reports) : Json();
  }
  choice["finish_reason"] = finish_reason(piece.finish);
  choice["stop_reason"] = stop_reason(piece, plan.requests[prompt].sampling);
  return choice;
}

std::vector<TokenId> encode_text(const Api& api, std::string_view text, EncodeOptions options, const std::string& param) {
  try {
    return api.tokenizer.encode(text, options);
  } catch (const Error& error) {
    refuse(param, fmt::format("{}: wanted text that the tokenizer can split: {}", param, error.what()));
  }
}

void check_model(const Api& api, const std::string& name) {
  if (std::ranges::find(api.models, name) != api.models.end()) return;
  std::string served;
  for (const std::string& model : api.models) served += (served.empty() ? "" : ", ") + model;
  throw RequestError({404, fmt::format("model: wanted {}, found {}", served, describe(Json(name))), "model",
                      "model_not_found"});
}

std::string new_id(std::string_view prefix) {
  thread_local std::mt19937_64 random(std::random_device{}());
  return fmt::format("{}-{:016x}{:016x}", prefix, random(), random());
}

void read_common(const Api& api, JsonFields& fields, AnswerPlan& plan) {
  plan.model = fields.string("model").value_or(api.models.front());
  check_model(api, plan.model);
  plan.id = new_id(plan.endpoint == Endpoint::completions ? "cmpl" : "chatcmpl");
  plan.created = std::time(nullptr);
  plan.n = static_cast<int>(fields.integer("n", 1, kMaxChoices).value_or(1));
  if (const auto best_of = fields.integer("best_of"); best_of && *best_of != plan.n) {
    refuse("best_of", fmt::format("best_of: not supported unless equal to n = {}, found {}", plan.n, *best_of));
  }
  plan.stream = fields.boolean("stream").value_or(false);
  if (const Json* stream_options = fields.object("stream_options")) {
    if (!plan.stream) refuse("stream_options", "stream_options: wanted only with stream = true, found stream = false");
    JsonFields inner(*stream_options, "stream_options");
    plan.include_usage = inner.boolean("include_usage").value_or(false);
    plan.continuous_usage = plan.include_usage && inner.boolean("continuous_usage_stats").value_or(false);
  }
  refuse_unsupported(fields);
}

std::int64_t fit_context(const Api& api,
                         std::size_t prompt_tokens,
                         std::optional<std::int64_t> asked,
                         std::int64_t otherwise,
                         const std::string& prompt_field) {
  const std::int64_t most = api.engine.attestation().max_model_len;
  const auto used = static_cast<std::int64_t>(prompt_tokens);
  if (used >= most) {
    refuse(prompt_field,
           fmt::format("{}: wanted fewer tokens than the context of {}, found {}", prompt_field, most, used),
           "context_length_exceeded");
  }
  if (!asked) return std::min(otherwise, most - used);
  if (*asked > most - used) {
    refuse("max_tokens",
           fmt::format("max_tokens: wanted at most {} (the context is {} tokens and the prompt has {}), found {}",
                       most - used, most, used, *asked),
           "context_length_exceeded");
  }
  return *asked;
}

}  // namespace keel
