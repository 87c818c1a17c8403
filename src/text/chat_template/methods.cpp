#include "text/chat_template/methods.h"

#include <algorithm>
#include <functional>
#include <map>

#include "text/chat_template/format.h"
#include "text/chat_template/unicode.h"

namespace keel::jinja {
namespace {

using Bound = std::vector<std::optional<Value>>;
struct Call {
  Interpreter& interpreter;
  const Value& self;
  std::string_view name;
  const Arguments& arguments;

  Bound bind(std::initializer_list<std::string_view> parameters, std::size_t required) const {
    return arguments.bind(fmt::format("{}()", name), parameters, required);
  }
  Budget& budget() const { return interpreter.budget(); }
};
using Method = std::function<Value(const Call&)>;
using Methods = std::map<std::string_view, Method>;

const std::string& string_of(const Value& v) {
  const std::string* string = as_string(v);
  if (!string) raise("a string is wanted, not '{}'", type_name(v));
  return *string;
}

// The part of the text that start and end, in code points, leave; and how many code points lie before it.
struct Window {
  std::string_view text;
  std::int64_t offset;
  bool is_past_end;  // start lies behind the text: even "" is not found there
};
Window window(std::string_view text, const std::optional<Value>& start, const std::optional<Value>& end) {
  if (!given(start) && !given(end)) return {text, 0, false};
  const std::int64_t size = code_point_count(text);
  const auto bound = [&](const std::optional<Value>& v, std::int64_t otherwise) {
    if (!given(v)) return otherwise;
    const std::int64_t place = integer_of(*v);
    return place < 0 ? std::max<std::int64_t>(place + size, 0) : place;
  };
  const std::int64_t first = bound(start, 0), last = std::min(bound(end, size), size);
  if (first > size || first > last) return {{}, first, true};
  const auto byte_of = [&](std::int64_t points) {
    std::size_t bytes = 0;
    for (; points > 0; --points) bytes += code_point_bytes(text.substr(bytes));
    return bytes;
  };
  const std::size_t a = byte_of(first), b = byte_of(last);
  return {text.substr(a, b - a), first, false};
}

Values split(Budget& budget, std::string_view text, const std::optional<Value>& separator, std::int64_t limit, bool from_right) {
  std::vector<std::string_view> parts;
  const auto more = [&] { return limit < 0 || static_cast<std::int64_t>(parts.size()) < limit; };
  if (given(separator)) {
    const std::string& mark = string_of(*separator);
    if (mark.empty()) raise("empty separator");
    budget.search(text.size(), mark.size());
    while (more()) {
      const std::size_t at = from_right ? text.rfind(mark) : text.find(mark);
      if (at == std::string_view::npos) break;
      parts.push_back(from_right ? text.substr(at + mark.size()) : text.substr(0, at));
      text = from_right ? text.substr(0, at) : text.substr(at + mark.size());
    }
    parts.push_back(text);
  } else {
    // Runs of white space separate, and none is left at the ends.
    text = strip(text, std::nullopt, !from_right, from_right);
    while (!text.empty() && more()) {
      std::size_t begin = 0, end = text.size();
      if (from_right) {
        begin = end;
        while (begin > 0) {
          std::size_t start = begin - 1;
          while (start > 0 && (text[start] & 0xC0) == 0x80) --start;
          if (is_space(code_points(text.substr(start, begin - start)).front())) break;
          begin = start;
        }
        parts.push_back(text.substr(begin));
        text = strip(text.substr(0, begin), std::nullopt, false, true);
      } else {
        end = 0;
        while (end < text.size()) {
          const std::size_t bytes = code_point_bytes(text.substr(end));
          if (is_space(code_points(text.substr(end, bytes)).front())) break;
          end += bytes;
        }
        parts.push_back(text.substr(0, end));
        text = strip(text.substr(end), std::nullopt, true, false);
      }
    }
    // What the limit left unsplit keeps the white space of its far end, as in Python.
    if (!text.empty()) parts.push_back(text);
  }
  if (from_right) std::reverse(parts.begin(), parts.end());
  budget.make_elements(parts.size());
  Values out;
  for (std::string_view part : parts) out.push_back(jinja::text(part));
  return out;
}

// startswith, endswith: one text or a tuple of them.
bool has_affix(std::string_view text, const Value& affix, bool at_end) {
  const auto matches = [&](const Value& v) {
    const std::string* part = as_string(v);
    if (!part) raise("{} first arg must be str or a tuple of str, not {}", at_end ? "endswith" : "startswith", type_name(v));
    return at_end ? text.ends_with(*part) : text.starts_with(*part);
  };
  const Sequence* tuple = as_sequence(affix);
  if (tuple && tuple->kind == SequenceKind::tuple) {
    return std::any_of(tuple->elements.begin(), tuple->elements.end(), matches);
  }
  return matches(affix);
}

Method affix_method(bool at_end) {
  return [at_end](const Call& c) -> Value {
    const Bound b = c.bind({"prefix", "start", "end"}, 1);
    const Window part = window(string_of(c.self), b[1], b[2]);
    return !part.is_past_end && has_affix(part.text, *b[0], at_end);
  };
}

Method strip_method(bool left, bool right) {
  return [left, right](const Call& c) -> Value {
    const Bound b = c.bind({"chars"}, 0);
    std::optional<std::string_view> characters;
    if (given(b[0])) characters = string_of(*b[0]);
    return text(strip(string_of(c.self), characters, left, right));
  };
}

Method find_method_of(bool from_right, bool must_find) {
  return [from_right, must_find](const Call& c) -> Value {
    const Bound b = c.bind({"sub", "start", "end"}, 1);
    const Window part = window(string_of(c.self), b[1], b[2]);
    const std::string& wanted = string_of(*b[0]);
    c.budget().search(part.text.size(), wanted.size());
    const std::size_t at = part.is_past_end ? std::string_view::npos
                           : from_right     ? part.text.rfind(wanted)
                                            : part.text.find(wanted);
    if (at != std::string_view::npos) return part.offset + code_point_count(part.text.substr(0, at));
    if (must_find) raise("substring not found");
    return std::int64_t{-1};
  };
}

Method split_method(bool from_right) {
  return [from_right](const Call& c) -> Value {
    const Bound b = c.bind({"sep", "maxsplit"}, 0);
    const std::int64_t limit = b[1] ? integer_of(*b[1]) : -1;
    return make_list(split(c.budget(), string_of(c.self), b[0], limit, from_right));
  };
}

Method case_method(std::string (*convert)(std::string_view)) {
  return [convert](const Call& c) -> Value {
    c.bind({}, 0);
    return text(convert(string_of(c.self)));
  };
}

// All code points, and at least one.
Method class_method(bool (*belongs)(char32_t)) {
  return [belongs](const Call& c) -> Value {
    c.bind({}, 0);
    const auto points = code_points(string_of(c.self));
    return !points.empty() && std::all_of(points.begin(), points.end(), belongs);
  };
}

// islower, isupper: some cased letters, and all of them so.
Method letters_method(bool (*wanted)(char32_t)) {
  return [wanted](const Call& c) -> Value {
    c.bind({}, 0);
    bool any = false;
    for (const char32_t point : code_points(string_of(c.self))) {
      if (is_cased(point) && !wanted(point)) return false;
      any |= is_cased(point);
    }
    return any;
  };
}

Method partition_method(bool from_right) {
  return [from_right](const Call& c) -> Value {
    const Bound b = c.bind({"sep"}, 1);
    const std::string &whole = string_of(c.self), &mark = string_of(*b[0]);
    if (mark.empty()) raise("empty separator");
    c.budget().search(whole.size(), mark.size());
    const std::size_t at = from_right ? whole.rfind(mark) : whole.find(mark);
    if (at == std::string::npos) {
      return from_right ? make_tuple({text(""), text(""), c.self}) : make_tuple({c.self, text(""), text("")});
    }
    return make_tuple({text(whole.substr(0, at)), text(mark), text(whole.substr(at + mark.size()))});
  };
}

Method justify_method(char align) {
  return [align](const Call& c) -> Value {
    const Bound b = c.bind({"width", "fillchar"}, 1);
    const std::string& body = string_of(c.self);
    const std::string fill = b[1] ? string_of(*b[1]) : " ";
    if (code_point_count(fill) != 1) raise("the fill character must be exactly one character long");
    const std::int64_t width = integer_of(*b[0]), missing = std::max<std::int64_t>(width - code_point_count(body), 0);
    c.budget().make_bytes(static_cast<std::uint64_t>(missing) > Budget::kMaxBytes ? Budget::kMaxBytes + 1
                                                                                  : static_cast<std::uint64_t>(missing) * fill.size());
    // Python's centre leans left for odd widths, right for even ones.
    const std::int64_t left = align == '<' ? 0 : align == '>' ? missing : missing / 2 + (missing & width & 1);
    std::string out;
    for (std::int64_t i = 0; i < left; ++i) out += fill;
    out += body;
    for (std::int64_t i = left; i < missing; ++i) out += fill;
    return text(std::move(out));
  };
}

const Methods& string_methods() {
  static const Methods table = [] {
    Methods t;
    t["strip"] = strip_method(true, true);
    t["lstrip"] = strip_method(true, false);
    t["rstrip"] = strip_method(false, true);
    t["split"] = split_method(false);
    t["rsplit"] = split_method(true);
    t["startswith"] = affix_method(false);
    t["endswith"] = affix_method(true);
    t["find"] = find_method_of(false, false);
    t["rfind"] = find_method_of(true, false);
    t["index"] = find_method_of(false, true);
    t["rindex"] = find_method_of(true, true);
    t["upper"] = case_method(to_upper);
    t["lower"] = case_method(to_lower);
    t["title"] = case_method(to_title);
    t["capitalize"] = case_method(to_capitalized);
    t["swapcase"] = case_method(swap_case);
    t["isspace"] = class_method(is_space);
    t["isalpha"] = class_method(is_alphabetic);
    t["isdecimal"] = class_method(is_digit);
    t["isalnum"] = class_method([](char32_t c) { return is_alphabetic(c) || is_numeric(c); });
    t["isnumeric"] = class_method(is_numeric);
    t["islower"] = letters_method(is_lower);
    t["isupper"] = letters_method(is_upper);
    t["isdigit"] = [](const Call& c) -> Value {
      c.bind({}, 0);
      const auto points = code_points(string_of(c.self));
      // Superscripts and the like count as digits in Python; which ones, keel has no table for.
      for (const char32_t p : points) {
        if (is_numeric(p) && !is_digit(p)) raise("isdigit() of a number that is no decimal digit is not supported");
      }
      return !points.empty() && std::all_of(points.begin(), points.end(), is_digit);
    };
    t["isascii"] = [](const Call& c) -> Value {
      c.bind({}, 0);
      return std::all_of(string_of(c.self).begin(), string_of(c.self).end(), [](char b) { return (b & 0x80) == 0; });
    };
    t["partition"] = partition_method(false);
    t["rpartition"] = partition_method(true);
    t["ljust"] = justify_method('<');
    t["rjust"] = justify_method('>');
    t["center"] = justify_method('^');
    t["count"] = [](const Call& c) -> Value {
      const Bound b = c.bind({"sub", "start", "end"}, 1);
      const Window part = window(string_of(c.self), b[1], b[2]);
      const std::string& wanted = string_of(*b[0]);
      c.budget().search(part.text.size(), wanted.size());
      if (part.is_past_end) return std::int64_t{0};
      if (wanted.empty()) return code_point_count(part.text) + 1;
      std::int64_t count = 0;
      for (std::size_t at = part.text.find(wanted); at != std::string_view::npos; at = part.text.find(wanted, at + wanted.size())) ++count;
      return count;
    };
    t["replace"] = [](const Call& c) -> Value {
      const Bound b = c.bind({"old", "new", "count"}, 2);
      const std::int64_t count = b[2] ? integer_of(*b[2]) : -1;
      return text(replaced(c.budget(), string_of(c.self), string_of(*b[0]), string_of(*b[1]), count));
    };
    t["removeprefix"] = [](const Call& c) -> Value {
      const std::string &whole = string_of(c.self), part = string_of(*c.bind({"prefix"}, 1)[0]);
      return whole.starts_with(part) ? text(whole.substr(part.size())) : c.self;
    };
    t["removesuffix"] = [](const Call& c) -> Value {
      const std::string &whole = string_of(c.self), part = string_of(*c.bind({"suffix"}, 1)[0]);
      return whole.ends_with(part) ? text(whole.substr(0, whole.size() - part.size())) : c.self;
    };
    t["splitlines"] = [](const Call& c) -> Value {
      const Bound b = c.bind({"keepends"}, 0);
      Values lines;
      for (std::string_view line : split_lines(string_of(c.self), b[0] && truth(*b[0]))) lines.push_back(text(line));
      c.budget().make_elements(lines.size());
      return make_list(std::move(lines));
    };
    t["join"] = [](const Call& c) -> Value {
      std::string out;
      std::size_t i = 0;
      for (const Value& element : c.interpreter.elements(*c.bind({"iterable"}, 1)[0])) {
        const std::string* part = as_string(element);
        if (!part) raise("sequence item {}: expected str instance, {} found", i, type_name(element));
        if (i++ > 0) out += string_of(c.self);
        out += *part;
        c.budget().make_bytes(string_of(c.self).size() + part->size());
      }
      return text(std::move(out));
    };
    t["zfill"] = [](const Call& c) -> Value {
      const std::string& body = string_of(c.self);
      const std::int64_t width = integer_of(*c.bind({"width"}, 1)[0]), missing = width - code_point_count(body);
      if (missing <= 0) return c.self;
      c.budget().make_bytes(static_cast<std::uint64_t>(missing));
      const std::size_t sign = !body.empty() && (body[0] == '-' || body[0] == '+') ? 1 : 0;
      return text(body.substr(0, sign) + std::string(static_cast<std::size_t>(missing), '0') + body.substr(sign));
    };
    t["format"] = [](const Call& c) -> Value { return text(brace_format(c.interpreter, string_of(c.self), c.arguments)); };
    return t;
  }();
  return table;
}

const Methods& sequence_methods() {
  static const Methods table = [] {
    Methods t;
    t["count"] = [](const Call& c) -> Value {
      const Value wanted = *c.bind({"value"}, 1)[0];
      c.budget().walk(c.self);
      const Values& all = as_sequence(c.self)->elements;
      return static_cast<std::int64_t>(std::count_if(all.begin(), all.end(), [&](const Value& v) { return equal(v, wanted); }));
    };
    t["index"] = [](const Call& c) -> Value {
      const Value wanted = *c.bind({"value"}, 1)[0];
      c.budget().walk(c.self);
      const Values& all = as_sequence(c.self)->elements;
      const auto found = std::find_if(all.begin(), all.end(), [&](const Value& v) { return equal(v, wanted); });
      if (found == all.end()) raise("{} is not in list", extent_of(wanted).depth == 0 ? repr(wanted) : "the value");
      return static_cast<std::int64_t>(found - all.begin());
    };
    return t;
  }();
  return table;
}

const Methods& dict_methods() {
  static const Methods table = [] {
    Methods t;
    t["get"] = [](const Call& c) -> Value {
      const Bound b = c.bind({"key", "default"}, 1);
      c.budget().walk(*b[0]);
      if (!hash_key(*b[0])) raise("unhashable type: '{}'", type_name(*b[0]));
      if (const Value* found = as_dict(c.self)->find(*b[0])) return *found;
      return b[1].value_or(None{});
    };
    const auto view = [](SequenceKind kind) -> Method {
      return [kind](const Call& c) -> Value {
        c.bind({}, 0);
        const Dict& dict = *as_dict(c.self);
        c.budget().make_elements(dict.entries.size());
        Values elements;
        for (const auto& [key, value] : dict.entries) {
          elements.push_back(kind == SequenceKind::keys     ? key
                             : kind == SequenceKind::values ? value
                                                            : make_tuple({key, value}));
        }
        return make_sequence(kind, std::move(elements));
      };
    };
    t["keys"] = view(SequenceKind::keys);
    t["values"] = view(SequenceKind::values);
    t["items"] = view(SequenceKind::items);
    t["copy"] = [](const Call& c) -> Value {
      c.bind({}, 0);
      return c.self;  // nothing changes a dict
    };
    return t;
  }();
  return table;
}

const Methods& loop_methods() {
  static const Methods table = [] {
    Methods t;
    t["cycle"] = [](const Call& c) -> Value {
      if (c.arguments.positional.empty()) raise("no items for cycling given");
      const auto index = static_cast<std::size_t>(std::get<std::shared_ptr<Loop>>(c.self)->index0);
      return c.arguments.positional[index % c.arguments.positional.size()];
    };
    t["changed"] = [](const Call& c) -> Value {
      Loop& loop = *std::get<std::shared_ptr<Loop>>(c.self);
      const Values& now = c.arguments.positional;
      if (loop.last_changed) c.budget().walk(make_tuple(now));
      const bool same = loop.last_changed && std::equal(now.begin(), now.end(), loop.last_changed->begin(), loop.last_changed->end(), equal);
      for (const Value& v : now) loop.extent.contain(extent_of(v));
      loop.last_changed = now;
      return !same;
    };
    return t;
  }();
  return table;
}

const Methods* methods_of(const Value& v) {
  if (is_string(v)) return &string_methods();
  if (as_dict(v)) return &dict_methods();
  if (std::holds_alternative<std::shared_ptr<Loop>>(v)) return &loop_methods();
  const Sequence* sequence = as_sequence(v);
  const bool has_methods = sequence && sequence->kind != SequenceKind::generator && sequence->kind != SequenceKind::keys &&
                           sequence->kind != SequenceKind::values && sequence->kind != SequenceKind::items;
  return has_methods ? &sequence_methods() : nullptr;
}

bool is_one_of(std::string_view name, std::initializer_list<std::string_view> names) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

}  // namespace

MethodStatus find_method(const Value& v, std::string_view name) {
  if (const Methods* methods = methods_of(v); methods && methods->contains(name)) return MethodStatus::known;
  // Attributes of Python that start so are all closed to templates.
  if (name.starts_with("__") && name.ends_with("__")) return MethodStatus::unsafe;
  if (is_string(v)) {
    return is_one_of(name, {"casefold", "encode", "expandtabs", "format_map", "isidentifier", "isprintable", "istitle", "maketrans", "translate"})
               ? MethodStatus::unsupported
               : MethodStatus::absent;
  }
  if (as_dict(v)) {
    if (is_one_of(name, {"clear", "pop", "popitem", "setdefault", "update"})) return MethodStatus::unsafe;
    return name == "fromkeys" ? MethodStatus::unsupported : MethodStatus::absent;
  }
  if (const Sequence* sequence = as_sequence(v)) {
    if (sequence->kind == SequenceKind::list) {
      if (is_one_of(name, {"append", "clear", "pop", "reverse", "insert", "sort", "extend", "remove"})) return MethodStatus::unsafe;
      return name == "copy" ? MethodStatus::unsupported : MethodStatus::absent;
    }
    return is_one_of(name, {"start", "stop", "step", "mapping", "isdisjoint", "send", "throw", "close"}) && sequence->kind != SequenceKind::tuple
               ? MethodStatus::unsupported
               : MethodStatus::absent;
  }
  if (as_number(v)) {
    return is_one_of(name, {"real", "imag", "numerator", "denominator", "bit_length", "bit_count", "conjugate", "is_integer", "hex", "as_integer_ratio", "to_bytes", "from_bytes", "fromhex"})
               ? MethodStatus::unsupported
               : MethodStatus::absent;
  }
  if (const auto* callable = std::get_if<std::shared_ptr<Callable>>(&v)) {
    if ((*callable)->kind == CallableKind::cycler && name == "next") return MethodStatus::known;
    return is_one_of(name, {"name", "arguments", "catch_kwargs", "catch_varargs", "caller", "reset", "items", "pos", "sep", "used", "fromkeys"})
               ? MethodStatus::unsupported
               : MethodStatus::absent;
  }
  return MethodStatus::absent;
}

Value call_method(Interpreter& interpreter, const Value& receiver, std::string_view name, const Arguments& arguments) {
  const Methods* methods = methods_of(receiver);
  check(methods && methods->contains(name), "a bound method exists");
  if (const auto* string = std::get_if<Text>(&receiver)) {
    if (string->markup) raise("methods of text from |safe are not supported");
    // Whatever the method, it walks the text a few times at most.
    constexpr std::uint64_t kBytesPerStep = 16;
    interpreter.budget().step(string->bytes->size() / kBytesPerStep);
    interpreter.budget().make_bytes(string->bytes->size());
  }
  return methods->find(name)->second({interpreter, receiver, name, arguments});
}

std::string replaced(Budget& budget, std::string_view whole, std::string_view old, std::string_view with, std::int64_t count) {
  budget.search(whole.size(), old.size());
  std::string out;
  std::size_t from = 0;
  // An empty `old` is found before every character and at the end.
  for (std::int64_t done = 0; count < 0 || done < count; ++done) {
    const std::size_t at = whole.find(old, from);
    if (at == std::string_view::npos) break;
    budget.make_bytes(with.size() + 1);
    out += whole.substr(from, at - from);
    out += with;
    from = at + old.size();
    if (old.empty()) {
      if (from == whole.size()) return out;
      const std::size_t bytes = code_point_bytes(whole.substr(from));
      out += whole.substr(from, bytes);
      from += bytes;
    }
  }
  out += whole.substr(from);
  budget.make_bytes(out.size());
  return out;
}

}  // namespace keel::jinja
