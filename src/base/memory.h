// How much memory a process may still take.
#pragma once

#include <cstdint>
#include <filesystem>

namespace keel {

// What the kernel could hand out to this process: free memory with the file cache, cut to what the memory limits of its
// control groups (cgroup v1 or v2, its own and those around it) leave. `root` is where /proc and /sys are, for the tests.
std::int64_t available_memory_bytes(const std::filesystem::path& root = "/");

}  // namespace keel
