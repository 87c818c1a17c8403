#include "device/cuda.h"

#include <nvtx3/nvToolsExt.h>

#include <algorithm>
#include <mutex>
#include <unordered_map>

#include "base/bytes.h"
#include "device/gpu_monitor.h"

namespace keel::cuda {
namespace {

std::string version_text(int version) { return fmt::format("{}.{}", version / 1000, version % 1000 / 10); }

const std::string& driver_version(const std::string& bus_id) {
  static const std::string version = GpuMonitor(bus_id).driver();  // the same for every GPU
  return version;
}

// Every block of device memory, in the one place that they all come through.
class Ledger {
 public:
  void add(void* memory, std::int64_t bytes, MemoryUse use) {
    std::lock_guard lock(mutex_);
    blocks_[memory] = {bytes, use};
    of(use) += bytes;
    ++held_.blocks;
    held_.peak = std::max(held_.peak, held_.bytes());
  }
  void remove(void* memory) {
    std::lock_guard lock(mutex_);
    const auto block = blocks_.find(memory);
    keel::check(block != blocks_.end(), "only what was allocated is released");
    of(block->second.use) -= block->second.bytes;
    --held_.blocks;
    blocks_.erase(block);
  }
  HeldMemory held() {
    std::lock_guard lock(mutex_);
    return held_;
  }

 private:
  struct Block {
    std::int64_t bytes;
    MemoryUse use;
  };
  std::int64_t& of(MemoryUse use) {
    return use == MemoryUse::weights ? held_.weights : use == MemoryUse::cache ? held_.cache : held_.workspace;
  }

  std::mutex mutex_;
  std::unordered_map<void*, Block> blocks_;
  HeldMemory held_;
};

Ledger& ledger() {
  static auto& ledger = *new Ledger;  // outlives what static objects hold
  return ledger;
}

}  // namespace

void failed(cudaError_t error, const char* what, const char* file, int line) {
  const std::string message = fmt::format("CUDA: {}: {} ({}; {}:{})", what, cudaGetErrorString(error), cudaGetErrorName(error), file, line);
  if (error != cudaErrorMemoryAllocation) throw Error(message);
  cudaGetLastError();  // clears it
  throw OutOfMemory(message);
}

std::string refusal_of(const DeviceInfo& device) {
  if (device.major == 9 && device.minor == 0) return "";
  return fmt::format("{} has compute capability {}.{}: wanted 9.0 (Hopper), for which alone keel's CUDA kernels are built", device.name,
                     device.major, device.minor);
}

FoundDevice find_device() {
  FoundDevice found;
  int count = 0;
  if (const cudaError_t error = cudaGetDeviceCount(&count); error != cudaSuccess || count == 0) {
    cudaGetLastError();  // clears it
    found.reason = error == cudaSuccess ? "no CUDA device is visible" : fmt::format("no CUDA device: {}", cudaGetErrorString(error));
    return found;
  }
  found.present = true;
  cudaDeviceProp properties;
  int driver = 0, runtime = 0;
  char bus_id[32] = "";
  for (const cudaError_t error : {cudaGetDeviceProperties(&properties, 0), cudaDriverGetVersion(&driver), cudaRuntimeGetVersion(&runtime),
                                  cudaDeviceGetPCIBusId(bus_id, sizeof(bus_id), 0)}) {
    if (error == cudaSuccess) continue;
    cudaGetLastError();
    found.reason = fmt::format("a CUDA device that does not say what it is: {} ({})", cudaGetErrorString(error), cudaGetErrorName(error));
    return found;
  }
  found.info = {.name = properties.name,
                .major = properties.major,
                .minor = properties.minor,
                .multiprocessors = properties.multiProcessorCount,
                .memory_bytes = static_cast<std::int64_t>(properties.totalGlobalMem),
                .l2_bytes = properties.l2CacheSize,
                .driver = version_text(driver),
                .runtime = version_text(runtime),
                .driver_version = driver_version(bus_id),
                .bus_id = bus_id};
  found.reason = refusal_of(found.info);
  found.usable = found.reason.empty();
  return found;
}

std::int64_t free_device_bytes() {
  std::size_t free = 0, total = 0;
  check(cudaMemGetInfo(&free, &total), "free device memory");
  return static_cast<std::int64_t>(free);
}

void* allocate(MemoryKind kind, std::size_t bytes, const char* what, MemoryUse use) {
  if (bytes == 0) return nullptr;
  void* memory = nullptr;
  const cudaError_t error = kind == MemoryKind::device ? cudaMalloc(&memory, bytes) : cudaMallocHost(&memory, bytes);
  if (error == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    if (kind == MemoryKind::device) {
      throw OutOfMemory(fmt::format("{} wants {} of device memory; {} are free", what, format_bytes(bytes), format_bytes(free_device_bytes())));
    }
    throw OutOfMemory(fmt::format("{} wants {} of pinned host memory, which is not to be had", what, format_bytes(bytes)));
  }
  check(error, what);
  if (kind == MemoryKind::device) ledger().add(memory, static_cast<std::int64_t>(bytes), use);
  return memory;
}

HeldMemory held_memory() { return ledger().held(); }

void release(MemoryKind kind, void* memory) {
  if (memory == nullptr) return;
  if (kind == MemoryKind::device) {
    ledger().remove(memory);
    cudaFree(memory);
  } else {
    cudaFreeHost(memory);
  }
}

Stream::Stream() { check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "a stream"); }
Stream::~Stream() { cudaStreamDestroy(stream_); }
void Stream::synchronize() const { check(cudaStreamSynchronize(stream_), "wait for the stream"); }

Event::Event() { check(cudaEventCreate(&event_), "an event"); }
Event::~Event() { cudaEventDestroy(event_); }
void Event::record(cudaStream_t stream) { check(cudaEventRecord(event_, stream), "record an event"); }
float Event::milliseconds_since(const Event& start) const {
  check(cudaEventSynchronize(event_), "wait for an event");
  float milliseconds = 0;
  check(cudaEventElapsedTime(&milliseconds, start.event_, event_), "time between events");
  return milliseconds;
}

void StepGraph::begin(cudaStream_t stream) {
  check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "start of a graph capture");
}

void StepGraph::end(cudaStream_t stream) {
  cudaGraph_t captured = nullptr;
  check(cudaStreamEndCapture(stream, &captured), "end of a graph capture");
  const cudaError_t error = cudaGraphInstantiate(&graph_, captured, 0);
  cudaGraphDestroy(captured);
  check(error, "a graph");
}

void StepGraph::abandon(cudaStream_t stream) {
  cudaGraph_t captured = nullptr;
  cudaStreamEndCapture(stream, &captured);
  if (captured != nullptr) cudaGraphDestroy(captured);
  cudaGetLastError();
}

StepGraph::~StepGraph() {
  if (graph_ != nullptr) cudaGraphExecDestroy(graph_);
}

void StepGraph::launch(cudaStream_t stream) const { check(cudaGraphLaunch(graph_, stream), "replay of a graph"); }

ProfileRange::ProfileRange(const char* name) { nvtxRangePushA(name); }
ProfileRange::~ProfileRange() { nvtxRangePop(); }

}  // namespace keel::cuda
