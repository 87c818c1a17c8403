#include "text/chat_template/value.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "text/chat_template/runtime.h"
#include "text/chat_template/unicode.h"

namespace keel::jinja {
namespace {

template <class T>
const T* shared(const Value& v) {
  const auto* pointer = std::get_if<std::shared_ptr<T>>(&v);
  return pointer ? pointer->get() : nullptr;
}

constexpr std::uint64_t kMostWeight = UINT64_MAX / 4;  // sums of two never overflow

std::string joined_reprs(const Values& elements) {
  std::string out;
  for (const Value& element : elements) {
    if (!out.empty()) out += ", ";
    out += repr(element);
  }
  return out;
}

std::string dict_repr(const Dict& dict) {
  std::string out = "{";
  for (const auto& [key, value] : dict.entries) {
    if (out.size() > 1) out += ", ";
    out += repr(key) + ": " + repr(value);
  }
  return out + "}";
}

Value from_json(const Json& json, int depth) {
  if (depth > kMaxNesting) raise("values are nested more than {} deep", kMaxNesting);
  switch (json.type()) {
    case Json::value_t::boolean:
      return json.get<bool>();
    case Json::value_t::number_integer:
      return json.get<std::int64_t>();
    case Json::value_t::number_unsigned: {
      const auto number = json.get<std::uint64_t>();
      if (number > static_cast<std::uint64_t>(INT64_MAX)) raise("integer {} does not fit 64 bits with sign", number);
      return static_cast<std::int64_t>(number);
    }
    case Json::value_t::number_float:
      return json.get<double>();
    case Json::value_t::string: {
      const auto& string = json.get_ref<const std::string&>();
      if (!is_valid_utf8(string)) raise("a string is not valid UTF-8");
      return text(string);
    }
    case Json::value_t::array: {
      Values elements;
      elements.reserve(json.size());
      for (const Json& element : json) elements.push_back(from_json(element, depth + 1));
      return make_list(std::move(elements));
    }
    case Json::value_t::object: {
      Dict dict;
      for (const auto& [key, value] : json.items()) {
        if (!is_valid_utf8(key)) raise("a key is not valid UTF-8");
        dict.set(text(key), from_json(value, depth + 1));
      }
      return make_dict(std::move(dict));
    }
    case Json::value_t::null:
      return None{};
    default:
      raise("a JSON value of a kind that templates do not know");
  }
}

bool equal_elements(const Values& a, const Values& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const Value& x, const Value& y) {
    return equal(x, y);
  });
}

}  // namespace

void Extent::contain(const Extent& part) {
  depth = std::max(depth, part.depth + 1);
  if (depth > kMaxNesting) raise("values are nested more than {} deep", kMaxNesting);
  weight = std::min(weight + part.weight, kMostWeight);
}

void Dict::set(const Value& key, Value value) {
  const std::optional<std::string> hash = hash_key(key);
  if (!hash) raise("unhashable type: '{}'", type_name(key));
  extent.contain(extent_of(key));
  extent.contain(extent_of(value));
  const auto [position, is_new] = index.try_emplace(*hash, entries.size());
  if (is_new) {
    entries.emplace_back(key, std::move(value));
  } else {
    entries[position->second].second = std::move(value);
  }
}

const Value* Dict::find(const Value& key) const {
  const std::optional<std::string> hash = hash_key(key);
  if (!hash) return nullptr;
  const auto found = index.find(*hash);
  return found == index.end() ? nullptr : &entries[found->second].second;
}

const Value* Dict::find(std::string_view key) const {
  const auto found = index.find("s" + std::string(key));
  return found == index.end() ? nullptr : &entries[found->second].second;
}

Value undefined(std::string message) {
  return Undefined{std::make_shared<const std::string>(std::move(message))};
}
Value text(std::string_view bytes) { return Text{std::make_shared<const std::string>(bytes)}; }
Value text(std::string&& bytes) { return Text{std::make_shared<const std::string>(std::move(bytes))}; }

Value make_sequence(SequenceKind kind, Values elements) {
  auto sequence = std::make_shared<Sequence>();
  sequence->kind = kind;
  sequence->elements = std::move(elements);
  for (const Value& element : sequence->elements) sequence->extent.contain(extent_of(element));
  return sequence;
}

Value make_dict(Dict dict) { return std::make_shared<Dict>(std::move(dict)); }
Value from_json(const Json& json) { return from_json(json, 0); }

const std::string* as_string(const Value& v) {
  const auto* string = std::get_if<Text>(&v);
  return string ? string->bytes.get() : nullptr;
}
const Sequence* as_sequence(const Value& v) { return shared<Sequence>(v); }
const Dict* as_dict(const Value& v) { return shared<Dict>(v); }

std::optional<std::int64_t> as_integer(const Value& v) {
  if (const auto* flag = std::get_if<bool>(&v)) return *flag ? 1 : 0;
  if (const auto* number = std::get_if<std::int64_t>(&v)) return *number;
  return std::nullopt;
}

std::int64_t integer_of(const Value& v) {
  const auto number = as_integer(v);
  if (!number) raise("'{}' object cannot be interpreted as an integer", type_name(v));
  return *number;
}

std::optional<double> as_number(const Value& v) {
  if (const auto* real = std::get_if<double>(&v)) return *real;
  if (const auto whole = as_integer(v)) return static_cast<double>(*whole);
  return std::nullopt;
}

Extent extent_of(const Value& v) {
  constexpr std::size_t kBytesOfWeight = 64;
  if (const auto* string = as_string(v)) return {0, 1 + string->size() / kBytesOfWeight};
  if (const auto* sequence = shared<Sequence>(v)) return sequence->extent;
  if (const auto* dict = shared<Dict>(v)) return dict->extent;
  if (const auto* space = shared<Space>(v)) return space->attributes.extent;
  if (const auto* callable = shared<Callable>(v)) return callable->extent;
  if (const auto* loop = shared<Loop>(v)) return loop->extent;
  return {};
}

std::string_view type_name(const Value& v) {
  constexpr std::string_view kNames[] = {
      "Undefined", "NoneType", "bool", "int", "float", "str", "", "dict", "Namespace", "function", "LoopContext"};
  if (const auto* sequence = shared<Sequence>(v)) {
    constexpr std::string_view kSequences[] = {
        "list", "tuple", "range", "dict_keys", "dict_values", "dict_items", "generator"};
    return kSequences[static_cast<int>(sequence->kind)];
  }
  return kNames[v.index()];
}

bool truth(const Value& v) {
  if (const auto* flag = std::get_if<bool>(&v)) return *flag;
  if (const auto* whole = std::get_if<std::int64_t>(&v)) return *whole != 0;
  if (const auto* real = std::get_if<double>(&v)) return *real != 0;
  if (const auto* string = as_string(v)) return !string->empty();
  if (const auto* sequence = as_sequence(v)) {
    return sequence->kind == SequenceKind::generator || !sequence->elements.empty();
  }
  if (const auto* dict = as_dict(v)) return !dict->entries.empty();
  return !is_undefined(v) && !is_none(v);
}

bool equal(const Value& a, const Value& b) {
  const auto x = as_integer(a), y = as_integer(b);
  if (x && y) return *x == *y;
  const auto p = as_number(a), q = as_number(b);
  if (p || q) return p && q && *p == *q;
  if (a.index() != b.index()) return false;
  if (is_undefined(a) || is_none(a)) return true;
  if (const auto* string = as_string(a)) return *string == *as_string(b);
  if (const auto* sequence = as_sequence(a)) {
    const auto* other = as_sequence(b);
    if (sequence == other) return true;
    const bool comparable = sequence->kind == other->kind && sequence->kind != SequenceKind::generator &&
                            sequence->kind != SequenceKind::values;
    return comparable && equal_elements(sequence->elements, other->elements);
  }
  if (const auto* dict = as_dict(a)) {
    const auto* other = as_dict(b);
    if (dict->entries.size() != other->entries.size()) return false;
    return std::all_of(dict->entries.begin(), dict->entries.end(), [&](const auto& entry) {
      const Value* found = other->find(entry.first);
      return found && equal(entry.second, *found);
    });
  }
  // The others are equal to themselves alone.
  return shared<Space>(a) == shared<Space>(b) && shared<Callable>(a) == shared<Callable>(b) &&
         shared<Loop>(a) == shared<Loop>(b);
}

bool less(const Value& a, const Value& b) {
  for (const Value* v : {&a, &b}) {
    if (const auto* nothing = std::get_if<Undefined>(v)) raise("{}", *nothing->message);
  }
  const auto x = as_integer(a), y = as_integer(b);
  if (x && y) return *x < *y;
  const auto p = as_number(a), q = as_number(b);
  if (p && q) return *p < *q;
  if (is_string(a) && is_string(b)) return *as_string(a) < *as_string(b);  // UTF-8 keeps code point order
  const auto *s = as_sequence(a), *t = as_sequence(b);
  if (s && t && s->kind == t->kind && (s->kind == SequenceKind::list || s->kind == SequenceKind::tuple)) {
    for (std::size_t i = 0; i < std::min(s->elements.size(), t->elements.size()); ++i) {
      if (!equal(s->elements[i], t->elements[i])) return less(s->elements[i], t->elements[i]);
    }
    return s->elements.size() < t->elements.size();
  }
  raise("'<' not supported between instances of '{}' and '{}'", type_name(a), type_name(b));
}

std::string repr(double number) {
  if (std::isnan(number)) return "nan";
  if (std::isinf(number)) return number < 0 ? "-inf" : "inf";
  char digits[64];
  // Shortest digits that read back; Python turns to exponents below 1e-4 and from 1e16 on.
  const double magnitude = std::fabs(number);
  const bool scientific = magnitude != 0 && (magnitude < 1e-4 || magnitude >= 1e16);
  const auto end =
      std::to_chars(digits, digits + sizeof digits, number, scientific ? std::chars_format::scientific : std::chars_format::fixed);
  std::string out(digits, end.ptr);
  if (!scientific && out.find('.') == std::string::npos) out += ".0";
  return out;
}

std::string repr(std::string_view string) {
  const bool has_single = string.find('\'') != std::string_view::npos;
  const bool has_double = string.find('"') != std::string_view::npos;
  const char quote = has_single && !has_double ? '"' : '\'';
  std::string out(1, quote);
  for (const char32_t c : code_points(string)) {
    if (c == static_cast<char32_t>(quote) || c == '\\') {
      out += '\\';
      out += static_cast<char>(c);
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\r') {
      out += "\\r";
    } else if (c == '\t') {
      out += "\\t";
    } else if (is_printable(c)) {
      append_code_point(out, c);
    } else if (c < 0x100) {
      out += fmt::format("\\x{:02x}", static_cast<unsigned>(c));
    } else if (c < 0x10000) {
      out += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
    } else {
      out += fmt::format("\\U{:08x}", static_cast<unsigned>(c));
    }
  }
  return out + quote;
}

std::string repr(const Value& v) {
  if (is_undefined(v)) return "Undefined";
  if (const auto* string = std::get_if<Text>(&v)) {
    return string->markup ? "Markup(" + repr(*string->bytes) + ")" : repr(*string->bytes);
  }
  return to_string(v);
}

std::string to_string(const Value& v) {
  if (is_undefined(v)) return "";
  if (is_none(v)) return "None";
  if (const auto* flag = std::get_if<bool>(&v)) return *flag ? "True" : "False";
  if (const auto* whole = std::get_if<std::int64_t>(&v)) return std::to_string(*whole);
  if (const auto* real = std::get_if<double>(&v)) return repr(*real);
  if (const auto* string = as_string(v)) return *string;
  if (const auto* dict = as_dict(v)) return dict_repr(*dict);
  if (const auto* sequence = as_sequence(v)) {
    switch (sequence->kind) {
      case SequenceKind::list:
        return "[" + joined_reprs(sequence->elements) + "]";
      case SequenceKind::tuple:
        return "(" + joined_reprs(sequence->elements) + (sequence->elements.size() == 1 ? ",)" : ")");
      case SequenceKind::range:
        return sequence->range_text;
      case SequenceKind::generator:
        break;  // Python prints an address
      default:
        return fmt::format("{}([{}])", type_name(v), joined_reprs(sequence->elements));
    }
  }
  raise("a {} cannot be printed", type_name(v));
}

std::int64_t length(const Value& v) {
  if (is_undefined(v)) return 0;
  if (const auto* string = as_string(v)) return code_point_count(*string);
  if (const auto* dict = as_dict(v)) return static_cast<std::int64_t>(dict->entries.size());
  const auto* sequence = as_sequence(v);
  if (sequence && sequence->kind != SequenceKind::generator) return static_cast<std::int64_t>(sequence->elements.size());
  raise("object of type '{}' has no len()", type_name(v));
}

std::optional<std::string> hash_key(const Value& v) {
  if (const auto* string = as_string(v)) return "s" + *string;
  if (const auto whole = as_integer(v)) return "n" + std::to_string(*whole);
  if (const auto* real = std::get_if<double>(&v)) {
    const bool is_whole = *real == std::trunc(*real) && std::fabs(*real) < 9e18;
    return "n" + (is_whole ? std::to_string(static_cast<std::int64_t>(*real)) : repr(*real));
  }
  if (is_none(v)) return "none";
  if (is_undefined(v)) return "undefined";
  if (const auto* sequence = as_sequence(v); sequence && sequence->kind == SequenceKind::tuple) {
    constexpr std::uint64_t kMaxKeyWeight = 100'000;
    if (sequence->extent.weight > kMaxKeyWeight) raise("a tuple is too large to be a key");
    std::string out = "t";
    for (const Value& element : sequence->elements) {
      const auto part = hash_key(element);
      if (!part) return std::nullopt;
      out += std::to_string(part->size()) + ":" + *part;
    }
    return out;
  }
  return std::nullopt;
}

bool is_iterable(const Value& v) {
  return is_undefined(v) || is_string(v) || as_sequence(v) || as_dict(v) || std::holds_alternative<std::shared_ptr<Loop>>(v);
}

Values iterate(const Value& v) {
  Values out;
  if (is_undefined(v)) return out;
  if (const auto* string = as_string(v)) {
    for (std::string_view rest = *string; !rest.empty();) {
      const std::size_t bytes = code_point_bytes(rest);
      out.push_back(text(rest.substr(0, bytes)));
      rest.remove_prefix(bytes);
    }
    return out;
  }
  if (const auto* dict = as_dict(v)) {
    for (const auto& entry : dict->entries) out.push_back(entry.first);
    return out;
  }
  if (const auto* pointer = std::get_if<std::shared_ptr<Sequence>>(&v)) {
    Sequence& sequence = **pointer;
    if (sequence.kind != SequenceKind::generator) return sequence.elements;
    out.assign(sequence.elements.begin() + static_cast<std::ptrdiff_t>(sequence.consumed), sequence.elements.end());
    sequence.consumed = sequence.elements.size();
    return out;
  }
  raise("'{}' object is not iterable", type_name(v));
}

}  // namespace keel::jinja
