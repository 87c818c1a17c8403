// Sizes past which a header is nonsense rather than a model: every product of two or three of them fits 63 bits.
#pragma once

#include <cstdint>
#include <string>

#include "model/config.h"

namespace keel {

inline constexpr std::int64_t kMostLayers = 4096;
inline constexpr std::int64_t kMostHidden = 1 << 20;
inline constexpr std::int64_t kMostIntermediate = 1 << 24;
inline constexpr std::int64_t kMostHeads = 1 << 14;
inline constexpr std::int64_t kMostVocabulary = 1 << 24;
inline constexpr std::int64_t kMostPositions = INT32_MAX;
inline constexpr std::int64_t kMostHeadDim = 256;  // and a multiple of 16

// What every source of a config must fulfil; Error naming the file.
void check_geometry(const std::string& label, const ModelConfig& config);

}  // namespace keel
