// The device that the whole-model tests run on: KEEL_TEST_DEVICE=cuda in the environment, else the CPU.
#pragma once

#include <cstdlib>
#include <memory>

#include "model/executor.h"

namespace keel {

inline const char* test_device_name() {
  const char* name = std::getenv("KEEL_TEST_DEVICE");
  return name == nullptr ? "cpu" : name;
}
inline Device test_device() { return choose_device(test_device_name()); }

// A cache and an executor on it, for tests that feed rows themselves.
struct TestDecoder {
  TestDecoder(const LoadedModel& model, const KvLayout& layout, std::int64_t pages, ExecutorLimits limits)
      : workers(0),
        pool(layout, KvScales::unit(layout.geometry()), pages * layout.page_bytes(), page_memory(test_device())),
        executor(make_executor(test_device(), model, layout, limits, workers)) {
    executor->bind(pool);
  }
  std::span<const float> forward(const StepRows& rows) { return executor->forward(rows, {}).logits; }

  WorkerPool workers;
  KvPool pool;
  std::unique_ptr<Executor> executor;
};

}  // namespace keel
