#include "base/memory.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <optional>
#include <string>
#include <string_view>

namespace keel {
namespace {

namespace fs = std::filesystem;

// The files of a version of control groups. Both count pages of files that were read, which the kernel takes back.
struct GroupFiles {
  const char* limit;
  const char* usage;
  std::string_view reclaimable;  // a line of memory.stat
};
constexpr GroupFiles kVersion1{"memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"};
constexpr GroupFiles kVersion2{"memory.max", "memory.current", "inactive_file"};

// Nothing where the file is absent or says "max".
std::optional<std::int64_t> number_in(const fs::path& file) {
  std::int64_t number;
  if (std::ifstream in(file); in >> number) return number;
  return std::nullopt;
}

// The number after `name` in lines of a name and a number.
std::optional<std::int64_t> line_of(const fs::path& file, std::string_view name) {
  std::ifstream in(file);
  for (std::string key; in >> key; in.ignore(256, '\n')) {
    if (std::int64_t number; key == name && in >> number) return number;
  }
  return std::nullopt;
}

// The least that a group or one of those around it, up to the mount, leaves.
std::int64_t left_by_groups(const fs::path& mount, const fs::path& group, const GroupFiles& files, std::int64_t most) {
  for (fs::path path = group.relative_path();; path = path.parent_path()) {
    const fs::path folder = path.empty() ? mount : mount / path;
    const auto limit = number_in(folder / files.limit), usage = number_in(folder / files.usage);
    if (limit && usage) {
      const std::int64_t held = *usage - line_of(folder / "memory.stat", files.reclaimable).value_or(0);
      most = std::min(most, std::max<std::int64_t>(0, *limit - held));
    }
    if (path.empty()) return most;
  }
}

}  // namespace

std::int64_t available_memory_bytes(const fs::path& root) {
  const std::optional<std::int64_t> meminfo_kib = line_of(root / "proc/meminfo", "MemAvailable:");
  std::int64_t available = meminfo_kib ? *meminfo_kib << 10
                                       : static_cast<std::int64_t>(sysconf(_SC_AVPHYS_PAGES)) * sysconf(_SC_PAGESIZE);
  std::ifstream groups(root / "proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {  // number:controllers:path
    const std::size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    const fs::path group = line.substr(second + 1), mounts = root / "sys/fs/cgroup";
    if (controllers == ",,") {
      available = left_by_groups(mounts, group, kVersion2, available);
      available = left_by_groups(mounts / "unified", group, kVersion2, available);
    } else if (controllers.find(",memory,") != std::string::npos) {
      available = left_by_groups(mounts / "memory", group, kVersion1, available);
    }
  }
  return available;
}

}  // namespace keel
