// Over folders that look like /proc and /sys of a machine with 8 GiB available.
#include "base/memory.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>

#include "base/error.h"

namespace keel {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kMiB = 1 << 20;

class AvailableMemory : public testing::Test {
 protected:
  void SetUp() override {
    root_ = fs::temp_directory_path() / fmt::format("keel_memory_test_{}_{}", getpid(), ::testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::remove_all(root_);
    put("proc/meminfo", "MemTotal:       16777216 kB\nMemFree:         1048576 kB\nMemAvailable:    8388608 kB\n");
  }
  void TearDown() override { fs::remove_all(root_); }

  void put(const fs::path& file, const std::string& text) {
    fs::create_directories((root_ / file).parent_path());
    std::ofstream(root_ / file) << text;
  }
  std::int64_t mib() const { return available_memory_bytes(root_) / kMiB; }

  fs::path root_;
};

TEST_F(AvailableMemory, IsTheKernelsWithoutControlGroups) { EXPECT_EQ(mib(), 8192); }

TEST_F(AvailableMemory, IsWhatVersionTwoLeaves) {
  put("proc/self/cgroup", "0::/user.slice/keel.service\n");
  const fs::path outer = "sys/fs/cgroup/user.slice", inner = outer / "keel.service";
  put(inner / "memory.max", "max\n");
  put(inner / "memory.current", fmt::format("{}\n", 600 * kMiB));
  EXPECT_EQ(mib(), 8192);
  put(inner / "memory.max", fmt::format("{}\n", 2048 * kMiB));
  EXPECT_EQ(mib(), 1448);
  put(inner / "memory.stat", fmt::format("anon 1\ninactive_file {}\nactive_file 7\n", 500 * kMiB));
  EXPECT_EQ(mib(), 1948);
  put(outer / "memory.max", fmt::format("{}\n", 1024 * kMiB));
  put(outer / "memory.current", fmt::format("{}\n", 900 * kMiB));
  EXPECT_EQ(mib(), 124);
  put(outer / "memory.current", fmt::format("{}\n", 2000 * kMiB));
  EXPECT_EQ(mib(), 0);
}

TEST_F(AvailableMemory, IsWhatVersionOneLeaves) {
  put("proc/self/cgroup", "5:cpu,cpuacct:/a\n4:hugetlb,memory:/jobs/one\n0::/\n");
  const fs::path group = "sys/fs/cgroup/memory/jobs/one";
  put(group / "memory.limit_in_bytes", "9223372036854771712\n");
  put(group / "memory.usage_in_bytes", fmt::format("{}\n", 300 * kMiB));
  EXPECT_EQ(mib(), 8192);
  put(group / "memory.limit_in_bytes", fmt::format("{}\n", 1000 * kMiB));
  put(group / "memory.stat", fmt::format("inactive_file 0\ntotal_inactive_file {}\n", 200 * kMiB));
  EXPECT_EQ(mib(), 900);
}

// A container often sees its own group as the mount, while /proc names the path outside.
TEST_F(AvailableMemory, FindsAContainersLimitAtTheMount) {
  put("proc/self/cgroup", "4:memory:/docker/0123456789\n");
  put("sys/fs/cgroup/memory/memory.limit_in_bytes", fmt::format("{}\n", 512 * kMiB));
  put("sys/fs/cgroup/memory/memory.usage_in_bytes", fmt::format("{}\n", 12 * kMiB));
  EXPECT_EQ(mib(), 500);
}

TEST(ThisMachine, HasSomeMemory) { EXPECT_GT(available_memory_bytes(), 0); }

}  // namespace
}  // namespace keel
