#include "text/chat_template/filters.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "text/chat_template/filter_call.h"
#include "text/chat_template/format.h"
#include "text/chat_template/methods.h"
#include "text/chat_template/operators.h"
#include "text/chat_template/unicode.h"

namespace keel::jinja {
namespace {

using Call = FilterCall;

Value apply_tojson(const Call& c) {
  const Bound b = c.bind({"ensure_ascii", "indent", "separators", "sort_keys"}, 0);
  JsonStyle style;
  style.ascii_only = flag(b[0]);
  style.sort_keys = flag(b[3]);
  if (given(b[1])) {
    if (const std::string* string = as_string(*b[1])) {
      style.indent = *string;
    } else {
      constexpr std::int64_t kMaxIndent = 100;
      const std::int64_t spaces = integer_of(*b[1]);
      if (spaces > kMaxIndent) raise("tojson: an indent of more than {} is not supported", kMaxIndent);
      style.indent = std::string(static_cast<std::size_t>(std::max<std::int64_t>(spaces, 0)), ' ');
    }
    style.item_separator = ",";
  }
  if (given(b[2])) {
    const Values parts = c.interpreter.elements(*b[2]);
    if (parts.size() != 2 || !is_string(parts[0]) || !is_string(parts[1])) raise("tojson: separators are two strings");
    style.item_separator = *as_string(parts[0]);
    style.key_separator = *as_string(parts[1]);
  }
  return text(to_json(c.interpreter, c.input, style));
}

// Words start at the beginning and after "-", white space and opening brackets.
Value apply_title(const Call& c) {
  c.bind({}, 0);
  const auto is_break = [](char32_t p) {
    return is_space(p) || p == '-' || p == '(' || p == '{' || p == '[' || p == '<';
  };
  std::string out, word;
  const auto finish_word = [&] {
    if (word.empty()) return;
    const std::size_t first = code_point_bytes(word);
    out += to_upper(std::string_view(word).substr(0, first)) + to_lower(std::string_view(word).substr(first));
    word.clear();
  };
  for (const char32_t p : code_points(c.text())) {
    if (is_break(p)) finish_word();
    append_code_point(is_break(p) ? out : word, p);
  }
  finish_word();
  return text(std::move(out));
}

Value apply_indent(const Call& c) {
  const Bound b = c.bind({"width", "first", "blank"}, 0);
  const std::string* string = as_string(c.input);
  if (!string) raise("filter 'indent' takes a string, not '{}'", type_name(c.input));
  std::string margin(4, ' ');
  if (b[0]) {
    constexpr std::int64_t kMaxMargin = 1000;
    const std::string* given_margin = as_string(*b[0]);
    const std::int64_t spaces = given_margin ? 0 : integer_of(*b[0]);
    if (spaces > kMaxMargin) raise("filter 'indent': more than {} spaces are not supported", kMaxMargin);
    margin = given_margin ? *given_margin : std::string(static_cast<std::size_t>(std::max<std::int64_t>(spaces, 0)), ' ');
  }
  const std::string whole = *string + "\n";  // so that an end of line at the end is kept
  const auto lines = split_lines(whole);
  c.budget().make_elements(lines.size());
  std::string out = flag(b[1]) ? margin : "";
  for (std::size_t i = 0; i < lines.size(); ++i) {
    if (i > 0) out += '\n';
    if (i > 0 && (flag(b[2]) || !lines[i].empty())) {
      c.budget().make_bytes(margin.size());
      out += margin;
    }
    out += lines[i];
  }
  return text(std::move(out));
}

// The whole text as a number, spaces around it and single underscores in it allowed.
template <class Number>
std::optional<Number> parsed_number(std::string_view string) {
  string = strip(string, std::nullopt, true, true);
  const bool plus = string.starts_with('+');
  if (plus) string.remove_prefix(1);
  std::string digits;
  for (std::size_t i = 0; i < string.size(); ++i) {
    const auto is_digit_at = [&](std::size_t at) { return at < string.size() && string[at] >= '0' && string[at] <= '9'; };
    if (string[i] == '_' && i > 0 && is_digit_at(i - 1) && is_digit_at(i + 1)) continue;
    digits += string[i];
  }
  if (plus && digits.starts_with('-')) return std::nullopt;
  Number number{};
  const auto result = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  if (result.ec == std::errc::result_out_of_range) raise("the number '{}' is too large", string);
  if (digits.empty() || result.ec != std::errc() || result.ptr != digits.data() + digits.size()) return std::nullopt;
  return number;
}

Value whole_part(double real, const Value& otherwise) {
  if (std::isnan(real) || std::isinf(real)) return otherwise;
  if (std::fabs(real) >= 9.2e18) raise("the number {} does not fit 64 bits", real);
  return static_cast<std::int64_t>(real);
}

Value apply_int(const Call& c) {
  const Bound b = c.bind({"default", "base"}, 0);
  if (b[1] && integer_of(*b[1]) != 10) raise("filter 'int': bases other than 10 are not supported");
  const Value otherwise = b[0].value_or(std::int64_t{0});
  if (const auto* nothing = std::get_if<Undefined>(&c.input)) raise("{}", *nothing->message);
  if (const auto whole = as_integer(c.input)) return *whole;
  if (const auto* real = std::get_if<double>(&c.input)) return whole_part(*real, otherwise);
  const std::string* string = as_string(c.input);
  if (!string) return otherwise;
  if (const auto whole = parsed_number<std::int64_t>(*string)) return *whole;
  const auto real = parsed_number<double>(*string);  // "42.7" is 42
  return real ? whole_part(*real, otherwise) : otherwise;
}

Value apply_float(const Call& c) {
  const Bound b = c.bind({"default"}, 0);
  if (const auto* nothing = std::get_if<Undefined>(&c.input)) raise("{}", *nothing->message);
  if (const auto real = as_number(c.input)) return *real;
  if (const std::string* string = as_string(c.input)) {
    if (const auto real = parsed_number<double>(*string)) return *real;
  }
  return b[0].value_or(0.0);
}

Value apply_round(const Call& c) {
  const Bound b = c.bind({"precision", "method"}, 0);
  const std::int64_t precision = b[0] ? integer_of(*b[0]) : 0;
  const std::string method = b[1] ? c.interpreter.print(*b[1]) : "common";
  if (method != "common" && method != "ceil" && method != "floor") raise("method must be common, ceil or floor");
  const auto number = as_number(c.input);
  if (!number) raise("filter 'round' takes a number, not '{}'", type_name(c.input));
  if (std::abs(precision) > 300) raise("filter 'round': a precision of {} is not supported", precision);
  const bool is_whole = as_integer(c.input).has_value();
  if (method == "common") {
    if (is_whole && precision >= 0) return *as_integer(c.input);
    if (is_whole || precision < 0) raise("filter 'round': a negative precision is not supported");
    if (!std::isfinite(*number)) return *number;
    // Decimal digits of the exact value, halves to even: what Python's round does.
    const std::string digits = fmt::format("{:.{}f}", *number, precision);
    return std::strtod(digits.c_str(), nullptr);
  }
  const double scale = std::pow(10.0, static_cast<double>(precision));
  const double scaled = *number * scale;
  return (method == "ceil" ? std::ceil(scaled) : std::floor(scaled)) / scale;
}

Filter string_method_filter(std::string_view method) {
  return [method](const Call& c) -> Value { return call_method(c.interpreter, text(c.text()), method, c.arguments); };
}

const Filters& filters() {
  static const Filters table = [] {
    Filters t;
    add_sequence_filters(t);
    t["tojson"] = apply_tojson;
    t["trim"] = string_method_filter("strip");
    t["upper"] = string_method_filter("upper");
    t["lower"] = string_method_filter("lower");
    t["capitalize"] = string_method_filter("capitalize");
    t["title"] = apply_title;
    t["indent"] = apply_indent;
    t["int"] = apply_int;
    t["float"] = apply_float;
    t["round"] = apply_round;
    t["string"] = [](const Call& c) -> Value {
      c.bind({}, 0);
      return is_string(c.input) ? c.input : text(c.text());
    };
    t["safe"] = [](const Call& c) -> Value {
      c.bind({}, 0);
      return Text{std::make_shared<const std::string>(c.text()), true};
    };
    t["default"] = t["d"] = [](const Call& c) -> Value {
      const Bound b = c.bind({"default_value", "boolean"}, 0);
      const bool replaces = is_undefined(c.input) || (flag(b[1]) && !truth(c.input));
      return replaces ? b[0].value_or(text("")) : c.input;
    };
    t["replace"] = [](const Call& c) -> Value {
      const Bound b = c.bind({"old", "new", "count"}, 2);
      const std::int64_t count = given(b[2]) ? integer_of(*b[2]) : -1;
      return text(replaced(c.budget(), c.text(), c.interpreter.print(*b[0]), c.interpreter.print(*b[1]), count));
    };
    t["abs"] = [](const Call& c) -> Value {
      c.bind({}, 0);
      if (const auto whole = as_integer(c.input)) return *whole < 0 ? negated(*whole) : Value(*whole);
      if (const auto* real = std::get_if<double>(&c.input)) return std::fabs(*real);
      raise("bad operand type for abs(): '{}'", type_name(c.input));
    };
    t["attr"] = [](const Call& c) -> Value {
      const Bound b = c.bind({"name"}, 1);
      const std::string* name = as_string(*b[0]);
      if (!name) raise("filter 'attr' takes a name");
      // Unlike a dot it never looks into a dict.
      if (as_dict(c.input) && find_method(c.input, *name) == MethodStatus::absent) {
        return undefined(fmt::format("'dict object' has no attribute {}", repr(std::string_view(*name))));
      }
      return c.interpreter.attribute(c.input, *name);
    };
    t["center"] = [](const Call& c) -> Value {
      const Bound b = c.bind({"width"}, 0);
      Arguments width;
      width.positional.push_back(b[0].value_or(std::int64_t{80}));
      return call_method(c.interpreter, text(c.text()), "center", width);
    };
    t["format"] = [](const Call& c) -> Value {
      const auto& [positional, named] = c.arguments;
      if (!positional.empty() && !named.empty()) raise("can't handle positional and keyword arguments at the same time");
      if (named.empty()) return text(percent_format(c.interpreter, c.text(), make_tuple(positional)));
      Dict dict;
      for (const auto& [name, value] : named) dict.set(text(name), value);
      return text(percent_format(c.interpreter, c.text(), make_dict(std::move(dict))));
    };
    t["wordcount"] = [](const Call& c) -> Value {
      c.bind({}, 0);
      std::int64_t words = 0;
      bool inside = false;
      for (const char32_t p : code_points(c.text())) {
        const bool is_word = p == '_' || is_alphabetic(p) || is_numeric(p);
        words += is_word && !inside;
        inside = is_word;
      }
      return words;
    };
    return t;
  }();
  return table;
}

}  // namespace

bool is_known_filter(std::string_view name) { return filters().contains(name); }

Value apply_filter(Interpreter& interpreter, std::string_view name, const Value& input, const Arguments& arguments) {
  const auto found = filters().find(name);
  // The parser let only known names through; those in strings (map) come here unseen.
  if (found == filters().end()) raise("filter '{}' is not supported", name);
  interpreter.budget().step();
  return found->second({interpreter, input, found->first, arguments});
}

}  // namespace keel::jinja
