// Where an operation runs and in which order. The CPU stream runs now, on its worker pool.
#pragma once

#include "base/worker_pool.h"

namespace keel {

// A view; the pool must outlive it. Every operation takes its stream first.
struct Stream {
  WorkerPool* workers;
};

}  // namespace keel
