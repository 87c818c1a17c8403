// The forward pass of model/decoder.h on CUDA.
#pragma once

#include <memory>

#include "model/executor.h"

namespace keel::cuda {

// Throws Error naming what the device does not serve (head dims, cache types, memory).
std::unique_ptr<Executor> make_decoder(const LoadedModel& model,
                                       const KvLayout& layout,
                                       const ExecutorLimits& limits,
                                       WorkerPool& workers);

}  // namespace keel::cuda
