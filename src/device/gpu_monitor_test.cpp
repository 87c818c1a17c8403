#include "device/gpu_monitor.h"

#include <gtest/gtest.h>

namespace keel {
namespace {

TEST(GpuMonitor, SaysWhyItKnowsNothing) {
  GpuMonitor absent("0000:18:00.0", "libno-such-nvml.so.1");
  EXPECT_NE(absent.problem().find("libno-such-nvml.so.1"), std::string::npos) << absent.problem();
  GpuMonitor other("0000:18:00.0", "libc.so.6");
  EXPECT_EQ(other.problem(), "libc.so.6 has no nvmlInit_v2");
  absent.start();
  EXPECT_TRUE(absent.stop().empty());
  EXPECT_TRUE(absent.driver().empty());
}

}  // namespace
}  // namespace keel
