#pragma once

#include "server/http_message.h"
#include "server/openai/answer.h"

namespace keel {

// Runs the plan and answers: one JSON object, or a stream of events.
asio::awaitable<void> generate(Api& api, AnswerPlan plan, Reply& reply);

}  // namespace keel
