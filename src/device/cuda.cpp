#include "device/cuda.h"

#include <nvtx3/nvToolsExt.h>

#include "base/bytes.h"
#include "device/gpu_monitor.h"

namespace keel::cuda {
namespace {

std::string version_text(int version) { return fmt::format("{}.{}", version / 1000, version % 1000 / 10); }

const std::string& driver_version(const std::string& bus_id) {
  static const std::string version = GpuMonitor(bus_id).driver();  // the same for every GPU
  return version;
}

}  // namespace

void failed(cudaError_t error, const char* what, const char* file, int line) {
  const std::string message = fmt::format("CUDA: {}: {} ({}; {}:{})", what, cudaGetErrorString(error), cudaGetErrorName(error), file, line);
  if (error != cudaErrorMemoryAllocation) throw Error(message);
  cudaGetLastError();  // clears it
  throw OutOfMemory(message);
}

FoundDevice find_device() {
  FoundDevice found;
  int count = 0;
  if (const cudaError_t error = cudaGetDeviceCount(&count); error != cudaSuccess || count == 0) {
    cudaGetLastError();  // clears it
    found.reason = error == cudaSuccess ? "no CUDA device is visible" : fmt::format("no CUDA device: {}", cudaGetErrorString(error));
    return found;
  }
  cudaDeviceProp properties;
  check(cudaGetDeviceProperties(&properties, 0), "properties of device 0");
  int driver = 0, runtime = 0;
  check(cudaDriverGetVersion(&driver), "driver version");
  check(cudaRuntimeGetVersion(&runtime), "runtime version");
  char bus_id[32] = "";
  check(cudaDeviceGetPCIBusId(bus_id, sizeof(bus_id), 0), "bus id of device 0");
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
  if (properties.major != 9 || properties.minor != 0) {
    found.reason = fmt::format("{} has compute capability {}.{}: keel's CUDA kernels are built for 9.0 (Hopper) alone",
                               properties.name, properties.major, properties.minor);
    return found;
  }
  found.usable = true;
  return found;
}

std::int64_t free_device_bytes() {
  std::size_t free = 0, total = 0;
  check(cudaMemGetInfo(&free, &total), "free device memory");
  return static_cast<std::int64_t>(free);
}

void* allocate(MemoryKind kind, std::size_t bytes, const char* what) {
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
  return memory;
}

void release(MemoryKind kind, void* memory) {
  if (memory == nullptr) return;
  if (kind == MemoryKind::device) {
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
