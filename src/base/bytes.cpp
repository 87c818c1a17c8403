#include "base/bytes.h"

#include <cctype>
#include <cmath>
#include <cstdlib>

#include "base/option_error.h"

namespace keel {

std::int64_t parse_bytes(std::string_view text) {
  const std::string owned(text);
  const auto wanted = [&] {
    refuse_option("'{}' is not a size: wanted a number with an optional unit, such as 2GiB, 512MiB or 4096", text);
  };
  if (owned.empty() || !(std::isdigit(static_cast<unsigned char>(owned[0])) || owned[0] == '.')) wanted();
  char* end = nullptr;
  const double number = std::strtod(owned.c_str(), &end);
  std::string unit(end);
  for (char& c : unit) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  double factor = 0;
  if (unit.empty() || unit == "b") factor = 1;
  constexpr std::string_view kLetters = "kmgt";
  for (std::size_t i = 0; i < kLetters.size(); ++i) {
    const std::string letter(1, kLetters[i]);
    if (unit == letter || unit == letter + "ib") factor = std::pow(1024.0, i + 1.0);
    if (unit == letter + "b") factor = std::pow(1000.0, i + 1.0);
  }
  if (factor == 0 || !std::isfinite(number) || owned.find('x') != std::string::npos) wanted();
  const double bytes = number * factor;
  if (bytes >= 0x1p63) refuse_option("'{}' is more bytes than can be addressed", text);
  return static_cast<std::int64_t>(bytes);
}

std::string format_bytes(std::int64_t bytes) {
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  int unit = 0;
  while (std::abs(value) >= 1024 && unit < 4) value /= 1024, ++unit;
  return unit == 0 ? fmt::format("{} B", bytes) : fmt::format("{:.2f} {}", value, kUnits[unit]);
}

}  // namespace keel
