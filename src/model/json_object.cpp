#include "model/json_object.h"

#include <cmath>
#include <utility>

#include "base/error.h"
#include "base/json.h"
#include "files/mapped_file.h"
#include "files/printable.h"

namespace keel {
namespace {

using Json = nlohmann::json;

constexpr std::size_t kMaxFileBytes = 64u << 20;  // real configurations have some kilobytes
constexpr std::int64_t kMaxTokenId = INT32_MAX;

bool is_id(const Json& value) {
  return value.is_number_unsigned() &&
         value.get<std::uint64_t>() <= static_cast<std::uint64_t>(kMaxTokenId);
}

}  // namespace

JsonObject JsonObject::read(const std::filesystem::path& path) {
  const MappedFile file(path);
  if (file.bytes().size() > kMaxFileBytes) {
    fail("{}: wanted at most {} bytes of JSON, found {}",
         path.string(),
         kMaxFileBytes,
         file.bytes().size());
  }
  const std::string_view text(reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size());
  if (const auto problem = json_problem(text)) fail("{}: {}", path.string(), *problem);
  return JsonObject(path.string(), Json::parse(text));
}

JsonObject::JsonObject(std::string label, Json object)
    : label_(std::move(label)), object_(std::move(object)) {
  if (!object_.is_object()) fail("{}: wanted a JSON object, found {}", label_, object_.type_name());
}

const Json* JsonObject::find(std::string_view key) const {
  const auto entry = object_.find(key);
  return entry == object_.end() || entry->is_null() ? nullptr : &*entry;
}

std::string JsonObject::text(std::string_view key) const {
  const Json* value = find(key);
  return value == nullptr ? "nothing" : printable(value->dump());
}

void JsonObject::wrong(std::string_view key, std::string_view wanted) const {
  fail("{}: {}: wanted {}, found {}", label_, key, wanted, text(key));
}

std::optional<std::int64_t> JsonObject::integer(std::string_view key,
                                                std::int64_t least,
                                                std::int64_t most) const {
  const Json* value = find(key);
  if (value == nullptr) return std::nullopt;
  const bool fits = value->is_number_unsigned()
                        ? value->get<std::uint64_t>() <= static_cast<std::uint64_t>(INT64_MAX)
                        : value->is_number_integer();
  if (!fits || value->get<std::int64_t>() < least || value->get<std::int64_t>() > most) {
    wrong(key, fmt::format("an integer of {} to {}", least, most));
  }
  return value->get<std::int64_t>();
}

std::optional<double> JsonObject::number(std::string_view key) const {
  const Json* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_number() || !std::isfinite(value->get<double>())) wrong(key, "a number");
  return value->get<double>();
}

std::optional<bool> JsonObject::boolean(std::string_view key) const {
  const Json* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_boolean()) wrong(key, "true or false");
  return value->get<bool>();
}

std::optional<std::string> JsonObject::string(std::string_view key) const {
  const Json* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_string()) wrong(key, "a string");
  return value->get<std::string>();
}

std::optional<std::vector<double>> JsonObject::numbers(std::string_view key) const {
  const Json* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_array()) wrong(key, "an array of numbers");
  std::vector<double> numbers;
  for (const Json& element : *value) {
    if (!element.is_number()) wrong(key, "an array of numbers");
    numbers.push_back(element.get<double>());
  }
  return numbers;
}

std::optional<std::vector<std::string>> JsonObject::strings(std::string_view key) const {
  const Json* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_array()) wrong(key, "an array of strings");
  std::vector<std::string> strings;
  for (const Json& element : *value) {
    if (!element.is_string()) wrong(key, "an array of strings");
    strings.push_back(element.get<std::string>());
  }
  return strings;
}

std::optional<JsonObject> JsonObject::object(std::string_view key) const {
  const Json* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_object()) wrong(key, "an object");
  return JsonObject(fmt::format("{}: {}", label_, key), *value);
}

std::vector<std::int32_t> JsonObject::token_ids(std::string_view key) const {
  const Json* value = find(key);
  if (value == nullptr) return {};
  const Json list = value->is_array() ? *value : Json::array({*value});
  std::vector<std::int32_t> ids;
  for (const Json& element : list) {
    if (!is_id(element)) wrong(key, "a token id or an array of them");
    ids.push_back(element.get<std::int32_t>());
  }
  return ids;
}

bool JsonObject::holds_objects() const {
  for (const Json& value : object_) {
    if (value.is_object()) return true;
  }
  return false;
}

std::int64_t JsonObject::need_integer(std::string_view key,
                                      std::int64_t least,
                                      std::int64_t most) const {
  const auto value = integer(key, least, most);
  if (!value) wrong(key, fmt::format("an integer of {} to {}", least, most));
  return *value;
}

double JsonObject::need_number(std::string_view key) const {
  const auto value = number(key);
  if (!value) wrong(key, "a number");
  return *value;
}

}  // namespace keel
