// The sampling fields of a request: OpenAI's and vLLM's names.
#pragma once

#include "engine/request.h"
#include "model/config.h"
#include "server/json_input.h"

namespace keel {

// Everything but max_tokens, logprobs and prompt_logprobs, whose meaning differs between endpoints. Absent fields take
// `defaults` (see model_defaults). Throws RequestError for a wrong type.
SamplingParams read_sampling(JsonFields& fields, const SamplingParams& defaults);

// OpenAI's defaults, or the model's own where generation_config.json names them.
SamplingParams model_defaults(const ModelConfig& config);

// Throws RequestError for values out of range, its param the field at fault.
void check_sampling(const SamplingParams& sampling, std::int64_t vocabulary);

// Fields that would change the answer and that keel does not implement: each is refused by name unless it has the
// value that changes nothing.
void refuse_unsupported(JsonFields& fields);

// Names that no one asked for, each logged once in the process' life.
void log_ignored(const JsonFields& fields);

}  // namespace keel
