#include "server/openai/errors.h"

namespace keel {

std::string_view error_type(unsigned status) {
  switch (status) {
    case 401: return "authentication_error";
    case 404: return "not_found_error";
    case 429: return "rate_limit_error";
    case 500: return "server_error";
    case 503: return "service_unavailable_error";
  }
  return "invalid_request_error";
}

Json error_json(const ApiError& error) {
  const auto or_null = [](const std::string& text) { return text.empty() ? Json() : Json(text); };
  return {{"error",
           {{"message", error.message},
            {"type", error_type(error.status)},
            {"param", or_null(error.param)},
            {"code", or_null(error.code)}}}};
}

std::string to_text(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

void refuse(std::string param, std::string message, std::string code) {
  throw RequestError({400, std::move(message), std::move(param), std::move(code)});
}

}  // namespace keel
