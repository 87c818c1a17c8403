// CUDA memory, order and errors. Owners are move-only; kernels take a cudaStream_t first, allocate and synchronise nothing.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <type_traits>
#include <utility>

#include "base/error.h"

namespace keel::cuda {

// Throws Error, or OutOfMemory where that is what CUDA says, naming the call and CUDA's own words.
[[noreturn]] void failed(cudaError_t error, const char* what, const char* file, int line);
inline void check(cudaError_t error, const char* what, const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  if (error != cudaSuccess) [[unlikely]] failed(error, what, file, line);
}
// After a kernel launch.
inline void check_launch(const char* kernel, const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  check(cudaGetLastError(), kernel, file, line);
}

struct DeviceInfo {
  std::string name;
  int major = 0, minor = 0;  // compute capability
  int multiprocessors = 0;
  std::int64_t memory_bytes = 0, l2_bytes = 0;
  std::string driver, runtime;  // the CUDA that they are for: "13.0"
  std::string driver_version;   // "580.159.04"; empty where NVML is not there to ask
  std::string bus_id;           // "0000:18:00.0"
};

// Why keel's kernels do not run on such a device; empty where they do.
std::string refusal_of(const DeviceInfo& device);

// Of device 0 as CUDA_VISIBLE_DEVICES shows it. `reason` says why there is none that keel can use.
struct FoundDevice {
  bool present = false;  // a device is there, though perhaps not usable
  bool usable = false;
  DeviceInfo info;
  std::string reason;
};
FoundDevice find_device();

std::int64_t free_device_bytes();

enum class MemoryKind { device, pinned };  // pinned: host memory that the device can copy from and to without staging
enum class MemoryUse { weights, workspace, cache };
// 256-byte aligned, uninitialised. Throws OutOfMemory naming `what` and the bytes that are free.
void* allocate(MemoryKind kind, std::size_t bytes, const char* what, MemoryUse use = MemoryUse::workspace);
void release(MemoryKind kind, void* memory);

// Device memory that allocate() gave this process and release() has not taken back.
struct HeldMemory {
  std::int64_t weights = 0, workspace = 0, cache = 0;
  std::int64_t blocks = 0;
  std::int64_t peak = 0;  // the most bytes held at once so far
  std::int64_t bytes() const { return weights + workspace + cache; }
};
HeldMemory held_memory();

template <class T, MemoryKind kKind>
class Memory {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  Memory() = default;
  Memory(std::size_t size, const char* what, MemoryUse use = MemoryUse::workspace)
      : data_(static_cast<T*>(allocate(kKind, size * sizeof(T), what, use))), size_(size) {}
  Memory(Memory&& other) noexcept : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  Memory& operator=(Memory&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }
  ~Memory() { release(kKind, data_); }

  T* data() { return data_; }
  const T* data() const { return data_; }
  std::size_t size() const { return size_; }
  std::int64_t bytes() const { return static_cast<std::int64_t>(size_ * sizeof(T)); }
  std::span<T> span() { return {data_, size_}; }

 private:
  T* data_ = nullptr;
  std::size_t size_ = 0;
};
template <class T>
using DeviceBuffer = Memory<T, MemoryKind::device>;
template <class T>
using PinnedBuffer = Memory<T, MemoryKind::pinned>;

template <class T>
void copy_to_device(cudaStream_t stream, T* device, const T* host, std::size_t count) {
  check(cudaMemcpyAsync(device, host, count * sizeof(T), cudaMemcpyHostToDevice, stream), "copy to the device");
}
template <class T>
void copy_to_host(cudaStream_t stream, T* host, const T* device, std::size_t count) {
  check(cudaMemcpyAsync(host, device, count * sizeof(T), cudaMemcpyDeviceToHost, stream), "copy from the device");
}

class Stream {
 public:
  Stream();
  Stream(const Stream&) = delete;
  ~Stream();
  operator cudaStream_t() const { return stream_; }
  void synchronize() const;

 private:
  cudaStream_t stream_ = nullptr;
};

class Event {
 public:
  Event();
  Event(const Event&) = delete;
  ~Event();
  void record(cudaStream_t stream);
  float milliseconds_since(const Event& start) const;  // waits for this event

 private:
  cudaEvent_t event_ = nullptr;
};

// What `capture` launches, recorded once and replayed. Replays see what device memory holds then.
class StepGraph {
 public:
  StepGraph() = default;
  template <class Capture>
  StepGraph(cudaStream_t stream, Capture&& capture) {
    begin(stream);
    try {
      capture();
    } catch (...) {
      abandon(stream);
      throw;
    }
    end(stream);
  }
  StepGraph(StepGraph&& other) noexcept : graph_(std::exchange(other.graph_, nullptr)) {}
  StepGraph& operator=(StepGraph&& other) noexcept {
    std::swap(graph_, other.graph_);
    return *this;
  }
  ~StepGraph();
  explicit operator bool() const { return graph_ != nullptr; }
  void launch(cudaStream_t stream) const;

 private:
  static void begin(cudaStream_t stream);
  void end(cudaStream_t stream);
  static void abandon(cudaStream_t stream);
  cudaGraphExec_t graph_ = nullptr;
};

// A named range in profilers' timelines, for the life of the object.
class ProfileRange {
 public:
  explicit ProfileRange(const char* name);
  ProfileRange(const ProfileRange&) = delete;
  ~ProfileRange();
};

}  // namespace keel::cuda
