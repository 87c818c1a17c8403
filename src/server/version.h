#pragma once

namespace keel {

inline constexpr const char* kVersion = KEEL_VERSION;  // the project's, from CMake

}  // namespace keel
