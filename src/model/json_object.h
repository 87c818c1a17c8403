// Typed look-ups in a JSON object from a file that nobody vouches for. Errors name the file and the key.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace keel {

class JsonObject {
 public:
  static JsonObject read(const std::filesystem::path& path);
  // `label` names the object in errors: "path/config.json" or "path/config.json: rope_scaling".
  JsonObject(std::string label, nlohmann::json object);

  const std::string& label() const { return label_; }
  bool has(std::string_view key) const { return find(key) != nullptr; }  // null counts as absent
  bool contains(std::string_view key) const { return object_.contains(key); }  // null too

  // nullopt where the key is absent or null; Error where it holds another type or lies outside the range.
  std::optional<std::int64_t> integer(std::string_view key,
                                      std::int64_t least,
                                      std::int64_t most) const;
  std::optional<double> number(std::string_view key) const;  // finite
  std::optional<bool> boolean(std::string_view key) const;
  std::optional<std::string> string(std::string_view key) const;
  std::optional<std::vector<double>> numbers(std::string_view key) const;
  std::optional<std::vector<std::string>> strings(std::string_view key) const;
  std::optional<JsonObject> object(std::string_view key) const;
  std::vector<std::int32_t> token_ids(
      std::string_view key) const;  // one id or a list; empty where absent
  bool empty() const { return object_.empty(); }
  bool holds_objects() const;  // is any value an object?

  // The same, Error where absent.
  std::int64_t need_integer(std::string_view key, std::int64_t least, std::int64_t most) const;
  double need_number(std::string_view key) const;

  std::string text(std::string_view key) const;  // the value as JSON, shortened, for messages

 private:
  const nlohmann::json* find(std::string_view key) const;
  [[noreturn]] void wrong(std::string_view key, std::string_view wanted) const;
  std::string label_;
  nlohmann::json object_;
};

}  // namespace keel
