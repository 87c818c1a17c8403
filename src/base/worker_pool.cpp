#include "base/worker_pool.h"

#include <sched.h>

#include <utility>

#include "base/option_error.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace keel {
namespace {

constexpr int kOpen = 1 << 16;  // more than there are workers
constexpr int kSpins = 4000;   // about 50 µs: longer than the serial code between two operations of a step
constexpr int kYieldEach = 256;  // the thread waited for may be queued behind this one on the same processor

void pause_briefly(int spin) {
  if (spin % kYieldEach == kYieldEach - 1) return std::this_thread::yield();
#if defined(__x86_64__)
  _mm_pause();
#endif
}

}  // namespace

int available_processors() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) == 0) return std::max(1, CPU_COUNT(&set));
  return std::max(1u, std::thread::hardware_concurrency());
}

WorkerPool::WorkerPool(int threads) {
  if (threads < 0 || threads > 1024) refuse_option("threads must be 0 (one a processor) to 1024, found {}", threads);
  if (threads == 0) threads = available_processors();
  for (int i = 1; i < threads; ++i) workers_.emplace_back([this, i] { work(i); });
}

WorkerPool::~WorkerPool() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
    generation_.fetch_add(1, std::memory_order_release);
  }
  wake_.notify_all();
  for (auto& worker : workers_) worker.join();
}

void WorkerPool::run_tasks(int worker) noexcept {
  for (;;) {
    const std::int64_t task = next_task_.fetch_add(1, std::memory_order_relaxed);
    if (task >= tasks_) return;
    try {
      (*body_)(task, worker);
    } catch (...) {
      std::lock_guard lock(mutex_);
      if (!failure_) failure_ = std::current_exception();
    }
  }
}

void WorkerPool::parallel_for(std::int64_t tasks,
                              const std::function<void(std::int64_t, int)>& body) {
  if (tasks <= 0) return;
  if (workers_.empty() || tasks == 1) {
    for (std::int64_t task = 0; task < tasks; ++task) body(task, 0);
    return;
  }
  body_ = &body;
  tasks_ = tasks;
  next_task_.store(0, std::memory_order_relaxed);
  inside_.store(kOpen, std::memory_order_release);
  {
    std::lock_guard lock(mutex_);  // a worker about to sleep sees the new generation or our notification
    generation_.fetch_add(1, std::memory_order_release);
  }
  wake_.notify_all();
  run_tasks(0);
  inside_.fetch_sub(kOpen, std::memory_order_relaxed);
  for (int spin = 0; inside_.load(std::memory_order_acquire) != 0; spin = (spin + 1) % kYieldEach) pause_briefly(spin);
  if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
}

void WorkerPool::work(int worker) {
  std::uint64_t seen = 0;
  for (;;) {
    for (int spin = 0; spin < kSpins && generation_.load(std::memory_order_acquire) == seen; ++spin) {
      pause_briefly(spin);
    }
    if (generation_.load(std::memory_order_acquire) == seen) {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [&] { return generation_.load(std::memory_order_acquire) != seen; });
    }
    seen = generation_.load(std::memory_order_acquire);
    if (stopping_) return;
    int inside = inside_.load(std::memory_order_relaxed);
    while (inside >= kOpen && !inside_.compare_exchange_weak(inside, inside + 1, std::memory_order_acquire, std::memory_order_relaxed)) {
    }
    if (inside < kOpen) continue;  // came too late
    run_tasks(worker);
    inside_.fetch_sub(1, std::memory_order_release);
  }
}

}  // namespace keel
