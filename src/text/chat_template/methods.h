// Methods of strings, lists, tuples and dicts.
#pragma once

#include <string_view>

#include "text/chat_template/runtime.h"

namespace keel::jinja {

// unsafe: changes its object, which the sandbox forbids. unsupported: Python has it, keel does not.
enum class MethodStatus { absent, known, unsafe, unsupported };
MethodStatus find_method(const Value& receiver, std::string_view name);
Value call_method(Interpreter& interpreter, const Value& receiver, std::string_view name, const Arguments& arguments);

// str.replace; count < 0 is all.
std::string replaced(Budget& budget, std::string_view text, std::string_view old, std::string_view with, std::int64_t count);

}  // namespace keel::jinja
