// Requests' JSON: parsed with bounds, read field by field with the type checked.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "server/openai/errors.h"

namespace keel {

inline constexpr int kMaxJsonDepth = 64;
// Objects keep their order, so a lookup is a walk: without a bound, building a wide one takes quadratic time.
inline constexpr int kMaxJsonKeys = 1024;

// Throws RequestError saying where the text stops being JSON, or which bound it passes. Strings are valid UTF-8.
Json parse_json(std::string_view text);

// "string \"abc\"", "number 3.5", "array of 3": for messages that say what was found.
std::string describe(const Json& value);

// One object's fields. A field that is absent or null reads as nothing; one of another type throws RequestError with
// its name, what was wanted and what was found.
class JsonFields {
 public:
  explicit JsonFields(const Json& object, std::string path = "");

  const Json* find(std::string_view name);
  std::optional<bool> boolean(std::string_view name);
  // 5.0 counts as an integer.
  std::optional<std::int64_t> integer(std::string_view name,
                                      std::int64_t least = INT64_MIN,
                                      std::int64_t most = INT64_MAX);
  std::optional<double> number(std::string_view name);
  std::optional<std::string> string(std::string_view name);
  const Json* array(std::string_view name);
  const Json* object(std::string_view name);

  std::string path(std::string_view name) const;  // "stream_options.include_usage"
  std::vector<std::string> unread() const;        // names never asked for

 private:
  const Json& object_;
  std::string path_;
  std::set<std::string, std::less<>> read_;
};

// The value as an integer in [least, most], else RequestError for `path`.
std::int64_t integer_value(const Json& value,
                           const std::string& path,
                           std::int64_t least = INT64_MIN,
                           std::int64_t most = INT64_MAX);
double number_value(const Json& value, const std::string& path);

}  // namespace keel
