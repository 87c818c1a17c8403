#include "kernels/cpu_features.h"

#include "kernels/cpu_targets.h"

#include <hwy/highway.h>

#include <fmt/ranges.h>

#include <cstdlib>

#include "base/error.h"

namespace keel {
namespace {

// What the processor can do, asked before anything is forced.
std::int64_t available() {
  static const std::int64_t targets = hwy::SupportedTargets() & HWY_TARGETS;
  return targets;
}

// Highway orders its bits best first, so the lowest is the choice.
std::int64_t lowest_bit(std::int64_t targets) {
  return targets & -targets;
}

std::int64_t g_chosen = 0;

void use(std::int64_t target) {
  g_chosen = target;
  // Each source falls back to its own best target at or below the choice, should it not contain the choice itself.
  hwy::SetSupportedTargetsForTest(available() & ~(target - 1));
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

}  // namespace

std::vector<std::string> supported_targets() {
  std::vector<std::string> names;
  for (std::int64_t left = available(); left != 0; left &= left - 1) {
    names.emplace_back(hwy::TargetName(lowest_bit(left)));
  }
  return names;
}

void force_target(std::string_view name) {
  for (std::int64_t left = available(); left != 0; left &= left - 1) {
    if (name == hwy::TargetName(lowest_bit(left))) return use(lowest_bit(left));
  }
  fail("KEEL_CPU_TARGET={} is not among this processor's and build's: {}",
       name,
       fmt::join(supported_targets(), ", "));
}

void choose_target_once() {
  static const bool chosen = [] {
    const char* name = std::getenv("KEEL_CPU_TARGET");
    if (name != nullptr && *name != '\0') {
      force_target(name);
    } else {
      use(lowest_bit(available()));
    }
    return true;
  }();
  (void)chosen;
}

std::string chosen_target() {
  choose_target_once();
  return hwy::TargetName(g_chosen);
}

}  // namespace keel
