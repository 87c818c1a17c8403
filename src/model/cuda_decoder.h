// The forward pass of model/decoder.h on CUDA. Its steps: cuda_decoder.cpp; a layer's launches: cuda_decoder_layers.cpp; what checks see
// of it: cuda_decoder_probe.cpp.
#pragma once

#include <deque>
#include <map>
#include <optional>
#include <vector>

#include "device/cuda.h"
#include "kernels/gemm/gemm_cuda.h"
#include "kernels/paged_attention/decode_cuda.h"
#include "kernels/paged_attention/prefill_cuda.h"
#include "kernels/sample/sample_cuda.h"
#include "model/attention_router.h"
#include "model/cuda_weights.h"
#include "model/executor.h"

namespace keel::cuda {

// What a kernel reads of a step, in host memory that the device copies from, and where it lands. Sized once; graphs keep the
// device addresses.
template <class T>
struct Staged {
  PinnedBuffer<T> host;
  DeviceBuffer<T> device;
  Staged(std::int64_t size, const char* what)
      : host(static_cast<std::size_t>(size), what), device(static_cast<std::size_t>(size), what) {}
  void send(cudaStream_t stream, std::int64_t count) {
    if (count > 0) copy_to_device(stream, device.data(), host.data(), static_cast<std::size_t>(count));
  }
  std::int64_t bytes() const { return device.bytes(); }
};

// Throws Error naming what the device does not serve (head dims, cache types, memory).
class CudaDecoder final : public Executor {
 public:
  CudaDecoder(const LoadedModel& model, const KvLayout& layout, const ExecutorLimits& limits, WorkerPool& workers);

  std::int64_t cache_bytes(double utilization) override;
  void bind(KvPool& pool) override;
  StepResult forward(const StepRows& rows, std::span<const std::optional<DeviceSampling>> sampling) override;
  std::span<const float> logits(std::span<const std::int64_t> rows) override;
  std::int64_t max_logit_rows() const override { return limits_.max_logit_rows; }
  std::int64_t weight_bytes() const override { return weights_.bytes; }
  std::int64_t scratch_bytes() const override;
  std::string description() const override;
  RouteCounts routes() const override { return routes_; }
  RouteSeconds route_seconds() const override { return route_seconds_; }
  void probe_attention(AttentionProbe* probe) override { probe_ = probe; }
  void store(std::int64_t layer, std::span<const float> k, std::span<const float> v, std::span<const std::int64_t> slots) override;

 private:
  StepResult step(const StepRows& rows, std::span<const std::optional<DeviceSampling>> sampling);
  std::span<const float> launch_logits(std::span<const std::int64_t> rows);
  void warn_of_plain_prompts() const;
  void stage(const StepRows& rows);
  void replay(std::int64_t tokens);
  void pad(std::int64_t tokens, std::int64_t bucket);
  void capture(std::int64_t bucket);
  void measure_products();
  void rehearse();
  // Launches a step whose rows are staged: normed_ then holds the final hidden states of all rows, or, where only the last
  // positions are wanted, of the logit rows in their order. Sequences that cuDNN refuses become the plan's plain ones.
  void launch_decode(std::int64_t sequences);
  void launch_embedding(std::int64_t rows);
  void launch_decode_layer(std::int64_t layer, std::int64_t sequences);
  void choose_decode_products(std::int64_t sequences);
  void launch_mixed(const StepRows& rows, AttentionPlan& plan);
  void launch_attention(std::int64_t layer, const StepRows& rows, AttentionPlan& plan);
  void launch_probed_attention(std::int64_t layer, const StepRows& rows, AttentionPlan& plan);
  void launch_attention_inputs(std::int64_t layer, std::int64_t tokens, bool round);
  void launch_mlp(const DeviceLayer& layer, std::uint16_t* residual, std::int64_t rows);
  void launch_norm(std::uint16_t* residual, bool add, const float* weight, std::int64_t rows);
  void add_product(const GemmWeights& weights, const void* x, std::uint16_t* residual, std::int64_t rows);
  PrefillAttentionArgs prefill_args(std::int64_t layer);  // of no sequence yet
  void launch_prefill_attention(std::int64_t layer, const StepRows& rows, AttentionPlan& plan);
  void gather_rows(const std::uint16_t* from, std::int64_t width, std::int64_t rows, std::uint16_t* to);
  template <class Launch>
  void timed(Route route, Launch&& launch);
  void add_route_times();
  void launch_head(const std::uint16_t* rows, std::int64_t count);
  void product(const GemmWeights& weights, const void* x, std::int64_t tokens, void* out, DType out_type);
  GemmArgs product_args(const GemmWeights& weights, const void* x, std::int64_t tokens, void* out) const;
  GemmArgs gated_args(const GemmWeights& weights, std::int64_t tokens);  // of normed_, into activated_
  void product(const GemmArgs& args);
  static bool is_added(std::int64_t rows);  // a projection: by the product itself
  KvLayerView cache(std::int64_t layer);
  DecodeAttentionArgs decode_args(std::int64_t layer, std::int64_t sequences);
  std::vector<std::uint16_t> host_rows(const DeviceBuffer<std::uint16_t>& buffer, std::int64_t count);
  std::vector<float> widened(std::span<const std::uint16_t> rows, std::int64_t from, std::int64_t width, std::int64_t stride) const;
  void count_routes(const AttentionPlan& plan, const StepRows& rows);

  const ModelConfig& config_;
  KvLayout layout_;
  ExecutorLimits limits_;
  DType dtype_;
  DeviceInfo device_;
  Stream stream_;
  std::shared_ptr<const DeviceWeights> shared_weights_;
  const DeviceWeights& weights_;
  Gemm gemm_;
  PrefillAttention prefill_;
  RouteRefusals refusals_;
  std::int64_t table_stride_;  // pages of the longest context
  KvPool* pool_ = nullptr;
  bool measuring_ = false;  // while bound: products may be timed
  RouteCounts routes_;
  std::vector<RoutedSequence> routed_;  // of the last step
  struct TimedLaunches {
    Route route;
    Event begin, end;
  };
  std::deque<TimedLaunches> timed_;  // events for a step, of which `timed_launches_` are this one's
  std::size_t timed_launches_ = 0;
  RouteSeconds route_seconds_;
  AttentionProbe* probe_ = nullptr;
  struct {
    std::optional<std::int64_t> read_layer;
    bool values_are_keys = false, native_refuses = false;
  } faults_;  // of the attention being launched
  std::vector<std::uint16_t> fresh_values_;  // probing: this layer's rows before the writer may round them

  DeviceBuffer<float> rope_table_, key_scales_, value_scales_;
  DeviceBuffer<std::uint16_t> residual_, normed_, qkv_, attended_, gate_up_, activated_, projected_;
  DeviceBuffer<std::uint16_t> last_residual_, last_rows_;  // of the logit rows alone
  DeviceBuffer<float> logits_;
  DeviceBuffer<std::byte> decode_workspace_;
  Staged<std::int32_t> tokens_, positions_, logit_rows_, contexts_, page_table_;
  Staged<std::int64_t> slots_;
  Staged<RowSampling> sampling_;
  DeviceBuffer<std::int32_t> sampled_;
  PinnedBuffer<std::int32_t> sampled_host_;
  PinnedBuffer<float> logits_host_;
  std::vector<std::int64_t> buckets_;
  std::map<std::int64_t, StepGraph> graphs_;  // by bucket
};
}  // namespace keel::cuda
