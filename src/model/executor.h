// What computes a step's rows: the CPU's Decoder or CUDA's. The engine knows no other difference between devices.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/worker_pool.h"
#include "kv/pool.h"
#include "model/attention_router.h"
#include "model/decoder.h"

namespace keel {

enum class Device { cpu, cuda };

// "auto" is CUDA where this build has it and the machine a GPU that it serves, else the CPU. Throws Error saying why "cuda" is not to
// be had.
Device choose_device(std::string_view name);
#ifdef KEEL_CUDA
namespace cuda {
struct FoundDevice;
}
Device choose_device(std::string_view name, const cuda::FoundDevice& found);
#endif
PageOrder page_order(Device device);
PageMemory page_memory(Device device);

// What a device's own sampler needs of a request; the rest of a request's wishes are the host's.
struct DeviceSampling {
  double temperature;  // 0 = greedy
  double top_p, min_p;
  std::int32_t top_k;  // 0 = all
  std::uint64_t seed;
  std::uint64_t draw;
};

struct StepResult {
  std::span<const float> logits;          // [R, vocabulary]; empty when the device sampled every row
  std::span<const std::int32_t> tokens;   // [R]; empty where the device has no sampler. Rows without DeviceSampling: unspecified
  std::span<const RoutedSequence> routed;  // each sequence's way through attention, until the next forward; empty on devices with one
};

struct ExecutorLimits {
  std::int64_t max_tokens;      // rows of a step
  std::int64_t max_sequences;   // of a step
  std::int64_t max_logit_rows;  // at once
  std::int64_t max_context;     // tokens of a sequence
  bool graphs = true;           // CUDA: replay decode steps as graphs
  bool attention_plans = false;  // CUDA: build the common ones when bound
  bool profile_routes = false;   // CUDA: events round each route's launches of steps that are no graphs
  std::int64_t prefill_workspace_bytes = std::int64_t{256} << 20;  // CUDA: gathered keys and values
};

// What a device's memory is taken by. Bytes; zeros on the CPU.
struct DeviceMemory {
  std::int64_t weights = 0, workspace = 0, cache = 0;  // held by this process, as its allocator counts them
  std::int64_t peak = 0;    // the most of these three held at once so far
  std::int64_t in_use = 0;  // of `total`, as the driver counts: these, the context, modules, graphs and libraries, other programs
  std::int64_t total = 0;
  std::int64_t other() const { return in_use - weights - workspace - cache; }
};
DeviceMemory device_memory(Device device);

// Rows that went each way through attention, and why those that took a fallback did.
using RouteCounts = std::map<std::string, std::int64_t>;
// Seconds of the device, by route.
using RouteSeconds = std::map<std::string, double>;

// Thread rule: one call at a time.
class Executor {
 public:
  virtual ~Executor() = default;

  // What the cache may take where its user named no size: of the device's memory `utilization`, less all else that is in use once
  // steps run, which is measured. Before bind; CUDA only.
  virtual std::int64_t cache_bytes(double utilization);
  // The cache to write and read from now on; it must outlive the executor's last forward. Called once.
  virtual void bind(KvPool& pool) = 0;
  // `sampling`: [R], or empty for none. Results are valid until the next call.
  virtual StepResult forward(const StepRows& rows, std::span<const std::optional<DeviceSampling>> sampling) = 0;
  // Logits of other rows of the last forward, which must have had keep_all, at most max_logit_rows a call; valid until the next call.
  virtual std::span<const float> logits(std::span<const std::int64_t> rows) = 0;

  virtual std::int64_t max_logit_rows() const = 0;
  virtual std::int64_t weight_bytes() const = 0;  // as the device holds them
  virtual std::int64_t scratch_bytes() const = 0;
  virtual std::string description() const = 0;  // "CPU, 2 threads, kernels for AVX3", "NVIDIA H200, …"
  virtual RouteCounts routes() const { return {}; }
  virtual RouteSeconds route_seconds() const { return {}; }  // with ExecutorLimits::profile_routes
  // Decoder::on_new_kv's hook. Throws Error on devices that cannot call the host between two operations.
  virtual void on_new_kv(Decoder::KvHook hook);

  // For checks of what runs. Null ends the probing; while there is a probe CUDA replays no graphs, and a step without logit
  // rows may leave out its last layer's attention.
  virtual void probe_attention(AttentionProbe* probe) = 0;
  // Stores rows that need no rotation, by the writer that steps use: k and v are [rows, kv_heads, head_dim], at most max_tokens rows.
  virtual void store(std::int64_t layer, std::span<const float> k, std::span<const float> v, std::span<const std::int64_t> slots) = 0;
};

// `model` and `workers` must outlive the executor.
std::unique_ptr<Executor> make_executor(Device device,
                                        const LoadedModel& model,
                                        const KvLayout& layout,
                                        const ExecutorLimits& limits,
                                        WorkerPool& workers);

// One row of CUDA's capability table, asked of the kernels themselves; empty where this build has no CUDA.
struct CudaCell {
  KvFormat format;  // 16 bits stand for the model's type, f16 or bf16
  std::int64_t head_dim;
  std::string decode, native_prefill, plain_prefill;  // refusals; empty = served
};
std::vector<CudaCell> cuda_cells();

// Of the GPU: where NVML finds it, and the bytes a second of a kernel that only reads (a fifth of a second is spent on it). Empty and 0 without.
std::string device_bus_id(Device device);
double device_read_rate(Device device);

}  // namespace keel
