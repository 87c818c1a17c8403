// Which of the compiled instruction sets the kernels use on this processor.
//
// A kernel source includes kernels/cpu_targets.h and Highway, and calls choose_target_once() before HWY_DYNAMIC_DISPATCH.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace keel {

// "AVX3_DL", "AVX2", … (Highway's target names), best first, as this processor supports and this build contains.
std::vector<std::string> supported_targets();
// The one in use. KEEL_CPU_TARGET=<name> in the environment forces another; an unknown name throws Error.
std::string chosen_target();

// Makes the choice at its first call; later calls cost one load.
void choose_target_once();
// For tests and benchmarks: uses `name` from now on. No kernel may be running. Throws Error as above.
void force_target(std::string_view name);

}  // namespace keel
