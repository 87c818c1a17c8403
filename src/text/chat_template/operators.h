// Arithmetic with Python's meaning, on integers of 64 bits: what does not fit is refused.
#pragma once

#include <string_view>

#include "text/chat_template/runtime.h"

namespace keel::jinja {

Value binary_operation(Interpreter& interpreter, std::string_view symbol, const Value& a, const Value& b);
Value negated(const Value& v);
Value plus(const Value& v);
// v[start:stop:step]; none stands for a part left out.
Value sliced(Interpreter& interpreter, const Value& v, const Value& start, const Value& stop, const Value& step);

}  // namespace keel::jinja
