// Names from a distrusted file, made fit for an error message.
#pragma once

#include <string>
#include <string_view>

namespace keel {

// 'name' in quotes: bytes outside printable ASCII as \xNN, cut after 100 bytes.
std::string printable(std::string_view name);

}  // namespace keel
