#include "text/chat_template/operators.h"

#include <cmath>

#include "text/chat_template/format.h"
#include "text/chat_template/unicode.h"

namespace keel::jinja {
namespace {

[[noreturn]] void overflow() { raise("an integer does not fit 64 bits"); }

void refuse_undefined(const Value& v) {
  if (const auto* nothing = std::get_if<Undefined>(&v)) raise("{}", *nothing->message);
}

// Text from |safe escapes what is joined to it; keel does not escape.
void refuse_markup(const Value& v) {
  const auto* string = std::get_if<Text>(&v);
  if (string && string->markup) raise("operators on text from |safe are not supported");
}

std::int64_t floor_divide(std::int64_t a, std::int64_t b) {
  if (b == 0) raise("integer division or modulo by zero");
  if (a == INT64_MIN && b == -1) overflow();
  const std::int64_t quotient = a / b;
  return quotient - ((a % b != 0 && (a % b < 0) != (b < 0)) ? 1 : 0);
}

std::int64_t modulo(std::int64_t a, std::int64_t b) {
  if (b == 0) raise("integer division or modulo by zero");
  if (b == -1) return 0;
  const std::int64_t rest = a % b;
  return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}

double modulo(double a, double b) {
  if (b == 0) raise("float modulo by zero");
  const double rest = std::fmod(a, b);
  if (rest == 0) return std::copysign(0.0, b);
  return (rest < 0) != (b < 0) ? rest + b : rest;
}

std::int64_t power(std::int64_t base, std::int64_t exponent) {
  std::int64_t result = 1;
  while (true) {
    if ((exponent & 1) && __builtin_mul_overflow(result, base, &result)) overflow();
    exponent >>= 1;
    if (exponent == 0) return result;
    if (__builtin_mul_overflow(base, base, &base)) overflow();
  }
}

Value integer_operation(char symbol, bool is_double, std::int64_t a, std::int64_t b) {
  std::int64_t result = 0;
  switch (symbol) {
    case '+':
      if (__builtin_add_overflow(a, b, &result)) overflow();
      return result;
    case '-':
      if (__builtin_sub_overflow(a, b, &result)) overflow();
      return result;
    case '*':
      if (is_double) {
        if (b >= 0) return power(a, b);
        if (a == 0) raise("0.0 cannot be raised to a negative power");
        return std::pow(static_cast<double>(a), static_cast<double>(b));
      }
      if (__builtin_mul_overflow(a, b, &result)) overflow();
      return result;
    case '/':
      if (is_double) return floor_divide(a, b);
      if (b == 0) raise("division by zero");
      return static_cast<double>(a) / static_cast<double>(b);
    default:
      return modulo(a, b);
  }
}

Value real_operation(char symbol, bool is_double, double a, double b) {
  switch (symbol) {
    case '+':
      return a + b;
    case '-':
      return a - b;
    case '*':
      if (!is_double) return a * b;
      if (a < 0 && b != std::trunc(b)) raise("complex numbers are not supported");
      if (a == 0 && b < 0) raise("0.0 cannot be raised to a negative power");
      return std::pow(a, b);
    case '/':
      if (b == 0) raise("float division by zero");
      if (!is_double) return a / b;
      return std::floor((a - modulo(a, b)) / b + 0.5);
    default:
      return modulo(a, b);
  }
}

Value repeated(Interpreter& interpreter, const Value& v, std::int64_t count) {
  const auto times = static_cast<std::uint64_t>(std::max<std::int64_t>(count, 0));
  if (const std::string* string = as_string(v)) {
    if (times > 0 && string->size() > Budget::kMaxBytes / times) interpreter.budget().make_bytes(Budget::kMaxBytes + 1);
    interpreter.budget().make_bytes(string->size() * times);
    std::string out;
    if (string->empty()) return text("");
    for (std::uint64_t i = 0; i < times; ++i) out += *string;
    return text(std::move(out));
  }
  const Sequence* sequence = as_sequence(v);
  if (sequence->elements.empty()) return make_sequence(sequence->kind, {});
  if (times > Budget::kMaxSteps / sequence->elements.size()) interpreter.budget().step(Budget::kMaxSteps + 1);
  interpreter.budget().make_elements(sequence->elements.size() * times);
  Values out;
  for (std::uint64_t i = 0; i < times; ++i) out.insert(out.end(), sequence->elements.begin(), sequence->elements.end());
  return make_sequence(sequence->kind, std::move(out));
}

bool is_repeatable(const Value& v) {
  const Sequence* sequence = as_sequence(v);
  return is_string(v) || (sequence && (sequence->kind == SequenceKind::list || sequence->kind == SequenceKind::tuple));
}

}  // namespace

Value binary_operation(Interpreter& interpreter, std::string_view symbol, const Value& a, const Value& b) {
  refuse_undefined(a);
  refuse_undefined(b);
  refuse_markup(a);
  refuse_markup(b);
  const bool is_double = symbol.size() == 2;
  const auto x = as_integer(a), y = as_integer(b);
  if (x && y) return integer_operation(symbol[0], is_double, *x, *y);
  const auto p = as_number(a), q = as_number(b);
  if (p && q) return real_operation(symbol[0], is_double, *p, *q);
  if (symbol == "+") {
    const std::string *left = as_string(a), *right = as_string(b);
    if (left && right) {
      interpreter.budget().make_bytes(left->size() + right->size());
      return text(*left + *right);
    }
    const Sequence *s = as_sequence(a), *t = as_sequence(b);
    if (s && t && s->kind == t->kind && is_repeatable(a)) {
      interpreter.budget().make_elements(s->elements.size() + t->elements.size());
      Values joined = s->elements;
      joined.insert(joined.end(), t->elements.begin(), t->elements.end());
      return make_sequence(s->kind, std::move(joined));
    }
    if (left) raise("can only concatenate str (not \"{}\") to str", type_name(b));
  }
  if (symbol == "*" && is_repeatable(a) && y) return repeated(interpreter, a, *y);
  if (symbol == "*" && is_repeatable(b) && x) return repeated(interpreter, b, *x);
  if (symbol == "%" && is_string(a)) return text(percent_format(interpreter, *as_string(a), b));
  raise("unsupported operand type(s) for {}: '{}' and '{}'", symbol, type_name(a), type_name(b));
}

Value negated(const Value& v) {
  refuse_undefined(v);
  if (const auto whole = as_integer(v)) {
    if (*whole == INT64_MIN) overflow();
    return -*whole;
  }
  if (const auto real = as_number(v)) return -*real;
  raise("bad operand type for unary -: '{}'", type_name(v));
}

Value plus(const Value& v) {
  refuse_undefined(v);
  if (const auto whole = as_integer(v)) return *whole;
  if (const auto real = as_number(v)) return *real;
  raise("bad operand type for unary +: '{}'", type_name(v));
}

Value sliced(Interpreter& interpreter, const Value& v, const Value& start, const Value& stop, const Value& step) {
  refuse_undefined(v);
  const Sequence* sequence = as_sequence(v);
  if (sequence && sequence->kind == SequenceKind::range) raise("a slice of a range is not supported");
  const bool fits = is_repeatable(v);
  for (const Value* part : {&start, &stop, &step}) {
    if (!fits) raise("'{}' object cannot be sliced", type_name(v));
    if (!is_none(*part) && !as_integer(*part)) raise("slice indices must be integers or None");
  }
  const std::string* string = as_string(v);
  const std::int64_t size = length(v);
  const std::int64_t stride = as_integer(step).value_or(1);
  if (stride == 0) raise("slice step cannot be zero");
  // Python's rule: negative ends count from the back, and what lies outside is cut.
  const auto bound = [&](const Value& part, std::int64_t otherwise) {
    const auto given = as_integer(part);
    if (!given) return otherwise;
    const std::int64_t place = *given < 0 ? *given + size : *given;
    return stride > 0 ? std::clamp<std::int64_t>(place, 0, size) : std::clamp<std::int64_t>(place, -1, size - 1);
  };
  const std::int64_t first = bound(start, stride > 0 ? 0 : size - 1);
  const std::int64_t end = bound(stop, stride > 0 ? size : -1);
  const auto visit = [&](auto take) {
    // In 128 bits: a huge stride must not overflow.
    for (__int128 i = first; stride > 0 ? i < end : i > end; i += stride) take(static_cast<std::size_t>(i));
  };
  if (string) {
    interpreter.budget().make_bytes(string->size());
    interpreter.budget().walk(v);
    std::string out;
    const bool is_ascii = static_cast<std::size_t>(size) == string->size();
    if (is_ascii) {
      visit([&](std::size_t i) { out += (*string)[i]; });
    } else {
      const std::vector<char32_t> points = code_points(*string);
      visit([&](std::size_t i) { append_code_point(out, points[i]); });
    }
    return text(std::move(out));
  }
  Values out;
  visit([&](std::size_t i) { out.push_back(sequence->elements[i]); });
  interpreter.budget().make_elements(out.size());
  return make_sequence(sequence->kind, std::move(out));
}

}  // namespace keel::jinja
