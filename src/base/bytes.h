// Byte counts as people write and read them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace keel {

// "2GiB", "512MiB", "1.5g", "4096": KiB/MiB/GiB/TiB and the bare letters k m g t are powers of 1024, KB/MB/GB/TB powers of
// 1000. Throws Error on anything else, negative values and values past 2^63.
std::int64_t parse_bytes(std::string_view text);

// "1.50 GiB", "512 B".
std::string format_bytes(std::int64_t bytes);

}  // namespace keel
