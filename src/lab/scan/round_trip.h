// What storing a head of keys or values in few bits and reading it back does to it.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace keel {

// INT of n bits: symmetric, one scale a token and head: scale = max|x| / (2^(n-1) - 1), x becomes scale · round(x / scale), ties to
// even. E4M3: what the cache stores and reads, x becomes scale · e4m3(x / scale), saturating, with a scale given (1 unless calibrated).
enum class Rounding : std::uint8_t { none, int4, int6, int8, e4m3 };

inline constexpr Rounding kRoundings[] = {Rounding::int4, Rounding::int6, Rounding::int8, Rounding::e4m3};
std::string_view name(Rounding rounding);  // "16-bit", "INT4", …, "E4M3"

// `scale` is E4M3's. A head with an infinity or NaN is left alone by INT, which has no scale for it.
void round_trip(Rounding rounding, float scale, std::span<float> head);

}  // namespace keel
