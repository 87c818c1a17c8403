// Refusals as OpenAI's clients expect them: a status and {"error": {message, type, param, code}}.
#pragma once

#include <exception>
#include <string>
#include <string_view>

#include "text/chat_template.h"

namespace keel {

struct ApiError {
  unsigned status = 400;
  std::string message;
  std::string param;  // the field at fault; empty = null
  std::string code;   // a word programs test for, as "model_not_found"; empty = null
};

Json error_json(const ApiError& error);
std::string_view error_type(unsigned status);  // "invalid_request_error", …

// JSON text for the wire: bytes that are not UTF-8 become U+FFFD.
std::string to_text(const Json& json);

// Thrown while a request is being read and caught in one place, the session: some forty fields may each be at fault.
class RequestError : public std::exception {
 public:
  explicit RequestError(ApiError error) : error_(std::move(error)) {}
  const ApiError& error() const { return error_; }
  const char* what() const noexcept override { return error_.message.c_str(); }

 private:
  ApiError error_;
};

[[noreturn]] void refuse(std::string param, std::string message, std::string code = "");

}  // namespace keel
