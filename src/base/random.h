// A counter-based generator: the n-th number of a seed, with no state to carry (SplitMix64's finalizer, Steele et al. 2014).
#pragma once

#include <cstdint>

namespace keel {

constexpr std::uint64_t mix64(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

constexpr std::uint64_t random_u64(std::uint64_t seed, std::uint64_t counter) {
  return mix64(mix64(seed) ^ (counter * 0xd1342543de82ef95u));
}

// Uniform in [0, 1).
constexpr double random_unit(std::uint64_t seed, std::uint64_t counter) {
  return static_cast<double>(random_u64(seed, counter) >> 11) * 0x1p-53;
}

}  // namespace keel
