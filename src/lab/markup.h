// Text and numbers as SVG and HTML want them.
#pragma once

#include <string>
#include <string_view>

namespace keel {

// Text as XML content or attribute: markup escaped; what XML forbids (control characters, bad UTF-8) becomes U+FFFD.
std::string escaped(std::string_view text);

// A coordinate: one decimal at most, "0" rather than "-0".
std::string coordinate(double value);

// Characters (not bytes) of UTF-8 text, and about how wide they are drawn at a font size, in the same unit.
std::size_t characters(std::string_view text);
double text_width(std::string_view text, double font_size);

}  // namespace keel
