#include "text/chat_template/format.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <numeric>

#include "text/chat_template/unicode.h"

namespace keel::jinja {
namespace {

constexpr std::int64_t kMaxWidth = 10'000;

// What stands between '%' or ':' and the type letter.
struct Field {
  std::string fill = " ";
  char align = '\0';  // '<' '>' '^' '=' or not given
  char sign = '-';    // '-' only for negatives, '+' and ' ' for the others too
  bool alternate = false;
  bool zero = false;
  bool commas = false;
  std::int64_t width = 0;
  std::optional<std::int64_t> precision;
};

std::int64_t take_number(std::string_view& rest) {
  std::int64_t number = 0;
  while (!rest.empty() && rest.front() >= '0' && rest.front() <= '9') {
    number = number * 10 + (rest.front() - '0');
    if (number > kMaxWidth) raise("a format's width is larger than {}", kMaxWidth);
    rest.remove_prefix(1);
  }
  return number;
}

std::string padded(std::string body, const Field& field, char default_align, std::size_t sign_bytes = 0) {
  const std::int64_t missing = field.width - code_point_count(body);
  if (missing <= 0) return body;
  const char align = field.align ? field.align : field.zero ? '=' : default_align;
  const std::string fill = field.zero && !field.align ? "0" : field.fill;
  const std::int64_t left = align == '<' ? 0 : align == '^' ? missing / 2 : missing;
  std::string out = align == '=' ? body.substr(0, sign_bytes) : "";
  for (std::int64_t i = 0; i < left; ++i) out += fill;
  out += align == '=' ? body.substr(sign_bytes) : body;
  for (std::int64_t i = left; i < missing; ++i) out += fill;
  return out;
}

std::string with_commas(std::string digits) {
  const std::size_t whole = std::min(digits.find('.'), digits.size());
  for (std::size_t i = whole; i > 3;) digits.insert(i -= 3, ",");
  return digits;
}

std::string formatted_number(const Value& v, char letter, const Field& field) {
  std::string digits;
  bool negative = false;
  if (std::string_view("dixXob").find(letter) != std::string_view::npos) {
    std::int64_t number = 0;
    if (const auto whole = as_integer(v)) {
      number = *whole;
    } else if (const auto* real = std::get_if<double>(&v); real && std::fabs(*real) < 9e18) {
      number = static_cast<std::int64_t>(*real);
    } else {
      raise("%{} format: a real number is required, not {}", letter, type_name(v));
    }
    negative = number < 0;
    const std::uint64_t magnitude = negative ? 0 - static_cast<std::uint64_t>(number) : static_cast<std::uint64_t>(number);
    const int base = letter == 'x' || letter == 'X' ? 16 : letter == 'o' ? 8 : letter == 'b' ? 2 : 10;
    char buffer[72];
    const auto end = std::to_chars(buffer, buffer + sizeof buffer, magnitude, base);
    digits.assign(buffer, end.ptr);
    if (letter == 'X') std::transform(digits.begin(), digits.end(), digits.begin(), [](unsigned char c) { return std::toupper(c); });
    if (field.alternate && base != 10) digits = std::string("0") + letter + digits;
  } else {
    const auto number = as_number(v);
    if (!number) raise("must be real number, not {}", type_name(v));
    negative = std::signbit(*number);
    const std::string specification = fmt::format("{{:.{}{}}}", field.precision.value_or(6), letter);
    digits = fmt::format(fmt::runtime(specification), std::fabs(*number));
  }
  if (field.commas) digits = with_commas(std::move(digits));
  const std::string sign = negative ? "-" : field.sign == '-' ? "" : std::string(1, field.sign);
  return padded(sign + digits, field, '>', sign.size());
}

std::string cut(std::string text, const Field& field) {
  if (!field.precision) return text;
  std::size_t bytes = 0;
  for (std::int64_t i = 0; i < *field.precision && bytes < text.size(); ++i) {
    bytes += code_point_bytes(std::string_view(text).substr(bytes));
  }
  return text.substr(0, bytes);
}

// format(v, specification) of Python, for texts and numbers.
std::string formatted(Interpreter& interpreter, const Value& v, std::string_view specification) {
  if (specification.empty()) return interpreter.print(v);
  Field field;
  std::string_view rest = specification;
  const auto is_align = [](char c) { return c == '<' || c == '>' || c == '^' || c == '='; };
  const std::size_t first = code_point_bytes(rest);
  if (rest.size() > first && is_align(rest[first])) {
    field.fill = rest.substr(0, first);
    field.align = rest[first];
    rest.remove_prefix(first + 1);
  } else if (is_align(rest.front())) {
    field.align = rest.front();
    rest.remove_prefix(1);
  }
  const auto skip = [&](char c) { return !rest.empty() && rest.front() == c && (rest.remove_prefix(1), true); };
  for (char sign : {'+', '-', ' '}) {
    if (skip(sign)) field.sign = sign;
  }
  field.alternate = skip('#');
  field.zero = skip('0');
  field.width = take_number(rest);
  field.commas = skip(',');
  if (skip('.')) field.precision = take_number(rest);
  const char letter = rest.empty() ? '\0' : rest.front();
  const bool is_number = as_number(v).has_value() && !std::holds_alternative<bool>(v);
  const bool is_whole = std::holds_alternative<std::int64_t>(v);
  if (rest.size() <= 1) {
    if (is_string(v) && (letter == '\0' || letter == 's')) return padded(cut(*as_string(v), field), field, '<');
    if (is_whole && letter == '\0') return formatted_number(v, 'd', field);
    if (is_whole && !field.precision && std::string_view("dxXob").find(letter) != std::string_view::npos) {
      return formatted_number(v, letter, field);
    }
    if (is_number && letter != '\0' && std::string_view("feEgF").find(letter) != std::string_view::npos) {
      return formatted_number(v, letter, field);
    }
  }
  raise("format specification '{}' for '{}' is not supported", specification, type_name(v));
}

}  // namespace

std::string percent_format(Interpreter& interpreter, std::string_view format, const Value& operand) {
  const Sequence* tuple = as_sequence(operand);
  if (tuple && tuple->kind != SequenceKind::tuple) tuple = nullptr;
  const Dict* dict = as_dict(operand);
  std::size_t used = 0;
  const auto next = [&]() -> const Value& {
    const std::size_t count = tuple ? tuple->elements.size() : 1;
    if (used >= count) raise("not enough arguments for format string");
    ++used;
    return tuple ? tuple->elements[used - 1] : operand;
  };
  bool named = false;
  std::string out;
  for (std::string_view rest = format; !rest.empty();) {
    const char c = rest.front();
    rest.remove_prefix(1);
    if (c != '%') {
      out += c;
      continue;
    }
    if (rest.empty()) raise("incomplete format");
    const Value* v = nullptr;
    if (rest.front() == '(') {
      const std::size_t end = rest.find(')');
      if (end == std::string_view::npos) raise("incomplete format key");
      if (!dict) raise("format requires a mapping");
      v = dict->find(rest.substr(1, end - 1));
      if (!v) raise("KeyError: {}", repr(rest.substr(1, end - 1)));
      named = true;
      rest.remove_prefix(end + 1);
    }
    Field field;
    for (bool is_flag = true; is_flag && !rest.empty();) {
      switch (rest.front()) {
        case '-': field.align = '<'; break;
        case '+': field.sign = '+'; break;
        case ' ': field.sign = field.sign == '+' ? '+' : ' '; break;
        case '0': field.zero = true; break;
        case '#': field.alternate = true; break;
        default: is_flag = false;
      }
      if (is_flag) rest.remove_prefix(1);
    }
    field.width = take_number(rest);
    if (!rest.empty() && rest.front() == '.') {
      rest.remove_prefix(1);
      field.precision = take_number(rest);
    }
    if (rest.empty()) raise("incomplete format");
    const char letter = rest.front();
    rest.remove_prefix(1);
    if (letter == '%') {
      out += '%';
      continue;
    }
    if (!v) v = &next();
    if (letter == 's' || letter == 'r') {
      interpreter.budget().walk(*v);
      field.zero = false;
      out += padded(cut(letter == 's' ? to_string(*v) : repr(*v), field), field, '>');
    } else if (std::string_view("dixXofFeEgG").find(letter) != std::string_view::npos) {
      if (is_undefined(*v)) raise("{}", *std::get<Undefined>(*v).message);
      if (field.precision && std::string_view("dixXo").find(letter) != std::string_view::npos) {
        raise("format '%.…{}' is not supported", letter);
      }
      out += formatted_number(*v, letter, field);
    } else {
      raise("unsupported format character '{}'", letter);
    }
    if (out.size() > Budget::kMaxOutputBytes) raise("a formatted text is too long");
  }
  interpreter.budget().make_bytes(out.size());
  if (!dict && !named && used < (tuple ? tuple->elements.size() : 1)) {
    raise("not all arguments converted during string formatting");
  }
  return out;
}

std::string brace_format(Interpreter& interpreter, std::string_view format, const Arguments& arguments) {
  std::string out;
  std::size_t automatic = 0;
  for (std::string_view rest = format; !rest.empty();) {
    const char c = rest.front();
    if (c != '{' && c != '}') {
      out += c;
      rest.remove_prefix(1);
      continue;
    }
    if (rest.size() > 1 && rest[1] == c) {
      out += c;
      rest.remove_prefix(2);
      continue;
    }
    const std::size_t end = rest.find('}');
    if (c == '}' || end == std::string_view::npos) raise("single '{}' encountered in format string", c);
    std::string_view field = rest.substr(1, end - 1);
    rest.remove_prefix(end + 1);
    if (field.find('{') != std::string_view::npos) raise("fields inside format fields are not supported");
    std::string_view specification;
    if (const std::size_t colon = field.find(':'); colon != std::string_view::npos) {
      specification = field.substr(colon + 1);
      field = field.substr(0, colon);
    }
    char conversion = '\0';
    if (const std::size_t mark = field.find('!'); mark != std::string_view::npos) {
      if (mark + 2 != field.size()) raise("a format field's conversion must be one letter");
      conversion = field[mark + 1];
      field = field.substr(0, mark);
    }
    if (field.find_first_of(".[") != std::string_view::npos) raise("attributes in format fields are not supported");
    Value v;
    const bool is_index = field.empty() || std::all_of(field.begin(), field.end(), [](char d) { return d >= '0' && d <= '9'; });
    if (is_index) {
      const std::size_t i = field.empty() ? automatic++ : static_cast<std::size_t>(take_number(field));
      if (i >= arguments.positional.size()) raise("replacement index {} out of range for positional args tuple", i);
      v = arguments.positional[i];
    } else {
      const auto found = std::find_if(arguments.named.begin(), arguments.named.end(), [&](const auto& entry) { return entry.first == field; });
      if (found == arguments.named.end()) raise("KeyError: {}", repr(field));
      v = found->second;
    }
    if (conversion == 's') v = text(interpreter.print(v));
    if (conversion == 'r') {
      interpreter.budget().walk(v);
      v = text(repr(v));
    }
    if (conversion != '\0' && conversion != 's' && conversion != 'r') raise("format conversion '!{}' is not supported", conversion);
    out += formatted(interpreter, v, specification);
    if (out.size() > Budget::kMaxOutputBytes) raise("a formatted text is too long");
  }
  interpreter.budget().make_bytes(out.size());
  return out;
}

namespace {

class JsonWriter {
 public:
  explicit JsonWriter(const JsonStyle& style) : style_(style) {}

  void write(const Value& v) {
    if (is_none(v)) {
      out_ += "null";
    } else if (const auto* flag = std::get_if<bool>(&v)) {
      out_ += *flag ? "true" : "false";
    } else if (const auto* whole = std::get_if<std::int64_t>(&v)) {
      out_ += std::to_string(*whole);
    } else if (const auto* real = std::get_if<double>(&v)) {
      out_ += number(*real);
    } else if (const std::string* string = as_string(v)) {
      write_string(*string);
    } else if (const Dict* dict = as_dict(v)) {
      write_dict(*dict);
    } else if (const Sequence* sequence = as_sequence(v);
               sequence && (sequence->kind == SequenceKind::list || sequence->kind == SequenceKind::tuple)) {
      write_list(sequence->elements);
    } else {
      raise("Object of type {} is not JSON serializable", type_name(v));
    }
    if (out_.size() > Budget::kMaxOutputBytes) raise("the JSON text is too long");
  }

  std::string take() { return std::move(out_); }

 private:
  static std::string number(double real) {
    if (std::isnan(real)) return "NaN";
    if (std::isinf(real)) return real < 0 ? "-Infinity" : "Infinity";
    return repr(real);
  }

  void new_line() {
    if (!style_.indent) return;
    out_ += '\n';
    for (int i = 0; i < level_; ++i) out_ += *style_.indent;
  }

  void write_list(const Values& elements) {
    if (elements.empty()) {
      out_ += "[]";
      return;
    }
    out_ += '[';
    ++level_;
    for (std::size_t i = 0; i < elements.size(); ++i) {
      if (i > 0) out_ += style_.item_separator;
      new_line();
      write(elements[i]);
    }
    --level_;
    new_line();
    out_ += ']';
  }

  void write_dict(const Dict& dict) {
    if (dict.entries.empty()) {
      out_ += "{}";
      return;
    }
    std::vector<std::size_t> order(dict.entries.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    if (style_.sort_keys) {
      std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
        return less(dict.entries[a].first, dict.entries[b].first);
      });
    }
    out_ += '{';
    ++level_;
    for (std::size_t i = 0; i < order.size(); ++i) {
      if (i > 0) out_ += style_.item_separator;
      new_line();
      const auto& [key, value] = dict.entries[order[i]];
      write_key(key);
      out_ += style_.key_separator;
      write(value);
    }
    --level_;
    new_line();
    out_ += '}';
  }

  void write_key(const Value& key) {
    if (const std::string* string = as_string(key)) return write_string(*string);
    if (!is_none(key) && !as_number(key)) raise("keys must be str, int, float, bool or None, not {}", type_name(key));
    out_ += '"';
    write(key);
    out_ += '"';
  }

  void write_string(std::string_view string) {
    out_ += '"';
    if (style_.ascii_only) {
      for (const char32_t c : code_points(string)) write_ascii(c);
    } else {
      for (const char c : string) {
        if (static_cast<unsigned char>(c) < 0x20 || c == '"' || c == '\\') {
          write_ascii(static_cast<unsigned char>(c));
        } else {
          out_ += c;
        }
      }
    }
    out_ += '"';
  }

  void write_ascii(char32_t c) {
    switch (c) {
      case '"': out_ += "\\\""; return;
      case '\\': out_ += "\\\\"; return;
      case '\n': out_ += "\\n"; return;
      case '\r': out_ += "\\r"; return;
      case '\t': out_ += "\\t"; return;
      case '\f': out_ += "\\f"; return;
      case '\b': out_ += "\\b"; return;
      default: break;
    }
    if (c >= 0x20 && c < 0x7F) {
      out_ += static_cast<char>(c);
    } else if (c < 0x10000) {
      out_ += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
    } else {
      const unsigned rest = static_cast<unsigned>(c) - 0x10000;
      out_ += fmt::format("\\u{:04x}\\u{:04x}", 0xD800 + (rest >> 10), 0xDC00 + (rest & 0x3FF));
    }
  }

  const JsonStyle& style_;
  std::string out_;
  int level_ = 0;
};

}  // namespace

std::string to_json(Interpreter& interpreter, const Value& v, const JsonStyle& style) {
  interpreter.budget().walk(v);
  JsonWriter writer(style);
  writer.write(v);
  std::string out = writer.take();
  interpreter.budget().make_bytes(out.size());
  return out;
}

}  // namespace keel::jinja
