// Which devices are refused, what `--device` makes of that, and that every block of device memory is counted.
#include <gtest/gtest.h>

#include <optional>

#include "device/cuda.h"

namespace keel::cuda {
namespace {

TEST(CudaDevice, OtherThanHopperIsRefusedByWhatWasWantedAndFound) {
  for (const auto& [major, minor] : {std::pair{8, 0}, {8, 9}, {10, 0}, {12, 0}, {9, 1}}) {
    const std::string refusal = refusal_of({.name = "Some GPU", .major = major, .minor = minor});
    EXPECT_NE(refusal.find("Some GPU"), std::string::npos) << refusal;
    EXPECT_NE(refusal.find(fmt::format("compute capability {}.{}", major, minor)), std::string::npos) << refusal;
    EXPECT_NE(refusal.find("wanted 9.0"), std::string::npos) << refusal;
  }
  EXPECT_EQ(refusal_of({.name = "NVIDIA H200", .major = 9, .minor = 0}), "");
}

TEST(CudaMemory, IsCountedByItsUseUntilItIsReleased) {
  if (const FoundDevice found = find_device(); !found.usable) GTEST_SKIP() << found.reason;
  const HeldMemory before = held_memory();
  std::optional<DeviceBuffer<float>> weights(std::in_place, 1000, "weights", MemoryUse::weights), scratch(std::in_place, 500, "scratch");
  const PinnedBuffer<float> host(4000, "not the device's");
  void* cache = allocate(MemoryKind::device, 300, "the cache", MemoryUse::cache);
  HeldMemory held = held_memory();
  EXPECT_EQ(held.weights - before.weights, 4000);
  EXPECT_EQ(held.workspace - before.workspace, 2000);
  EXPECT_EQ(held.cache - before.cache, 300);
  EXPECT_EQ(held.blocks - before.blocks, 3);
  EXPECT_GE(held.peak, held.bytes());
  const std::int64_t most = held.peak;
  weights.reset();
  scratch.reset();
  release(MemoryKind::device, cache);
  held = held_memory();
  EXPECT_EQ(held.bytes(), before.bytes());
  EXPECT_EQ(held.blocks, before.blocks);
  EXPECT_EQ(held.peak, most);
  EXPECT_THROW(allocate(MemoryKind::device, std::size_t{1} << 50, "too much"), Error);
  EXPECT_EQ(held_memory().bytes(), before.bytes());
}

}  // namespace
}  // namespace keel::cuda
