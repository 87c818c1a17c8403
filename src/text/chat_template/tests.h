// The tests: value is name(arguments).
#pragma once

#include <string_view>

#include "text/chat_template/runtime.h"

namespace keel::jinja {

bool is_known_test(std::string_view name);
bool apply_test(Interpreter& interpreter, std::string_view name, const Value& v, const Arguments& arguments);

// `element in container`, as the operator.
bool contains(Interpreter& interpreter, const Value& container, const Value& element);

}  // namespace keel::jinja
