// Text out of values: "%s" formats, str.format, JSON.
#pragma once

#include <string>
#include <string_view>

#include "text/chat_template/runtime.h"

namespace keel::jinja {

// format % operand: a tuple, a dict for %(name)s, or one value.
std::string percent_format(Interpreter& interpreter, std::string_view format, const Value& operand);
std::string brace_format(Interpreter& interpreter, std::string_view format, const Arguments& arguments);

struct JsonStyle {
  bool ascii_only = false;
  std::optional<std::string> indent;  // of one level
  std::string item_separator = ", ", key_separator = ": ";
  bool sort_keys = false;
};
std::string to_json(Interpreter& interpreter, const Value& v, const JsonStyle& style);

}  // namespace keel::jinja
