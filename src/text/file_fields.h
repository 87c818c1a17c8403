// Typed look-ups in a JSON object that was read from an untrusted file: a wrong type throws Error naming file and key.
#pragma once

#include <nlohmann/json.hpp>

#include <cstdint>
#include <string>
#include <string_view>

namespace keel {

// `where`: the file, and the construct within it, as messages should name it.
struct FileFields {
  const nlohmann::json& object;
  std::string where;

  // Throws Error unless `object` is one.
  FileFields(const nlohmann::json& object, std::string where);

  bool has(const char* key) const;  // there, and not null
  const nlohmann::json& at(const char* key) const;
  std::string text(const char* key) const;
  std::string text_or(const char* key, std::string otherwise) const;
  bool flag_or(const char* key, bool otherwise) const;
  std::int64_t integer(const char* key) const;
  const nlohmann::json& array(const char* key) const;
  FileFields inside(const char* key) const;
};

nlohmann::json parse_json(std::string_view text, const std::string& where);

}  // namespace keel
