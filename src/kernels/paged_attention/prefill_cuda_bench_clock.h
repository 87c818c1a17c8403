// The clocks of all multiprocessors at a place in a stream, for benchmarks: time and cycles between two such places.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace keel::cuda {

struct ClockTick {
  std::int64_t cycles, nanoseconds;
};

void read_clocks(cudaStream_t stream, ClockTick* ticks, int multiprocessors);  // ticks: device, [multiprocessors]

}  // namespace keel::cuda
