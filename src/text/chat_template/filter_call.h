// What a filter works with, and the table they are in.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/chat_template/runtime.h"

namespace keel::jinja {

using Bound = std::vector<std::optional<Value>>;
struct FilterCall {
  Interpreter& interpreter;
  const Value& input;
  std::string_view name;
  const Arguments& arguments;

  Bound bind(std::initializer_list<std::string_view> parameters, std::size_t required) const {
    return arguments.bind(fmt::format("filter '{}'", name), parameters, required);
  }
  Budget& budget() const { return interpreter.budget(); }
  std::string text() const { return interpreter.print(input); }
  Values elements() const { return interpreter.elements(input); }
};
using Filter = std::function<Value(const FilterCall&)>;
using Filters = std::map<std::string_view, Filter>;

inline bool flag(const std::optional<Value>& v) { return v && truth(*v); }  // an argument

void add_sequence_filters(Filters& filters);

}  // namespace keel::jinja
