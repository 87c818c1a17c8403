#include "model/executor.h"

#include "base/error.h"
#include "base/log.h"
#include "kernels/cpu_features.h"
#include "kernels/kv_write/kv_write.h"
#ifdef KEEL_CUDA
#include "device/cuda.h"
#include "device/read_rate.h"
#include "kernels/paged_attention/decode_cuda.h"
#include "kernels/paged_attention/prefill_cuda.h"
#include "model/cuda_decoder.h"
#endif

namespace keel {
namespace {

class CpuExecutor final : public Executor {
 public:
  CpuExecutor(const LoadedModel& model, const KvLayout& layout, const ExecutorLimits& limits, WorkerPool& workers)
      : stream_{&workers}, weight_bytes_(model.weights.bytes), decoder_(model, layout, limits.max_tokens, limits.max_logit_rows, workers.threads()) {}

  void bind(KvPool& pool) override { pool_ = &pool; }
  StepResult forward(const StepRows& rows, std::span<const std::optional<DeviceSampling>>) override {
    return {.logits = decoder_.forward(stream_, rows, *pool_), .tokens = {}};
  }
  std::span<const float> logits(std::span<const std::int64_t> rows) override { return decoder_.logits(stream_, rows); }
  std::int64_t max_logit_rows() const override { return decoder_.max_logit_rows(); }
  std::int64_t weight_bytes() const override { return weight_bytes_; }
  std::int64_t scratch_bytes() const override { return decoder_.scratch_bytes(); }
  void on_new_kv(Decoder::KvHook hook) override { decoder_.on_new_kv(std::move(hook)); }
  std::string description() const override {
    const int threads = stream_.workers->threads();
    return fmt::format("CPU, {} thread{}, kernels for {}", threads, threads == 1 ? "" : "s", chosen_target());
  }
  void probe_attention(AttentionProbe* probe) override { decoder_.probe_attention(probe); }
  void store(std::int64_t layer, std::span<const float> k, std::span<const float> v, std::span<const std::int64_t> slots) override {
    kv_write(stream_, {.k = k.data(), .v = v.data(), .slots = slots, .kv = pool_->layer(layer)});
  }

 private:
  Stream stream_;
  std::int64_t weight_bytes_;
  Decoder decoder_;
  KvPool* pool_ = nullptr;
};

}  // namespace

void Executor::on_new_kv(Decoder::KvHook) { fail("{}: new keys and values can be seen and changed on the CPU alone", description()); }

std::int64_t Executor::cache_bytes(double) {
  check(false, "the CPU's cache is sized by what its sequences want");
  return 0;
}

#ifdef KEEL_CUDA

Device choose_device(std::string_view name) { return name == "cpu" ? Device::cpu : choose_device(name, cuda::find_device()); }

Device choose_device(std::string_view name, const cuda::FoundDevice& found) {
  if (found.usable) return Device::cuda;
  if (name == "cuda") fail("--device cuda: {}", found.reason);
  if (found.present) log_warning("{}; running on the CPU", found.reason);
  return Device::cpu;
}

DeviceMemory device_memory(Device device) {
  if (device == Device::cpu) return {};
  const cuda::HeldMemory held = cuda::held_memory();
  const std::int64_t total = cuda::find_device().info.memory_bytes;
  return {.weights = held.weights, .workspace = held.workspace, .cache = held.cache, .peak = held.peak,
          .in_use = total - cuda::free_device_bytes(), .total = total};
}

PageMemory page_memory(Device device) {
  if (device == Device::cpu) return kHostPageMemory;
  return {.allocate = [](std::size_t bytes, const char* what) { return cuda::allocate(cuda::MemoryKind::device, bytes, what, cuda::MemoryUse::cache); },
          .release = [](void* memory, std::size_t) { cuda::release(cuda::MemoryKind::device, memory); },
          .copy = [](void* to, const void* from, std::size_t bytes) {
            cuda::check(cudaMemcpy(to, from, bytes, cudaMemcpyDefault), "copy of a page");
            cuda::check(cudaStreamSynchronize(nullptr), "copy of a page");  // a copy to the device may return before it ends
          }};
}

std::vector<CudaCell> cuda_cells() {
  std::vector<CudaCell> cells;
  for (const KvFormat format : {KvFormat{DType::f16, DType::f16}, {DType::f16, DType::e4m3}, {DType::e4m3, DType::e4m3}, {DType::f16, DType::u4},
                                {DType::e4m3, DType::f16}, {DType::e4m3, DType::u4}}) {
    for (const std::int64_t head_dim : {64, 80, 96, 128, 256}) {
      CudaCell cell{.format = format, .head_dim = head_dim, .decode = "", .native_prefill = "", .plain_prefill = ""};
      try {
        const KvLayout layout(format, {1, 8, head_dim, 16}, PageOrder::cuda);
        cell.decode = cuda::decode_attention_refusal(layout, DType::f16, 32);
        cell.native_prefill = cuda::native_prefill_refusal(layout, DType::f16, 32);
        cell.plain_prefill = cuda::plain_prefill_refusal(layout, DType::f16, 32);
      } catch (const Error& refusal) {
        cell.decode = cell.native_prefill = cell.plain_prefill = refusal.what();
      }
      cells.push_back(std::move(cell));
    }
  }
  return cells;
}

std::string device_bus_id(Device device) { return device == Device::cuda ? cuda::find_device().info.bus_id : ""; }
double device_read_rate(Device device) { return device == Device::cuda ? cuda::measured_read_rate() : 0; }

#else

Device choose_device(std::string_view name) {
  if (name == "cuda") fail("--device cuda: this keel was built without its CUDA backend (nvcc was not found)");
  return Device::cpu;
}

PageMemory page_memory(Device) { return kHostPageMemory; }
DeviceMemory device_memory(Device) { return {}; }
std::vector<CudaCell> cuda_cells() { return {}; }
std::string device_bus_id(Device) { return ""; }
double device_read_rate(Device) { return 0; }

#endif

PageOrder page_order(Device device) { return device == Device::cuda ? PageOrder::cuda : PageOrder::cpu; }

std::unique_ptr<Executor> make_executor(Device device,
                                        const LoadedModel& model,
                                        const KvLayout& layout,
                                        const ExecutorLimits& limits,
                                        WorkerPool& workers) {
#ifdef KEEL_CUDA
  if (device == Device::cuda) return std::make_unique<cuda::CudaDecoder>(model, layout, limits, workers);
#endif
  check(device == Device::cpu, "only builds with CUDA choose it");
  return std::make_unique<CpuExecutor>(model, layout, limits, workers);
}

}  // namespace keel
