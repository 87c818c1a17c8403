// What the processor reaches at best, to set measured kernels against.
#pragma once

#include <cstdint>
#include <span>

#include "base/worker_pool.h"

namespace keel {

// Reads every element once, a contiguous share for each thread.
float read_all(WorkerPool& workers, std::span<const float> values);
// Independent f32 multiply-adds in registers on every thread; returns how many operations (two each) that was.
std::int64_t multiply_add_burst(WorkerPool& workers);

}  // namespace keel
