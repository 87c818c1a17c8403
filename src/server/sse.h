// Server-sent events, as OpenAI frames them.
#pragma once

#include <string>
#include <string_view>

namespace keel {

inline constexpr std::string_view kEventsDone = "data: [DONE]\n\n";
inline constexpr std::string_view kEventsPing = ": ping\n\n";  // a comment: clients skip it

// `data` is one line, as JSON text always is.
inline void append_event(std::string& events, std::string_view data) {
  events.append("data: ").append(data).append("\n\n");
}

// One HTTP/1.1 chunk. Never called with nothing: an empty chunk ends the body.
std::string http_chunk(std::string_view data);

}  // namespace keel
