#pragma once

#include "server/openai/answer.h"

namespace keel {

// The body of POST /v1/completions as a plan. Throws RequestError. Any thread.
AnswerPlan read_completion(const Api& api, std::string_view body);

}  // namespace keel
