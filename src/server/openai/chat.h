#pragma once

#include "server/openai/answer.h"

namespace keel {

// The body of POST /v1/chat/completions as a plan. Throws RequestError. Any thread.
AnswerPlan read_chat(const Api& api, std::string_view body);

// What a chat's fields become before tokens: the template's text, and what of it is the model's to see.
std::string render_chat(const Api& api, JsonFields& fields);

// Checked and made plain for templates: content parts joined, tool calls' arguments parsed.
Json read_messages(const Json& messages);

}  // namespace keel
