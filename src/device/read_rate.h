// The rate of a kernel that only reads: what kernels bound by memory are set against.
#pragma once

#include "device/cuda.h"

namespace keel::cuda {

// Reads every byte once. `sink`: four bytes of device memory, as good as never written.
void read_only(cudaStream_t stream, const void* from, std::int64_t bytes, void* sink);

// Bytes a second over more memory than the L2 cache holds, the median of several reads after a tenth of a second of others; 0 where no
// memory is free for it.
double measured_read_rate();

}  // namespace keel::cuda
