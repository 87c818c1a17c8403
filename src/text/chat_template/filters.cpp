#include "text/chat_template/filters.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <functional>
#include <map>
#include <unordered_set>

#include "text/chat_template/format.h"
#include "text/chat_template/methods.h"
#include "text/chat_template/operators.h"
#include "text/chat_template/tests.h"
#include "text/chat_template/unicode.h"

namespace keel::jinja {
namespace {

using Bound = std::vector<std::optional<Value>>;
struct Call {
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
using Filter = std::function<Value(const Call&)>;

bool given(const std::optional<Value>& v) { return v && !is_none(*v); }
bool flag(const std::optional<Value>& v) { return v && truth(*v); }

std::int64_t integer_of(const Value& v) {
  const auto number = as_integer(v);
  if (!number) raise("'{}' object cannot be interpreted as an integer", type_name(v));
  return *number;
}

// Sorting and comparing filters fold case unless told otherwise.
Value folded(const Value& v, bool case_sensitive) {
  const std::string* string = as_string(v);
  return string && !case_sensitive ? text(to_lower(*string)) : v;
}

// "a.b.0" looked up in steps; numbers are indices.
Value lookup(Interpreter& interpreter, Value v, const Value& path, const std::optional<Value>& otherwise = {}) {
  if (is_none(path)) return v;
  const std::string* names = as_string(path);
  if (!names) return interpreter.item(v, path);
  for (std::string_view rest = *names; ;) {
    const std::size_t dot = std::min(rest.find('.'), rest.size());
    const std::string_view part = rest.substr(0, dot);
    std::int64_t index = 0;
    const auto parsed = std::from_chars(part.data(), part.data() + part.size(), index);
    const bool is_index = !part.empty() && part[0] != '-' && parsed.ec == std::errc() && parsed.ptr == part.data() + part.size();
    v = interpreter.item(v, is_index ? Value(index) : text(part));
    if (given(otherwise) && is_undefined(v)) v = *otherwise;
    if (dot == rest.size()) return v;
    rest.remove_prefix(dot + 1);
  }
}

// What sort compares: one value, or one for each of "a,b".
Values sort_key(Interpreter& interpreter, const Value& v, const std::optional<Value>& attribute, bool case_sensitive) {
  Values key;
  if (!given(attribute) || !is_string(*attribute)) {
    key.push_back(folded(given(attribute) ? lookup(interpreter, v, *attribute) : v, case_sensitive));
    return key;
  }
  for (std::string_view rest = *as_string(*attribute); ;) {
    const std::size_t comma = std::min(rest.find(','), rest.size());
    key.push_back(folded(lookup(interpreter, v, text(rest.substr(0, comma))), case_sensitive));
    if (comma == rest.size()) return key;
    rest.remove_prefix(comma + 1);
  }
}

Values sorted(Budget& budget, const Values& elements, const std::vector<Values>& keys, bool reverse) {
  std::vector<std::size_t> order(elements.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  // Equal keys keep their order in both directions.
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    const Values &x = keys[reverse ? b : a], &y = keys[reverse ? a : b];
    for (std::size_t i = 0; i < x.size(); ++i) {
      budget.step(std::min(extent_of(x[i]).weight, extent_of(y[i]).weight));
      if (!equal(x[i], y[i])) return less(x[i], y[i]);
    }
    return false;
  });
  Values out;
  for (const std::size_t i : order) out.push_back(elements[i]);
  return out;
}

Value apply_sort(const Call& c) {
  const Bound b = c.bind({"reverse", "case_sensitive", "attribute"}, 0);
  const Values elements = c.elements();
  std::vector<Values> keys;
  for (const Value& v : elements) keys.push_back(sort_key(c.interpreter, v, b[2], flag(b[1])));
  return make_list(sorted(c.budget(), elements, keys, flag(b[0])));
}

Value apply_dictsort(const Call& c) {
  const Bound b = c.bind({"case_sensitive", "by", "reverse"}, 0);
  const Dict* dict = as_dict(c.input);
  if (!dict) raise("'{}' object has no attribute 'items'", type_name(c.input));
  const std::string by = b[1] ? c.interpreter.print(*b[1]) : "key";
  if (by != "key" && by != "value") raise("You can only sort by either \"key\" or \"value\"");
  c.budget().make_elements(dict->entries.size());
  Values pairs;
  std::vector<Values> keys;
  for (const auto& [key, value] : dict->entries) {
    pairs.push_back(make_tuple({key, value}));
    keys.push_back({folded(by == "key" ? key : value, flag(b[0]))});
  }
  return make_list(sorted(c.budget(), pairs, keys, flag(b[2])));
}

Filter extreme_filter(bool wants_most) {
  return [wants_most](const Call& c) -> Value {
    const Bound b = c.bind({"case_sensitive", "attribute"}, 0);
    const Values elements = c.elements();
    if (elements.empty()) return undefined("No aggregated item, sequence was empty.");
    const auto key_of = [&](const Value& v) {
      return folded(given(b[1]) ? lookup(c.interpreter, v, *b[1]) : v, flag(b[0]));
    };
    std::size_t best = 0;
    Value best_key = key_of(elements[0]);
    for (std::size_t i = 1; i < elements.size(); ++i) {
      Value key = key_of(elements[i]);
      c.budget().step(std::min(extent_of(key).weight, extent_of(best_key).weight));
      if (wants_most ? less(best_key, key) : less(key, best_key)) {
        best = i;
        best_key = std::move(key);
      }
    }
    return elements[best];
  };
}

Value apply_unique(const Call& c) {
  const Bound b = c.bind({"case_sensitive", "attribute"}, 0);
  std::unordered_set<std::string> seen;
  Values out;
  for (const Value& v : c.elements()) {
    const Value key = folded(given(b[1]) ? lookup(c.interpreter, v, *b[1]) : v, flag(b[0]));
    c.budget().walk(key);
    auto hash = hash_key(key);
    if (!hash) raise("unhashable type: '{}'", type_name(key));
    if (seen.insert(std::move(*hash)).second) out.push_back(v);
  }
  return make_sequence(SequenceKind::generator, std::move(out));
}

// select, reject, selectattr, rejectattr: keep what the test (or, without one, truth) says.
Filter selection_filter(bool keeps, bool by_attribute) {
  return [keeps, by_attribute](const Call& c) -> Value {
    Arguments rest = c.arguments;
    std::optional<Value> path;
    const auto take = [&]() -> std::optional<Value> {
      if (rest.positional.empty()) return std::nullopt;
      Value first = rest.positional.front();
      rest.positional.erase(rest.positional.begin());
      return first;
    };
    if (!truth(c.input)) return make_sequence(SequenceKind::generator, {});
    if (by_attribute && !(path = take())) raise("Missing parameter for attribute name");
    const std::optional<Value> test = take();
    if (test && !is_string(*test)) raise("filter '{}' takes the name of a test", c.name);
    Values out;
    for (const Value& v : c.elements()) {
      const Value tested = path ? lookup(c.interpreter, v, *path) : v;
      const bool holds = test ? apply_test(c.interpreter, *as_string(*test), tested, rest) : truth(tested);
      if (holds == keeps) out.push_back(v);
    }
    return make_sequence(SequenceKind::generator, std::move(out));
  };
}

Value apply_map(const Call& c) {
  if (!truth(c.input)) return make_sequence(SequenceKind::generator, {});
  Values out;
  if (c.arguments.positional.empty()) {
    const Bound b = c.bind({"attribute", "default"}, 1);
    for (const Value& v : c.elements()) out.push_back(lookup(c.interpreter, v, *b[0], b[1]));
  } else {
    Arguments rest = c.arguments;
    const Value first = rest.positional.front();
    rest.positional.erase(rest.positional.begin());
    const std::string* filter = as_string(first);
    if (!filter) raise("map takes the name of a filter");
    for (const Value& v : c.elements()) out.push_back(apply_filter(c.interpreter, *filter, v, rest));
  }
  return make_sequence(SequenceKind::generator, std::move(out));
}

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

Value apply_batch(const Call& c) {
  const Bound b = c.bind({"linecount", "fill_with"}, 1);
  const std::int64_t size = integer_of(*b[0]);
  if (size <= 0) raise("filter 'batch' takes a positive count");
  Values rows, row;
  for (const Value& v : c.elements()) {
    if (static_cast<std::int64_t>(row.size()) == size) rows.push_back(make_list(std::exchange(row, {})));
    row.push_back(v);
  }
  if (!row.empty()) {
    if (given(b[1])) {
      c.budget().make_elements(static_cast<std::uint64_t>(size));
      row.resize(static_cast<std::size_t>(size), *b[1]);
    }
    rows.push_back(make_list(std::move(row)));
  }
  return make_sequence(SequenceKind::generator, std::move(rows));
}

Value apply_reverse(const Call& c) {
  c.bind({}, 0);
  if (is_string(c.input)) return sliced(c.interpreter, c.input, None{}, None{}, std::int64_t{-1});
  Values elements = c.elements();
  std::reverse(elements.begin(), elements.end());
  // A list where Python had to copy, an iterator elsewhere.
  const Sequence* sequence = as_sequence(c.input);
  const bool copied = sequence && sequence->kind == SequenceKind::generator;
  return make_sequence(copied ? SequenceKind::list : SequenceKind::generator, std::move(elements));
}

Value apply_join(const Call& c) {
  const Bound b = c.bind({"d", "attribute"}, 0);
  const std::string separator = b[0] ? c.interpreter.print(*b[0]) : "";
  std::string out;
  bool first = true;
  for (const Value& v : c.elements()) {
    const std::string part = c.interpreter.print(given(b[1]) ? lookup(c.interpreter, v, *b[1]) : v);
    c.budget().make_bytes(separator.size() + part.size());
    if (!std::exchange(first, false)) out += separator;
    out += part;
  }
  return text(std::move(out));
}

Filter string_method_filter(std::string_view method) {
  return [method](const Call& c) -> Value { return call_method(c.interpreter, text(c.text()), method, c.arguments); };
}

const std::map<std::string_view, Filter>& filters() {
  static const std::map<std::string_view, Filter> table = [] {
    std::map<std::string_view, Filter> t;
    t["tojson"] = apply_tojson;
    t["trim"] = string_method_filter("strip");
    t["upper"] = string_method_filter("upper");
    t["lower"] = string_method_filter("lower");
    t["capitalize"] = string_method_filter("capitalize");
    t["title"] = apply_title;
    t["indent"] = apply_indent;
    t["join"] = apply_join;
    t["int"] = apply_int;
    t["float"] = apply_float;
    t["round"] = apply_round;
    t["sort"] = apply_sort;
    t["dictsort"] = apply_dictsort;
    t["unique"] = apply_unique;
    t["min"] = extreme_filter(false);
    t["max"] = extreme_filter(true);
    t["map"] = apply_map;
    t["select"] = selection_filter(true, false);
    t["reject"] = selection_filter(false, false);
    t["selectattr"] = selection_filter(true, true);
    t["rejectattr"] = selection_filter(false, true);
    t["batch"] = apply_batch;
    t["reverse"] = apply_reverse;
    t["length"] = t["count"] = [](const Call& c) -> Value {
      c.bind({}, 0);
      if (is_string(c.input)) c.budget().walk(c.input);
      return length(c.input);
    };
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
    t["list"] = [](const Call& c) -> Value {
      c.bind({}, 0);
      return make_list(c.elements());
    };
    t["items"] = [](const Call& c) -> Value {
      c.bind({}, 0);
      if (is_undefined(c.input)) return make_sequence(SequenceKind::generator, {});
      if (!as_dict(c.input)) {
        // Python finds out only when the pairs are asked for.
        raise("Can only get item pairs from a mapping.");
      }
      Value pairs = call_method(c.interpreter, c.input, "items", {});
      return make_sequence(SequenceKind::generator, as_sequence(pairs)->elements);
    };
    t["first"] = [](const Call& c) -> Value {
      c.bind({}, 0);
      const auto* pointer = std::get_if<std::shared_ptr<Sequence>>(&c.input);
      if (pointer && (*pointer)->kind == SequenceKind::generator) {  // takes one and leaves the rest
        Sequence& sequence = **pointer;
        if (sequence.consumed < sequence.elements.size()) return sequence.elements[sequence.consumed++];
        return undefined("No first item, sequence was empty.");
      }
      const Values elements = c.elements();
      return elements.empty() ? undefined("No first item, sequence was empty.") : elements.front();
    };
    t["last"] = [](const Call& c) -> Value {
      c.bind({}, 0);
      const Sequence* sequence = as_sequence(c.input);
      if (is_undefined(c.input) || (sequence && sequence->kind == SequenceKind::generator)) {
        raise("'{}' object is not reversible", type_name(c.input));
      }
      const Values elements = c.elements();
      return elements.empty() ? undefined("No last item, sequence was empty.") : elements.back();
    };
    t["abs"] = [](const Call& c) -> Value {
      c.bind({}, 0);
      if (const auto whole = as_integer(c.input)) return *whole < 0 ? negated(*whole) : Value(*whole);
      if (const auto* real = std::get_if<double>(&c.input)) return std::fabs(*real);
      raise("bad operand type for abs(): '{}'", type_name(c.input));
    };
    t["sum"] = [](const Call& c) -> Value {
      const Bound b = c.bind({"attribute", "start"}, 0);
      Value total = b[1].value_or(std::int64_t{0});
      for (const Value& v : c.elements()) {
        total = binary_operation(c.interpreter, "+", total, given(b[0]) ? lookup(c.interpreter, v, *b[0]) : v);
      }
      return total;
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
