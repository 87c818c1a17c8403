// The threads that compute. parallel_for splits [0, tasks) among the workers and the caller and returns when all are done.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace keel {

// A worker that comes late, because something else has its processor, is not waited for: who is there takes its tasks.
//
// Thread rule: one caller at a time. A worker spins some microseconds for the next call, then sleeps, so that an idle
// engine costs nothing and a busy one pays no wake-up between two operations.
class WorkerPool {
 public:
  explicit WorkerPool(int threads);  // the caller is one of them; 0 = the processors this process may run on
  ~WorkerPool();
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  int threads() const { return static_cast<int>(workers_.size()) + 1; }

  // Calls body(task, worker) once for each task, worker in [0, threads()): tasks are taken in order, one at a time, so
  // make each worth at least some microseconds. The first exception of a task is thrown on, once
  // no task runs any more.
  void parallel_for(std::int64_t tasks, const std::function<void(std::int64_t task, int worker)>& body);

 private:
  void work(int worker);
  void run_tasks(int worker) noexcept;

  std::vector<std::thread> workers_;
  const std::function<void(std::int64_t, int)>* body_ = nullptr;
  std::int64_t tasks_ = 0;
  std::atomic<std::int64_t> next_task_{0};
  std::atomic<int> inside_{0};  // workers in run_tasks(), plus kOpen while they may enter
  std::atomic<std::uint64_t> generation_{0};
  std::atomic<bool> stopping_{false};
  std::exception_ptr failure_;  // of a task; guarded by mutex_ while tasks run
  std::mutex mutex_;
  std::condition_variable wake_;
};

int available_processors();

}  // namespace keel
