// The values of a template at work, with Python's meaning: what prints, compares, hashes and counts as true.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "text/chat_template.h"

namespace keel::jinja {

// A run-time mistake of the template or of the values it was given. The interpreter adds the line.
struct RenderError {
  std::string message;
  int line = 0;
  bool raised_by_template = false;  // by raise_exception: the message stands alone
};
template <class... Args>
[[noreturn]] void raise(fmt::format_string<Args...> format, Args&&... args) {
  throw RenderError{fmt::format(format, std::forward<Args>(args)...)};
}

struct Sequence;
struct Dict;
struct Space;
struct Callable;
struct Loop;

struct Undefined {
  std::shared_ptr<const std::string> message;  // said when it is used
};
struct None {};
struct Text {
  std::shared_ptr<const std::string> bytes;
  bool markup = false;  // came from |safe
};

using Value = std::variant<Undefined,
                           None,
                           bool,
                           std::int64_t,
                           double,
                           Text,
                           std::shared_ptr<Sequence>,
                           std::shared_ptr<Dict>,
                           std::shared_ptr<Space>,
                           std::shared_ptr<Callable>,
                           std::shared_ptr<Loop>>;
using Values = std::vector<Value>;

// Containers never change once made (the sandbox forbids it), so their extent is known as they are made. It bounds what
// walking them costs: ten lists of two copies of the last are small in memory, but 2^10 elements to print.
constexpr int kMaxNesting = 200;
struct Extent {
  int depth = 0;
  std::uint64_t weight = 1;  // values on the way through everything inside; long strings count by length

  void contain(const Extent& part);  // raises when too deep
};

enum class SequenceKind { list, tuple, range, keys, values, items, generator };

struct Sequence {
  SequenceKind kind;
  Values elements;
  Extent extent{1};
  std::string range_text;    // repr of a range
  std::size_t consumed = 0;  // of a generator: elements already taken
};

struct Dict {
  std::vector<std::pair<Value, Value>> entries;  // in order of insertion
  std::unordered_map<std::string, std::size_t> index;  // by hash_key
  Extent extent{1};

  void set(const Value& key, Value value);  // raises for a key that Python cannot hash
  const Value* find(const Value& key) const;
  const Value* find(std::string_view key) const;
};

struct Space {  // namespace()
  Dict attributes;
};

Value undefined(std::string message);
Value text(std::string_view bytes);
Value text(std::string&& bytes);
inline Value text(const char* bytes) { return text(std::string_view(bytes)); }
Value make_sequence(SequenceKind kind, Values elements);
inline Value make_list(Values elements) { return make_sequence(SequenceKind::list, std::move(elements)); }
inline Value make_tuple(Values elements) { return make_sequence(SequenceKind::tuple, std::move(elements)); }
Value make_dict(Dict dict);
// Raises for integers that 64 bits do not hold, for text that is not UTF-8 and for nesting past kMaxNesting.
Value from_json(const Json& json);

inline bool is_undefined(const Value& v) { return std::holds_alternative<Undefined>(v); }
inline bool is_none(const Value& v) { return std::holds_alternative<None>(v); }
inline bool is_string(const Value& v) { return std::holds_alternative<Text>(v); }
const std::string* as_string(const Value& v);       // null when it is none
const Sequence* as_sequence(const Value& v);
const Dict* as_dict(const Value& v);
std::optional<std::int64_t> as_integer(const Value& v);  // also of a boolean, as in Python
std::optional<double> as_number(const Value& v);         // boolean, integer or real
std::int64_t integer_of(const Value& v);                 // raises where as_integer has none
inline bool given(const std::optional<Value>& v) { return v && !is_none(*v); }  // an argument
// What the value shares with others and what may change; null when it is no T.
template <class T>
T* object(const Value& v) {
  const auto* pointer = std::get_if<std::shared_ptr<T>>(&v);
  return pointer ? pointer->get() : nullptr;
}

Extent extent_of(const Value& v);
std::string_view type_name(const Value& v);  // Python's
bool truth(const Value& v);
bool equal(const Value& a, const Value& b);
bool less(const Value& a, const Value& b);  // raises for types without an order
std::string to_string(const Value& v);      // str(v)
std::string repr(const Value& v);
std::string repr(std::string_view string);
std::string repr(double number);
std::int64_t length(const Value& v);  // raises where Python's len does

// The same text for equal hashable values; absent for what Python cannot hash.
std::optional<std::string> hash_key(const Value& v);

// All elements, characters or keys; takes what is left of a generator. Raises for what cannot be iterated.
Values iterate(const Value& v);
bool is_iterable(const Value& v);

}  // namespace keel::jinja
