// Which of the compiled instruction sets the kernels use on this processor.
#pragma once

#include <string>
#include <vector>

namespace keel {

// "AVX3_ZEN4", "AVX2", … (Highway's target names), best first, as this processor supports and this build contains.
std::vector<std::string> supported_targets();
// The one in use. KEEL_CPU_TARGET=<name> in the environment forces another; an unknown name throws Error.
std::string chosen_target();

}  // namespace keel
