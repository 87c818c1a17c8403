#include "kernels/cpu_features.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace keel {
namespace {

TEST(CpuFeatures, UsesEachSupportedTargetWhenForced) {
  const std::string before = chosen_target();
  ASSERT_FALSE(supported_targets().empty());
  for (const std::string& name : supported_targets()) {
    force_target(name);
    EXPECT_EQ(chosen_target(), name);
  }
  force_target(before);
}

TEST(CpuFeatures, RefusesAnUnknownTargetByName) {
  const std::string before = chosen_target();
  try {
    force_target("AVX9");
    FAIL() << "AVX9 was accepted";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("AVX9"), std::string::npos);
    EXPECT_NE(std::string(error.what()).find(supported_targets().front()), std::string::npos);
  }
  EXPECT_EQ(chosen_target(), before);
}

}  // namespace
}  // namespace keel
