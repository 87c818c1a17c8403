// The time as records write it.
#pragma once

#include <ctime>
#include <string>

namespace keel {

// "2026-11-30T04:15:00Z"
inline std::string utc_time() {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  gmtime_r(&now, &utc);
  char text[32];
  return {text, std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &utc)};
}

}  // namespace keel
