// From a request's body to a plan, and from the engine's outputs to JSON. Both endpoints share all but the fields' names.
#pragma once

#include <string>
#include <vector>

#include "engine/request.h"
#include "server/json_input.h"
#include "server/openai/api.h"

namespace keel {

enum class Endpoint { completions, chat };

struct AnswerPlan {
  Endpoint endpoint = Endpoint::completions;
  std::string id, model;
  std::int64_t created = 0;
  std::vector<Request> requests;          // one a prompt; all have the same n
  std::vector<std::string> prompt_texts;  // echo: one a prompt
  int n = 1;
  bool stream = false;
  bool include_usage = false;
  bool continuous_usage = false;
  bool echo = false;
  bool prompt_only = false;    // max_tokens 0: the one token the engine makes is not shown
  bool logprobs = false;       // shown
  bool prompt_logprobs = false;  // shown in vLLM's own field
};

// What a choice gave since the last piece; or, for an answer in one part, all of it.
struct Piece {
  std::string text;
  std::vector<TokenReport> reports;
  std::vector<TokenReport> prompt_reports;
  FinishReason finish = FinishReason::none;
  std::string stop_reason;
  bool first = true;             // the choice's first
  std::int64_t text_offset = 0;  // characters before it
};

struct Usage {
  std::int64_t prompt_tokens = 0;
  std::int64_t completion_tokens = 0;
  std::int64_t cached_tokens = 0;
};

Json usage_json(const Usage& usage);

// The object around the choices.
Json envelope(const Api& api, const AnswerPlan& plan, bool chunk);

// One element of "choices". `index` counts the choices of all prompts. Moves piece.text_offset on.
Json choice_json(const Tokenizer& tokenizer, const AnswerPlan& plan, std::size_t index, Piece& piece);

// Fields that both endpoints read alike: model, n, stream, stream_options, cache_salt, the unsupported.
void read_common(const Api& api, JsonFields& fields, AnswerPlan& plan);

// max_tokens as asked (nothing = `otherwise`), checked against the context. Throws RequestError with the counts.
std::int64_t fit_context(const Api& api,
                         std::size_t prompt_tokens,
                         std::optional<std::int64_t> asked,
                         std::int64_t otherwise,
                         const std::string& prompt_field);

// The tokenizer's ids; text past its limits (the regular expressions have some) is refused for `param`.
std::vector<TokenId> encode_text(const Api& api, std::string_view text, EncodeOptions options, const std::string& param);

// Throws RequestError (404) unless `name` is served.
void check_model(const Api& api, const std::string& name);

std::string new_id(std::string_view prefix);

}  // namespace keel
