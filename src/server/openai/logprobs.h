// Token reports in the three shapes that clients know.
#pragma once

#include <span>
#include <string>

#include "engine/request.h"
#include "text/chat_template.h"

namespace keel {

// A token's text; bytes that are no whole characters as "bytes:\xe2\x80", as OpenAI writes them.
std::string token_text(const Tokenizer& tokenizer, TokenId token);

// /v1/completions: {tokens, token_logprobs, top_logprobs, text_offset}. `offset`: characters before the first token;
// moved past the last.
Json completion_logprobs(const Tokenizer& tokenizer, std::span<const TokenReport> reports, std::int64_t& offset);

// /v1/chat/completions: {content: [{token, logprob, bytes, top_logprobs}]}.
Json chat_logprobs(const Tokenizer& tokenizer, std::span<const TokenReport> reports);

// vLLM's prompt_logprobs: [null, {"id": {logprob, rank, decoded_token}, …}, …].
Json prompt_logprobs(const Tokenizer& tokenizer, std::span<const TokenReport> reports);

bool is_utf8(std::string_view bytes);

}  // namespace keel
