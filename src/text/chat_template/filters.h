// The filters: value | name(arguments).
#pragma once

#include <string_view>

#include "text/chat_template/runtime.h"

namespace keel::jinja {

bool is_known_filter(std::string_view name);
Value apply_filter(Interpreter& interpreter, std::string_view name, const Value& input, const Arguments& arguments);

}  // namespace keel::jinja
