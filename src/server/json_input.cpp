#include "server/json_input.h"

#include <fmt/format.h>

#include <cmath>

#include "base/json.h"

namespace keel {
namespace {

[[noreturn]] void wrong(const std::string& path, std::string_view wanted, const Json& found) {
  refuse(path, fmt::format("{}: wanted {}, found {}", path, wanted, describe(found)));
}

std::string interval(std::int64_t least, std::int64_t most) {
  if (least == INT64_MIN && most == INT64_MAX) return "an integer";
  if (most == INT64_MAX) return fmt::format("an integer of at least {}", least);
  if (least == INT64_MIN) return fmt::format("an integer of at most {}", most);
  return fmt::format("an integer in [{}, {}]", least, most);
}

}  // namespace

Json parse_json(std::string_view text) {
  if (const auto problem = json_problem(text, {.depth = kMaxJsonDepth, .keys = kMaxJsonKeys})) refuse("", *problem);
  return Json::parse(text);
}

std::string describe(const Json& value) {
  switch (value.type()) {
    case Json::value_t::null: return "null";
    case Json::value_t::boolean: return value.get<bool>() ? "true" : "false";
    case Json::value_t::string: return fmt::format("string \"{}\"", shortened(value.get<std::string>()));
    case Json::value_t::array: return fmt::format("array of {}", value.size());
    case Json::value_t::object: return "object";
    default: return "number " + value.dump();
  }
}

std::int64_t integer_value(const Json& value, const std::string& path, std::int64_t least, std::int64_t most) {
  std::int64_t integer = 0;
  if (value.is_number_unsigned()) {
    const auto wide = value.get<std::uint64_t>();
    if (wide > static_cast<std::uint64_t>(INT64_MAX)) wrong(path, interval(least, most), value);
    integer = static_cast<std::int64_t>(wide);
  } else if (value.is_number_integer()) {
    integer = value.get<std::int64_t>();
  } else if (value.is_number_float() && std::floor(value.get<double>()) == value.get<double>() &&
             std::abs(value.get<double>()) < 9e15) {  // doubles below 2^53 are exact
    integer = static_cast<std::int64_t>(value.get<double>());
  } else {
    wrong(path, interval(least, most), value);
  }
  if (integer < least || integer > most) wrong(path, interval(least, most), value);
  return integer;
}

double number_value(const Json& value, const std::string& path) {
  if (!value.is_number() || !std::isfinite(value.get<double>())) wrong(path, "a finite number", value);
  return value.get<double>();
}

JsonFields::JsonFields(const Json& object, std::string path) : object_(object), path_(std::move(path)) {
  if (!object.is_object()) {
    refuse(path_, fmt::format("{}: wanted an object, found {}", path_.empty() ? "the request" : path_,
                              describe(object)));
  }
}

std::string JsonFields::path(std::string_view name) const {
  return path_.empty() ? std::string(name) : fmt::format("{}.{}", path_, name);
}

const Json* JsonFields::find(std::string_view name) {
  read_.emplace(name);
  const auto found = object_.find(std::string(name));
  return found == object_.end() || found->is_null() ? nullptr : &*found;
}

std::optional<bool> JsonFields::boolean(std::string_view name) {
  const Json* value = find(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_boolean()) wrong(path(name), "true or false", *value);
  return value->get<bool>();
}

std::optional<std::int64_t> JsonFields::integer(std::string_view name, std::int64_t least, std::int64_t most) {
  const Json* value = find(name);
  if (value == nullptr) return std::nullopt;
  return integer_value(*value, path(name), least, most);
}

std::optional<double> JsonFields::number(std::string_view name) {
  const Json* value = find(name);
  if (value == nullptr) return std::nullopt;
  return number_value(*value, path(name));
}

std::optional<std::string> JsonFields::string(std::string_view name) {
  const Json* value = find(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_string()) wrong(path(name), "a string", *value);
  return value->get<std::string>();
}

const Json* JsonFields::array(std::string_view name) {
  const Json* value = find(name);
  if (value != nullptr && !value->is_array()) wrong(path(name), "an array", *value);
  return value;
}

const Json* JsonFields::object(std::string_view name) {
  const Json* value = find(name);
  if (value != nullptr && !value->is_object()) wrong(path(name), "an object", *value);
  return value;
}

std::vector<std::string> JsonFields::unread() const {
  std::vector<std::string> names;
  for (const auto& [name, value] : object_.items()) {
    if (!read_.contains(name)) names.push_back(name);
  }
  return names;
}

}  // namespace keel
