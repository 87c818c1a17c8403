// The small endpoints: /v1/models, /tokenize, /detokenize.
#pragma once

#include "server/openai/api.h"
#include "text/chat_template.h"

namespace keel {

Json model_list(const Api& api);
Json model_card(const Api& api, const std::string& name);

// Bodies of POST /tokenize and /detokenize to their answers. Throw RequestError. Any thread.
Json tokenize(const Api& api, std::string_view body);
Json detokenize(const Api& api, std::string_view body);

}  // namespace keel
