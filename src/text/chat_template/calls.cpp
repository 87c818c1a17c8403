// What happens at f(x): macros, the functions every template may call, methods.
#include <algorithm>
#include <ctime>

#include "text/chat_template/methods.h"
#include "text/chat_template/runtime.h"

namespace keel::jinja {
namespace {

constexpr std::int64_t kMaxRange = 100'000;  // Jinja's sandbox has the same

}  // namespace

Value Interpreter::call(const Value& callee, const Arguments& arguments) {
  if (const auto* nothing = std::get_if<Undefined>(&callee)) raise("{}", *nothing->message);
  Callable* callable = object<Callable>(callee);
  if (!callable) raise("'{}' object is not callable", type_name(callee));
  switch (callable->kind) {
    case CallableKind::function:
      return call_function(callable->name, arguments);
    case CallableKind::method:
      if (Callable* cycler = object<Callable>(callable->receiver)) {  // next() is the only method it has
        const Value result = cycler->items[cycler->position];
        cycler->position = (cycler->position + 1) % cycler->items.size();
        return result;
      }
      return call_method(*this, callable->receiver, callable->name, arguments);
    case CallableKind::macro:
      return call_macro(*callable, arguments);
    case CallableKind::joiner:
      return callable->position++ == 0 ? text("") : callable->items[0];
    case CallableKind::cycler:
      break;
  }
  raise("a cycler is not callable");
}

Value Interpreter::call_macro(const Callable& macro, const Arguments& arguments) {
  const MacroSyntax& syntax = *macro.macro;
  const auto scope = std::make_shared<Scope>(macro.scope);
  Values extra;
  Dict extra_named;
  const std::size_t count = syntax.parameters.size();
  for (std::size_t i = 0; i < arguments.positional.size(); ++i) {
    if (i < count) {
      scope->set(syntax.parameters[i], arguments.positional[i]);
    } else {
      extra.push_back(arguments.positional[i]);
    }
  }
  if (!extra.empty() && !syntax.uses_varargs) {
    raise("macro '{}' takes not more than {} argument(s)", syntax.name, count);
  }
  bool has_caller = false;
  for (const auto& [name, value] : arguments.named) {
    const auto found = std::find(syntax.parameters.begin(), syntax.parameters.end(), name);
    const auto place = static_cast<std::size_t>(found - syntax.parameters.begin());
    if (place < count && place >= arguments.positional.size()) {
      scope->set(name, value);
    } else if (name == "caller" && syntax.uses_caller && place == count) {
      scope->set(name, value);
      has_caller = true;
    } else if (syntax.uses_kwargs) {
      extra_named.set(text(name), value);
    } else {
      raise("macro '{}' takes no keyword argument '{}'", syntax.name, name);
    }
  }
  if (syntax.uses_caller && !has_caller &&
      std::find(syntax.parameters.begin(), syntax.parameters.end(), "caller") == syntax.parameters.end()) {
    scope->set("caller", undefined("No caller defined"));
  }
  if (syntax.uses_varargs) scope->set("varargs", make_tuple(std::move(extra)));
  if (syntax.uses_kwargs) scope->set("kwargs", make_dict(std::move(extra_named)));

  const auto is_set = [&](const std::string& name) {
    return std::any_of(scope->variables.begin(), scope->variables.end(), [&](const auto& entry) { return entry.first == name; });
  };
  for (std::size_t i = 0; i < count; ++i) {
    const std::string& name = syntax.parameters[i];
    if (is_set(name)) continue;
    const std::size_t first_default = count - syntax.defaults.size();
    if (i >= first_default) {
      scope->set(name, evaluate(*syntax.defaults[i - first_default], scope));
    } else {
      scope->set(name, undefined(fmt::format("parameter '{}' was not provided", name)));
    }
  }
  std::string out;
  const int outer_line = line_;
  run_block(*syntax.body, scope, out);
  line_ = outer_line;
  return text(std::move(out));
}

Value Interpreter::call_function(const std::string& name, const Arguments& arguments) {
  if (name == "raise_exception") {
    const auto bound = arguments.bind("raise_exception()", {"message"}, 1);
    throw RenderError{print(*bound[0]), line_, true};
  }
  if (name == "strftime_now") {
    const auto bound = arguments.bind("strftime_now()", {"format"}, 1);
    const std::string* format = as_string(*bound[0]);
    if (!format) raise("strftime_now() takes a format string");
    std::tm local{};
    localtime_r(&now_, &local);
    // A time without a zone, whose names are empty; and no fractions of seconds.
    std::string plain;
    for (std::size_t i = 0; i < format->size(); ++i) {
      if ((*format)[i] != '%' || i + 1 == format->size()) {
        plain += (*format)[i];
        continue;
      }
      const char letter = (*format)[++i];
      if (letter == 'z' || letter == 'Z') continue;
      if (letter == 'f' || letter == ':') raise("strftime_now(): '%{}' is not supported", letter);
      plain += '%';
      plain += letter;
    }
    if (plain.size() > 1000) raise("strftime_now(): the format is too long");
    std::vector<char> buffer(64 * (plain.size() + 1));
    return text(std::string_view(buffer.data(), std::strftime(buffer.data(), buffer.size(), plain.c_str(), &local)));
  }
  if (name == "namespace" || name == "dict") {
    Dict dict;
    if (arguments.positional.size() > 1) raise("{}() takes at most 1 positional argument", name);
    budget_.make_elements(arguments.named.size() + 1);
    if (!arguments.positional.empty()) {
      if (const Dict* from = as_dict(arguments.positional[0])) {
        budget_.make_elements(from->entries.size());
        dict = *from;
      } else {
        for (const Value& pair : elements(arguments.positional[0])) {
          const Values parts = elements(pair);
          if (parts.size() != 2) raise("{}() takes pairs of key and value", name);
          dict.set(parts[0], parts[1]);
        }
      }
    }
    for (const auto& [key, value] : arguments.named) dict.set(text(key), value);
    if (name == "dict") return make_dict(std::move(dict));
    for (const auto& entry : dict.entries) {
      const std::string* key = as_string(entry.first);
      if (key && key->starts_with('_')) raise("namespace attribute '{}' starts with an underscore", *key);
    }
    auto space = std::make_shared<Space>();
    space->attributes = std::move(dict);
    spaces_.push_back(space);
    return space;
  }
  if (name == "range") {
    std::int64_t bounds[3] = {0, 0, 1};
    const Values& given = arguments.positional;
    if (given.empty() || given.size() > 3 || !arguments.named.empty()) raise("range() takes 1 to 3 arguments");
    for (std::size_t i = 0; i < given.size(); ++i) {
      bounds[given.size() == 1 ? 1 : i] = integer_of(given[i]);
    }
    const auto [start, stop, step] = bounds;
    if (step == 0) raise("range() arg 3 must not be zero");
    Values numbers;
    // In 128 bits, where neither difference nor next number overflows.
    for (__int128 n = start; step > 0 ? n < stop : n > stop; n += step) {
      if (numbers.size() >= static_cast<std::size_t>(kMaxRange)) raise("range too big: more than {} numbers", kMaxRange);
      numbers.push_back(static_cast<std::int64_t>(n));
    }
    budget_.make_elements(numbers.size());
    Value range = make_sequence(SequenceKind::range, std::move(numbers));
    object<Sequence>(range)->range_text =
        step == 1 ? fmt::format("range({}, {})", start, stop) : fmt::format("range({}, {}, {})", start, stop, step);
    return range;
  }
  auto callable = std::make_shared<Callable>();
  callable->kind = name == "cycler" ? CallableKind::cycler : CallableKind::joiner;
  if (name == "cycler") {
    if (arguments.positional.empty() || !arguments.named.empty()) raise("at least one item has to be provided");
    callable->items = arguments.positional;
  } else {
    const auto bound = arguments.bind("joiner()", {"sep"}, 0);
    callable->items = {bound[0].value_or(text(", "))};
  }
  for (const Value& element : callable->items) callable->extent.contain(extent_of(element));
  return callable;
}

}  // namespace keel::jinja
