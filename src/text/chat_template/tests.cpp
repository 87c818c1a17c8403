#include "text/chat_template/tests.h"

#include <algorithm>
#include <functional>
#include <map>

#include "text/chat_template/operators.h"
#include "text/chat_template/unicode.h"

namespace keel::jinja {
namespace {

using Test = std::function<bool(Interpreter&, const Value&, const Arguments&)>;

// A test without arguments.
Test plain(bool (*holds)(const Value&)) {
  return [holds](Interpreter&, const Value& v, const Arguments& arguments) {
    arguments.bind("the test", {}, 0);
    return holds(v);
  };
}

// A test with one.
Test with_operand(bool (*holds)(Interpreter&, const Value&, const Value&)) {
  return [holds](Interpreter& interpreter, const Value& v, const Arguments& arguments) {
    const auto bound = arguments.bind("the test", {"other"}, 1);
    interpreter.budget().step(std::min(extent_of(v).weight, extent_of(*bound[0]).weight));
    return holds(interpreter, v, *bound[0]);
  };
}

bool is_boolean(const Value& v) { return std::holds_alternative<bool>(v); }

// Any letters, and all of them in the one case.
bool has_case(const Value& v, bool (*wanted)(char32_t)) {
  bool any = false;
  for (const char32_t c : code_points(to_string(v))) {
    if (is_cased(c) && !wanted(c)) return false;
    any |= is_cased(c);
  }
  return any;
}

bool divides(Interpreter& interpreter, const Value& v, std::int64_t divisor, std::int64_t remainder) {
  return equal(binary_operation(interpreter, "%", v, divisor), remainder);
}

bool same_object(const Value& a, const Value& b) {
  if (a.index() != b.index()) return false;
  if (is_none(a)) return true;
  if (const auto* flag = std::get_if<bool>(&a)) return *flag == std::get<bool>(b);
  return std::visit(
      [&]<class T>(const T& x) {
        if constexpr (requires { x.get(); }) return x == std::get<T>(b);
        // Whether two equal numbers or texts are one object is Python's secret.
        raise("'is sameas' of '{}' is not supported", type_name(a));
        return false;
      },
      a);
}

const std::map<std::string, Test, std::less<>>& tests() {
  static const std::map<std::string, Test, std::less<>> table = [] {
    std::map<std::string, Test, std::less<>> t;
    t["defined"] = plain([](const Value& v) { return !is_undefined(v); });
    t["undefined"] = plain([](const Value& v) { return is_undefined(v); });
    t["none"] = plain([](const Value& v) { return is_none(v); });
    t["boolean"] = plain(is_boolean);
    t["true"] = plain([](const Value& v) { return is_boolean(v) && std::get<bool>(v); });
    t["false"] = plain([](const Value& v) { return is_boolean(v) && !std::get<bool>(v); });
    t["integer"] = plain([](const Value& v) { return std::holds_alternative<std::int64_t>(v); });
    t["float"] = plain([](const Value& v) { return std::holds_alternative<double>(v); });
    t["number"] = plain([](const Value& v) { return as_number(v).has_value(); });
    t["string"] = plain(is_string);
    t["mapping"] = plain([](const Value& v) { return as_dict(v) != nullptr; });
    t["iterable"] = plain(is_iterable);
    t["sequence"] = plain([](const Value& v) {
      // What has both a length and items: not generators, not the views of a dict.
      const Sequence* sequence = as_sequence(v);
      const bool indexable = sequence && (sequence->kind == SequenceKind::list || sequence->kind == SequenceKind::tuple ||
                                          sequence->kind == SequenceKind::range);
      return indexable || is_string(v) || as_dict(v) || is_undefined(v);
    });
    t["callable"] = plain([](const Value& v) { return std::holds_alternative<std::shared_ptr<Callable>>(v); });
    t["lower"] = plain([](const Value& v) { return has_case(v, is_lower); });
    t["upper"] = plain([](const Value& v) { return has_case(v, is_upper); });
    t["odd"] = [](Interpreter& i, const Value& v, const Arguments&) { return divides(i, v, 2, 1); };
    t["even"] = [](Interpreter& i, const Value& v, const Arguments&) { return divides(i, v, 2, 0); };
    t["divisibleby"] = with_operand([](Interpreter& i, const Value& v, const Value& divisor) {
      return equal(binary_operation(i, "%", v, divisor), std::int64_t{0});
    });
    t["in"] = with_operand([](Interpreter& i, const Value& v, const Value& container) { return contains(i, container, v); });
    t["sameas"] = with_operand([](Interpreter&, const Value& v, const Value& other) { return same_object(v, other); });
    t["eq"] = t["equalto"] = t["=="] = with_operand([](Interpreter&, const Value& a, const Value& b) { return equal(a, b); });
    t["ne"] = t["!="] = with_operand([](Interpreter&, const Value& a, const Value& b) { return !equal(a, b); });
    t["lt"] = t["lessthan"] = t["<"] = with_operand([](Interpreter&, const Value& a, const Value& b) { return less(a, b); });
    t["gt"] = t["greaterthan"] = t[">"] = with_operand([](Interpreter&, const Value& a, const Value& b) { return less(b, a); });
    t["le"] = t["<="] = with_operand([](Interpreter&, const Value& a, const Value& b) { return less(a, b) || equal(a, b); });
    t["ge"] = t[">="] = with_operand([](Interpreter&, const Value& a, const Value& b) { return less(b, a) || equal(a, b); });
    return t;
  }();
  return table;
}

}  // namespace

bool is_known_test(std::string_view name) { return tests().find(name) != tests().end(); }

bool apply_test(Interpreter& interpreter, std::string_view name, const Value& v, const Arguments& arguments) {
  const auto found = tests().find(name);
  // The parser let only known names through; those in strings (select, reject) come here unseen.
  if (found == tests().end()) raise("test '{}' is not supported", name);
  return found->second(interpreter, v, arguments);
}

bool contains(Interpreter& interpreter, const Value& container, const Value& element) {
  if (const std::string* string = as_string(container)) {
    if (const auto* nothing = std::get_if<Undefined>(&element)) raise("{}", *nothing->message);
    const std::string* part = as_string(element);
    if (!part) raise("'in <string>' requires string as left operand, not {}", type_name(element));
    interpreter.budget().search(string->size(), part->size());
    return string->find(*part) != std::string::npos;
  }
  if (const Dict* dict = as_dict(container)) {
    interpreter.budget().walk(element);
    if (!hash_key(element)) raise("unhashable type: '{}'", type_name(element));
    return dict->find(element) != nullptr;
  }
  if (!is_iterable(container) || std::holds_alternative<std::shared_ptr<Loop>>(container)) {
    raise("argument of type '{}' is not iterable", type_name(container));
  }
  if (const Sequence* sequence = as_sequence(container); sequence && sequence->kind != SequenceKind::generator) {
    interpreter.budget().walk(container);
    return std::any_of(sequence->elements.begin(), sequence->elements.end(), [&](const Value& v) { return equal(v, element); });
  }
  interpreter.budget().walk(container);
  const Values elements = interpreter.elements(container);
  return std::any_of(elements.begin(), elements.end(), [&](const Value& v) { return equal(v, element); });
}

}  // namespace keel::jinja
