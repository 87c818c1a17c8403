// Filters over the elements of a list, a dict or a generator.
#include <algorithm>
#include <charconv>
#include <unordered_set>

#include "text/chat_template/filter_call.h"
#include "text/chat_template/filters.h"
#include "text/chat_template/methods.h"
#include "text/chat_template/operators.h"
#include "text/chat_template/tests.h"
#include "text/chat_template/unicode.h"

namespace keel::jinja {
namespace {

using Call = FilterCall;

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

}  // namespace

void add_sequence_filters(Filters& t) {
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
  t["join"] = apply_join;
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
  t["sum"] = [](const Call& c) -> Value {
    const Bound b = c.bind({"attribute", "start"}, 0);
    Value total = b[1].value_or(std::int64_t{0});
    for (const Value& v : c.elements()) {
      total = binary_operation(c.interpreter, "+", total, given(b[0]) ? lookup(c.interpreter, v, *b[0]) : v);
    }
    return total;
  };
  t["length"] = t["count"] = [](const Call& c) -> Value {
    c.bind({}, 0);
    if (is_string(c.input)) c.budget().walk(c.input);
    return length(c.input);
  };
}

}  // namespace keel::jinja
