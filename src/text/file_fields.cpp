#include "text/file_fields.h"

#include "base/error.h"
#include "base/json.h"

namespace keel {

using nlohmann::json;

FileFields::FileFields(const json& object, std::string where)
    : object(object), where(std::move(where)) {
  if (!object.is_object())
    fail("{}: an object is needed, found {}", this->where, object.type_name());
}

bool FileFields::has(const char* key) const {
  const auto found = object.find(key);
  return found != object.end() && !found->is_null();
}

const json& FileFields::at(const char* key) const {
  if (!has(key)) fail("{}: \"{}\" is missing", where, key);
  return *object.find(key);
}

std::string FileFields::text(const char* key) const {
  const json& value = at(key);
  if (!value.is_string()) fail("{}: \"{}\" is {}, not a string", where, key, value.type_name());
  return value.get<std::string>();
}

std::string FileFields::text_or(const char* key, std::string otherwise) const {
  return has(key) ? text(key) : std::move(otherwise);
}

bool FileFields::flag_or(const char* key, bool otherwise) const {
  if (!has(key)) return otherwise;
  const json& value = at(key);
  if (!value.is_boolean())
    fail("{}: \"{}\" is {}, not true or false", where, key, value.type_name());
  return value.get<bool>();
}

std::int64_t FileFields::integer(const char* key) const {
  const json& value = at(key);
  if (!value.is_number_integer())
    fail("{}: \"{}\" is {}, not a whole number", where, key, value.type_name());
  return value.get<std::int64_t>();
}

const json& FileFields::array(const char* key) const {
  const json& value = at(key);
  if (!value.is_array()) fail("{}: \"{}\" is {}, not an array", where, key, value.type_name());
  return value;
}

FileFields FileFields::inside(const char* key) const {
  return FileFields(at(key), fmt::format("{}, \"{}\"", where, key));
}

json parse_json(std::string_view text, const std::string& where) {
  if (const auto problem = json_problem(text)) fail("{}: {}", where, *problem);
  return json::parse(text);
}

}  // namespace keel
