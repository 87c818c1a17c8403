#include "model/cuda_decoder.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "base/bytes.h"
#include "base/error.h"
#include "base/log.h"
#include "base/random.h"
#include "device/cuda.h"
#include "kernels/embed/embed_cuda.h"
#include "kernels/gemm/gemm_cuda.h"
#include "kernels/kv_write/kv_write_cuda.h"
#include "kernels/paged_attention/decode_cuda.h"
#include "kernels/paged_attention/prefill_cuda.h"
#include "kernels/rms_norm/rms_norm_cuda.h"
#include "kernels/sample/sample_cuda.h"
#include "kv/cuda_page.h"
#include "model/attention_router.h"
#include "model/cuda_weights.h"

namespace keel::cuda {
namespace {

// From this many rows on a projection is summed into the residual stream by the product itself; fewer take kernels that cannot, and
// leave the sum to the norm that follows.
constexpr std::int64_t kLeastAddedRows = 512;

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

// Decode steps are padded to one of these, so that few graphs serve every batch.
std::vector<std::int64_t> graph_buckets(std::int64_t most) {
  std::vector<std::int64_t> buckets;
  for (std::int64_t size = 1; size < most; size = size < 8 ? size * 2 : size < 64 ? size + 8 : size + 32) buckets.push_back(size);
  buckets.push_back(most);
  return buckets;
}

// What the pointwise kernels' 16-byte accesses want of a model.
const ModelConfig& checked(const ModelConfig& config) {
  const auto whole_chunks = [](const char* what, std::int64_t size) {
    if (size % 8 != 0) fail("--device cuda serves a {} that is a multiple of 8, found {}; --device cpu takes any", what, size);
  };
  whole_chunks("hidden size", config.hidden);
  whole_chunks("feed-forward size", config.intermediate);
  whole_chunks("head dim", config.head_dim);
  whole_chunks("rotary dim", config.rotary_dim);
  return config;
}

class CudaDecoder final : public Executor {
 public:
  CudaDecoder(const LoadedModel& model, const KvLayout& layout, const ExecutorLimits& limits, WorkerPool& workers);

  void bind(KvPool& pool) override;
  StepResult forward(const StepRows& rows, std::span<const std::optional<DeviceSampling>> sampling) override;
  std::span<const float> logits(std::span<const std::int64_t> rows) override;
  std::int64_t max_logit_rows() const override { return limits_.max_logit_rows; }
  std::int64_t scratch_bytes() const override;
  std::string description() const override;
  RouteCounts routes() const override { return routes_; }
  void probe_attention(AttentionProbe* probe) override { probe_ = probe; }
  void store(std::int64_t layer, std::span<const float> k, std::span<const float> v, std::span<const std::int64_t> slots) override;

 private:
  void stage(const StepRows& rows);
  void replay(std::int64_t tokens);
  void pad(std::int64_t tokens, std::int64_t bucket);
  void capture(std::int64_t bucket);
  void measure_products();
  // Launches a step whose rows are staged: normed_ then holds the final hidden states of all rows, or, where only the last
  // positions are wanted, of the logit rows in their order.
  void launch_decode(std::int64_t sequences);
  void launch_mixed(const StepRows& rows, const AttentionPlan& plan);
  void launch_attention(std::int64_t layer, const StepRows& rows, const AttentionPlan& plan);
  void launch_probed_attention(std::int64_t layer, const StepRows& rows, const AttentionPlan& plan);
  void launch_attention_inputs(std::int64_t layer, std::int64_t tokens, bool round);
  void launch_mlp(const DeviceLayer& layer, std::uint16_t* residual, std::int64_t rows);
  void launch_norm(std::uint16_t* residual, bool add, const float* weight, std::int64_t rows);
  void add_product(const GemmWeights& weights, const void* x, std::uint16_t* residual, std::int64_t rows);
  PrefillAttentionArgs prefill_args(std::int64_t layer);  // of no sequence yet
  void launch_prefill_attention(std::int64_t layer, const StepRows& rows, const AttentionPlan& plan);
  void gather_rows(const std::uint16_t* from, std::int64_t width, std::int64_t rows, std::uint16_t* to);
  void launch_head(const std::uint16_t* rows, std::int64_t count);
  void product(const GemmWeights& weights, const void* x, std::int64_t tokens, void* out, DType out_type);
  void gated_product(const GemmWeights& weights, std::int64_t tokens);  // of normed_, into activated_
  void product(const GemmArgs& args);
  bool is_added(std::int64_t rows) const { return rows > kLeastAddedRows; }
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
  DeviceWeights weights_;
  Gemm gemm_;
  PrefillAttention prefill_;
  RouteRefusals refusals_;
  std::int64_t table_stride_;  // pages of the longest context
  KvPool* pool_ = nullptr;
  RouteCounts routes_;
  AttentionProbe* probe_ = nullptr;
  struct {
    std::optional<std::int64_t> read_layer;
    bool values_are_keys = false;
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

CudaDecoder::CudaDecoder(const LoadedModel& model, const KvLayout& layout, const ExecutorLimits& limits, WorkerPool& workers)
    : config_(checked(model.config)),
      layout_(layout),
      limits_(limits),
      dtype_(device_dtype(config_)),
      device_(find_device().info),
      weights_(upload_weights(model, dtype_, workers)),
      gemm_(dtype_, limits.max_tokens, weights_.awq_scratch_elements, default_gemm_cache()),
      prefill_(layout, dtype_, config_.heads, limits.max_tokens, limits.prefill_workspace_bytes),
      refusals_{.decode = decode_attention_refusal(layout, dtype_, config_.heads), .native = prefill_.native_refusal()},
      table_stride_((limits.max_context + kCudaPageSize - 1) / kCudaPageSize),
      rope_table_(limits.max_context * config_.rotary_dim, "the rotary table"),
      key_scales_(config_.layers * config_.kv_heads, "key scales"),
      value_scales_(config_.layers * config_.kv_heads, "value scales"),
      residual_(limits.max_tokens * config_.hidden, "the residual stream"),
      normed_(limits.max_tokens * config_.hidden, "normalised activations"),
      qkv_(limits.max_tokens * (config_.heads + 2 * config_.kv_heads) * config_.head_dim, "queries, keys and values"),
      attended_(limits.max_tokens * config_.heads * config_.head_dim, "attention outputs"),
      gate_up_(limits.max_tokens * 2 * config_.intermediate, "feed-forward activations"),
      activated_(limits.max_tokens * config_.intermediate, "feed-forward activations"),
      projected_(limits.max_tokens * config_.hidden, "projections"),
      last_residual_(limits.max_logit_rows * config_.hidden, "rows of the head"),
      last_rows_(limits.max_logit_rows * std::max(config_.hidden, config_.heads * config_.head_dim), "rows of the head"),
      logits_(limits.max_logit_rows * config_.vocabulary, "logits"),
      decode_workspace_(refusals_.decode.empty() ? decode_attention_workspace(layout, config_.heads, limits.max_sequences, 1) : 0,
                        "decode attention's workspace"),
      tokens_(limits.max_tokens, "token ids"),
      positions_(limits.max_tokens, "positions"),
      logit_rows_(limits.max_logit_rows, "logit rows"),
      contexts_(limits.max_sequences, "contexts"),
      page_table_(limits.max_sequences * table_stride_, "page tables"),
      slots_(limits.max_tokens, "slots"),
      sampling_(limits.max_logit_rows, "sampling parameters"),
      sampled_(limits.max_logit_rows, "sampled tokens"),
      sampled_host_(limits.max_logit_rows, "sampled tokens"),
      logits_host_(limits.max_logit_rows * config_.vocabulary, "logits on the host"),
      buckets_(graph_buckets(std::min(limits.max_sequences, limits.max_logit_rows))) {
  if (const std::string refusal = prefill_.plain_refusal(); !refusal.empty()) fail("{}", refusal);
  const DType model_16 = layout.format().key == DType::e4m3 ? layout.format().value : layout.format().key;
  for (const DType type : {layout.format().key, layout.format().value}) {
    if (type == DType::f32 || ((type == DType::f16 || type == DType::bf16) && type != dtype_)) {
      fail("KV cache type {} is not served on CUDA for a model that runs in {}: 16-bit keys and values have the model's own type{}",
           to_string(layout.format()), name(dtype_), model_16 == dtype_ ? "" : "; pass --dtype to choose it");
    }
  }
  if (!refusals_.decode.empty()) log_warning("{}; decode rows take the plain kernel", refusals_.decode);
  if (!refusals_.native.empty()) log_warning("{}; prompts take the plain kernel", refusals_.native);

  std::vector<float> table(rope_table_.size());
  fill_rope_table(table.data(), limits.max_context, config_.rotary_dim, config_.inverse_frequencies.data(), config_.rope_magnitude);
  copy_to_device(stream_, rope_table_.data(), table.data(), table.size());
  stream_.synchronize();
}

void CudaDecoder::bind(KvPool& pool) {
  keel::check(pool_ == nullptr, "a decoder's pool is bound once: its graphs hold the addresses");
  pool_ = &pool;
  copy_to_device(stream_, key_scales_.data(), pool.scales().keys.data(), key_scales_.size());
  copy_to_device(stream_, value_scales_.data(), pool.scales().values.data(), value_scales_.size());
  stream_.synchronize();
  measure_products();
  if (limits_.attention_plans && refusals_.native.empty()) prefill_.prepare_common(prefill_args(0), limits_.max_tokens, limits_.max_context);
  if (limits_.graphs && refusals_.decode.empty()) {
    for (const std::int64_t bucket : buckets_) capture(bucket);
  }
}

// The products that prompts of every length will want, on activations as large as real ones, before a request waits for them.
void CudaDecoder::measure_products() {
  const DeviceLayer& layer = weights_.layers.front();
  const std::int64_t rows = limits_.max_tokens;
  for (std::int64_t i = 0; i < rows; ++i) tokens_.host.data()[i] = static_cast<std::int32_t>(mix64(static_cast<std::uint64_t>(i)) % static_cast<std::uint64_t>(config_.vocabulary));
  tokens_.send(stream_, rows);
  embed(stream_, {.dtype = dtype_, .embedding = weights_.embedding, .tokens = tokens_.device.data(), .out = residual_.data(), .rows = rows, .width = config_.hidden});
  launch_norm(residual_.data(), false, weights_.final_norm, rows);
  const auto fill = [&](DeviceBuffer<std::uint16_t>& buffer) {
    for (std::size_t done = 0; done < buffer.size(); done += normed_.size()) {
      const std::size_t some = std::min(buffer.size() - done, normed_.size());
      check(cudaMemcpyAsync(buffer.data() + done, normed_.data(), some * sizeof(std::uint16_t), cudaMemcpyDeviceToDevice, stream_), "copy of activations");
    }
  };
  fill(attended_);
  fill(activated_);
  for (std::int64_t tokens = rows; tokens > buckets_.back(); tokens /= 2) {
    product(layer.qkv, normed_.data(), tokens, qkv_.data(), dtype_);
    product(layer.o, attended_.data(), tokens, projected_.data(), dtype_);
    gated_product(layer.gate_up, tokens);
    product(layer.down, activated_.data(), tokens, projected_.data(), dtype_);
  }
  stream_.synchronize();
}

std::int64_t CudaDecoder::scratch_bytes() const {
  return rope_table_.bytes() + key_scales_.bytes() + value_scales_.bytes() + residual_.bytes() + normed_.bytes() + qkv_.bytes() +
         attended_.bytes() + gate_up_.bytes() + activated_.bytes() + projected_.bytes() + last_residual_.bytes() + last_rows_.bytes() + logits_.bytes() +
         decode_workspace_.bytes() + tokens_.bytes() + positions_.bytes() + logit_rows_.bytes() +
         contexts_.bytes() + page_table_.bytes() + slots_.bytes() + sampling_.bytes() + sampled_.bytes() +
         gemm_.workspace_bytes() + prefill_.workspace_bytes();
}

std::string CudaDecoder::description() const {
  return fmt::format("{}, compute capability {}.{}, {} multiprocessors, driver for CUDA {}, runtime {}", device_.name, device_.major,
                     device_.minor, device_.multiprocessors, device_.driver, device_.runtime);
}

KvLayerView CudaDecoder::cache(std::int64_t layer) {
  layer = faults_.read_layer.value_or(layer);
  KvLayerView view = pool_->layer(layer);
  if (faults_.values_are_keys) view.values = view.keys;
  view.layout = &layout_;
  view.key_scales = key_scales_.data() + layer * config_.kv_heads;
  view.value_scales = value_scales_.data() + layer * config_.kv_heads;
  return view;
}

void CudaDecoder::stage(const StepRows& rows) {
  const auto tokens = static_cast<std::int64_t>(rows.tokens.size()), sequences = static_cast<std::int64_t>(rows.sequences.size());
  keel::check(tokens <= limits_.max_tokens && sequences <= limits_.max_sequences, "a step's rows must fit the decoder's scratch");
  std::copy(rows.tokens.begin(), rows.tokens.end(), tokens_.host.data());
  std::copy(rows.positions.begin(), rows.positions.end(), positions_.host.data());
  std::copy(rows.slots.begin(), rows.slots.end(), slots_.host.data());
  std::int64_t most_pages = 0;
  for (std::int64_t i = 0; i < sequences; ++i) {
    const AttentionSequence& sequence = rows.sequences[static_cast<std::size_t>(i)];
    const std::int64_t pages = (sequence.context + kCudaPageSize - 1) / kCudaPageSize;
    most_pages = std::max(most_pages, pages);
    contexts_.host.data()[i] = static_cast<std::int32_t>(sequence.context);
    std::copy_n(sequence.pages, pages, page_table_.host.data() + i * table_stride_);
  }
  // One strided copy of the columns in use.
  check(cudaMemcpy2DAsync(page_table_.device.data(), table_stride_ * 4, page_table_.host.data(), table_stride_ * 4, most_pages * 4,
                          sequences, cudaMemcpyHostToDevice, stream_),
        "copy of the page tables");
}

StepResult CudaDecoder::forward(const StepRows& rows, std::span<const std::optional<DeviceSampling>> sampling) {
  const ProfileRange range("step");
  const auto tokens = static_cast<std::int64_t>(rows.tokens.size()), outputs = static_cast<std::int64_t>(rows.logit_rows.size());
  keel::check(outputs <= limits_.max_logit_rows, "more logit rows than the decoder's scratch holds");
  keel::check(sampling.empty() || static_cast<std::int64_t>(sampling.size()) == outputs, "a sampling a logit row");
  stage(rows);
  const AttentionPlan plan = plan_attention(rows.sequences, refusals_);
  count_routes(plan, rows);
  bool host_logits = sampling.empty() && outputs > 0;
  for (std::int64_t i = 0; i < outputs; ++i) {
    const std::optional<DeviceSampling> wish = sampling.empty() ? std::nullopt : sampling[static_cast<std::size_t>(i)];
    host_logits = host_logits || !wish;
    const DeviceSampling s = wish.value_or(DeviceSampling{.top_p = 1});
    sampling_.host.data()[i] = {.temperature = s.temperature, .top_p = s.top_p, .min_p = s.min_p, .top_k = s.top_k, .seed = s.seed, .draw = s.draw};
  }
  sampling_.send(stream_, outputs);

  const bool decode_only = probe_ == nullptr && plan.decode_sequences == static_cast<std::int64_t>(rows.sequences.size()) && outputs == tokens && !rows.keep_all;
  if (decode_only && limits_.graphs && tokens <= buckets_.back()) {
    replay(tokens);
  } else {
    tokens_.send(stream_, tokens);
    positions_.send(stream_, tokens);
    slots_.send(stream_, tokens);
    contexts_.send(stream_, static_cast<std::int64_t>(rows.sequences.size()));
    for (std::int64_t i = 0; i < outputs; ++i) logit_rows_.host.data()[i] = static_cast<std::int32_t>(rows.logit_rows[static_cast<std::size_t>(i)]);
    logit_rows_.send(stream_, outputs);
    launch_mixed(rows, plan);
  }
  if (outputs > 0) {
    copy_to_host(stream_, sampled_host_.data(), sampled_.data(), static_cast<std::size_t>(outputs));
    if (host_logits) copy_to_host(stream_, logits_host_.data(), logits_.data(), static_cast<std::size_t>(outputs * config_.vocabulary));
  }
  stream_.synchronize();
  StepResult result;
  if (host_logits) result.logits = {logits_host_.data(), static_cast<std::size_t>(outputs * config_.vocabulary)};
  if (!sampling.empty()) result.tokens = {sampled_host_.data(), static_cast<std::size_t>(outputs)};
  return result;
}

// A decode step through its bucket's graph; the rows past the step's own are padding that stores and attends to nothing.
void CudaDecoder::replay(std::int64_t tokens) {
  const std::int64_t bucket = *std::lower_bound(buckets_.begin(), buckets_.end(), tokens);
  pad(tokens, bucket);
  graphs_.at(bucket).launch(stream_);
}

void CudaDecoder::pad(std::int64_t tokens, std::int64_t bucket) {
  for (std::int64_t i = tokens; i < bucket; ++i) {
    tokens_.host.data()[i] = 0;
    positions_.host.data()[i] = 0;
    slots_.host.data()[i] = -1;
    contexts_.host.data()[i] = 0;
    sampling_.host.data()[i] = {.temperature = 0, .top_p = 1, .min_p = 0, .top_k = 0, .seed = 0, .draw = 0};
  }
  tokens_.send(stream_, bucket);
  positions_.send(stream_, bucket);
  slots_.send(stream_, bucket);
  contexts_.send(stream_, bucket);
  sampling_.send(stream_, bucket);
}

void CudaDecoder::capture(std::int64_t bucket) {
  pad(0, bucket);
  launch_decode(bucket);  // once as it is: products choose their algorithms, which a capture may not
  stream_.synchronize();
  graphs_[bucket] = StepGraph(stream_, [&] { launch_decode(bucket); });
}

std::span<const float> CudaDecoder::logits(std::span<const std::int64_t> rows) {
  const auto count = static_cast<std::int64_t>(rows.size());
  keel::check(count <= limits_.max_logit_rows, "more logit rows than the decoder's scratch holds");
  if (count == 0) return {};
  for (std::int64_t i = 0; i < count; ++i) {
    logit_rows_.host.data()[i] = static_cast<std::int32_t>(rows[static_cast<std::size_t>(i)]);
    sampling_.host.data()[i] = {.temperature = 0, .top_p = 1, .min_p = 0, .top_k = 0, .seed = 0, .draw = 0};
  }
  logit_rows_.send(stream_, count);
  sampling_.send(stream_, count);
  gather_rows(normed_.data(), config_.hidden, count, last_rows_.data());
  launch_head(last_rows_.data(), count);
  copy_to_host(stream_, logits_host_.data(), logits_.data(), static_cast<std::size_t>(count * config_.vocabulary));
  stream_.synchronize();
  return {logits_host_.data(), static_cast<std::size_t>(count * config_.vocabulary)};
}

void CudaDecoder::product(const GemmWeights& weights, const void* x, std::int64_t tokens, void* out, DType out_type) {
  product({.weights = weights, .x = x, .tokens = tokens, .out = out, .out_type = out_type});
}

void CudaDecoder::gated_product(const GemmWeights& weights, std::int64_t tokens) {
  product({.weights = weights, .x = normed_.data(), .tokens = tokens, .out = activated_.data(), .out_type = dtype_, .gate_up = gate_up_.data()});
}

void CudaDecoder::product(const GemmArgs& args) {
  cudaStreamCaptureStatus capturing;
  check(cudaStreamIsCapturing(stream_, &capturing), "state of the stream");
  if (capturing == cudaStreamCaptureStatusNone) {
    gemm_.prepare(stream_, args);  // measures what is new, then runs
  } else {
    gemm_.run(stream_, args);
  }
}

void CudaDecoder::launch_attention_inputs(std::int64_t index, std::int64_t tokens, bool round) {
  const DeviceLayer& layer = weights_.layers[static_cast<std::size_t>(index)];
  const std::int64_t q_width = config_.heads * config_.head_dim, kv_width = config_.kv_heads * config_.head_dim;
  launch_norm(residual_.data(), index > 0 && !is_added(tokens), layer.attention_norm, tokens);
  product(layer.qkv, normed_.data(), tokens, qkv_.data(), dtype_);
  if (probe_ != nullptr) fresh_values_ = host_rows(qkv_, tokens * (q_width + 2 * kv_width));
  rope_write(stream_, {.dtype = dtype_, .q = qkv_.data(), .k = qkv_.data() + q_width, .v = qkv_.data() + q_width + kv_width,
                       .stride = q_width + 2 * kv_width, .tokens = tokens, .heads = config_.heads, .q_norm = layer.q_norm,
                       .k_norm = layer.k_norm, .norm_epsilon = config_.rms_epsilon, .rotary_dim = config_.rotary_dim,
                       .pairs = config_.rope_pairs, .rope_table = rope_table_.data(), .positions = positions_.device.data(),
                       .slots = slots_.device.data(), .kv = cache(index), .round = round});
}

// normed_ = the norm of the residual stream, to which projected_ is added before where the product has not done it.
void CudaDecoder::launch_norm(std::uint16_t* residual, bool add, const float* weight, std::int64_t rows) {
  add_rms_norm(stream_, {.dtype = dtype_, .residual = residual, .added = add ? projected_.data() : nullptr, .weight = weight,
                         .out = normed_.data(), .rows = rows, .width = config_.hidden, .epsilon = config_.rms_epsilon});
}

// The residual stream += x · Wᵀ, now or with the next norm.
void CudaDecoder::add_product(const GemmWeights& weights, const void* x, std::uint16_t* residual, std::int64_t rows) {
  if (!is_added(rows)) return product(weights, x, rows, projected_.data(), dtype_);
  GemmArgs args{.weights = weights, .x = x, .tokens = rows, .out = projected_.data(), .out_type = dtype_};
  if (!gemm_.prepared(args)) gemm_.prepare(stream_, args);  // which overwrites its output
  args.out = residual;
  args.accumulate = true;
  gemm_.run(stream_, args);
}

// After add_product of the attention's projection; ends with the feed-forward's.
void CudaDecoder::launch_mlp(const DeviceLayer& layer, std::uint16_t* residual, std::int64_t rows) {
  launch_norm(residual, !is_added(rows), layer.mlp_norm, rows);
  gated_product(layer.gate_up, rows);
  add_product(layer.down, activated_.data(), residual, rows);
}

void CudaDecoder::launch_decode(std::int64_t sequences) {
  embed(stream_, {.dtype = dtype_, .embedding = weights_.embedding, .tokens = tokens_.device.data(), .out = residual_.data(),
                  .rows = sequences, .width = config_.hidden});
  decode_attention_plan(stream_, decode_args(0, sequences));
  for (std::int64_t index = 0; index < config_.layers; ++index) {
    const DeviceLayer& layer = weights_.layers[static_cast<std::size_t>(index)];
    launch_attention_inputs(index, sequences, false);
    DecodeAttentionArgs attention = decode_args(index, sequences);
    attention.early = true;  // rope_write comes just before
    decode_attention(stream_, attention);
    add_product(layer.o, attended_.data(), residual_.data(), sequences);
    launch_mlp(layer, residual_.data(), sequences);
  }
  launch_norm(residual_.data(), !is_added(sequences), weights_.final_norm, sequences);
  launch_head(normed_.data(), sequences);
}

// Past the last layer's attention only the rows whose logits are wanted matter: the others' last output projection and
// feed-forward, a fortieth of a prompt's work, are left out.
void CudaDecoder::launch_mixed(const StepRows& rows, const AttentionPlan& plan) {
  const auto tokens = static_cast<std::int64_t>(rows.tokens.size()), outputs = static_cast<std::int64_t>(rows.logit_rows.size());
  embed(stream_, {.dtype = dtype_, .embedding = weights_.embedding, .tokens = tokens_.device.data(), .out = residual_.data(),
                  .rows = tokens, .width = config_.hidden});
  if (plan.decode_sequences > 0) decode_attention_plan(stream_, decode_args(0, plan.decode_sequences));
  for (std::int64_t index = 0; index < config_.layers; ++index) {
    const DeviceLayer& layer = weights_.layers[static_cast<std::size_t>(index)];
    launch_attention_inputs(index, tokens, plan.any(Route::fresh));
    const bool last = index + 1 == config_.layers && !rows.keep_all;
    if (last && outputs == 0) return;
    probe_ == nullptr ? launch_attention(index, rows, plan) : launch_probed_attention(index, rows, plan);
    if (last) {
      const std::int64_t q_width = config_.heads * config_.head_dim;
      gather_rows(attended_.data(), q_width, outputs, last_rows_.data());
      gather_rows(residual_.data(), config_.hidden, outputs, last_residual_.data());
      add_product(layer.o, last_rows_.data(), last_residual_.data(), outputs);
      launch_mlp(layer, last_residual_.data(), outputs);
      launch_norm(last_residual_.data(), !is_added(outputs), weights_.final_norm, outputs);
      return launch_head(normed_.data(), outputs);
    }
    add_product(layer.o, attended_.data(), residual_.data(), tokens);
    launch_mlp(layer, residual_.data(), tokens);
  }
  launch_norm(residual_.data(), !is_added(tokens), weights_.final_norm, tokens);
  if (outputs == 0) return;
  gather_rows(normed_.data(), config_.hidden, outputs, last_rows_.data());
  launch_head(last_rows_.data(), outputs);
}

void CudaDecoder::launch_attention(std::int64_t index, const StepRows& rows, const AttentionPlan& plan) {
  if (plan.decode_sequences > 0) decode_attention(stream_, decode_args(index, plan.decode_sequences));
  launch_prefill_attention(index, rows, plan);
}

std::vector<std::uint16_t> CudaDecoder::host_rows(const DeviceBuffer<std::uint16_t>& buffer, std::int64_t count) {
  std::vector<std::uint16_t> rows(static_cast<std::size_t>(count));
  copy_to_host(stream_, rows.data(), buffer.data(), rows.size());
  stream_.synchronize();
  return rows;
}

// Of each row of `stride` numbers those from `from` on.
std::vector<float> CudaDecoder::widened(std::span<const std::uint16_t> rows, std::int64_t from, std::int64_t width, std::int64_t stride) const {
  std::vector<float> floats;
  for (std::size_t row = 0; row < rows.size(); row += static_cast<std::size_t>(stride)) {
    for (const std::uint16_t bits : rows.subspan(row + static_cast<std::size_t>(from), static_cast<std::size_t>(width))) {
      floats.push_back(dtype_ == DType::bf16 ? to_float(Bf16(bits)) : to_float(Half(bits)));
    }
  }
  return floats;
}

void CudaDecoder::launch_probed_attention(std::int64_t index, const StepRows& rows, const AttentionPlan& plan) {
  const auto tokens = static_cast<std::int64_t>(rows.tokens.size());
  const std::int64_t q_width = config_.heads * config_.head_dim, kv_width = config_.kv_heads * config_.head_dim, stride = q_width + 2 * kv_width;
  std::vector<std::uint16_t> stored = host_rows(qkv_, tokens * stride);
  std::vector<float> q = widened(stored, 0, q_width, stride);
  const std::vector<float> k = widened(stored, q_width, kv_width, stride), v = widened(fresh_values_, q_width + kv_width, kv_width, stride);
  AttentionCall call{.layer = index, .rows = rows, .q = q, .k = k, .v = v, .read_layer = index};
  probe_->before(call);
  if (call.q_changed) {
    for (std::size_t i = 0; i < q.size(); ++i) {
      const auto width = static_cast<std::size_t>(q_width);
      stored[i / width * static_cast<std::size_t>(stride) + i % width] =
          dtype_ == DType::bf16 ? static_cast<std::uint16_t>(to_bf16(q[i])) : static_cast<std::uint16_t>(to_half(q[i]));
    }
    copy_to_device(stream_, qkv_.data(), stored.data(), stored.size());
  }
  faults_ = {.read_layer = call.read_layer, .values_are_keys = call.values_are_keys};
  launch_attention(index, rows, plan);
  faults_ = {};
  const std::vector<float> out = widened(host_rows(attended_, tokens * q_width), 0, q_width, q_width);
  call.out = out;
  probe_->after(call);
}

void CudaDecoder::store(std::int64_t layer, std::span<const float> k, std::span<const float> v, std::span<const std::int64_t> slots) {
  const auto tokens = static_cast<std::int64_t>(slots.size());
  const std::int64_t q_width = config_.heads * config_.head_dim, kv_width = config_.kv_heads * config_.head_dim, stride = q_width + 2 * kv_width;
  keel::check(tokens <= limits_.max_tokens, "rows to store must fit the decoder's scratch");
  std::vector<std::uint16_t> rows(static_cast<std::size_t>(tokens * stride));
  const auto narrow = [&](float x) { return dtype_ == DType::bf16 ? static_cast<std::uint16_t>(to_bf16(x)) : static_cast<std::uint16_t>(to_half(x)); };
  for (std::int64_t i = 0; i < tokens * kv_width; ++i) {
    std::uint16_t* row = rows.data() + i / kv_width * stride + q_width + i % kv_width;
    row[0] = narrow(k[static_cast<std::size_t>(i)]);
    row[kv_width] = narrow(v[static_cast<std::size_t>(i)]);
  }
  std::copy(slots.begin(), slots.end(), slots_.host.data());
  std::fill_n(positions_.host.data(), tokens, 0);
  copy_to_device(stream_, qkv_.data(), rows.data(), rows.size());
  slots_.send(stream_, tokens);
  positions_.send(stream_, tokens);
  rope_write(stream_, {.dtype = dtype_, .q = qkv_.data(), .k = qkv_.data() + q_width, .v = qkv_.data() + q_width + kv_width, .stride = stride,
                       .tokens = tokens, .heads = config_.heads, .rotary_dim = 0, .pairs = config_.rope_pairs, .rope_table = rope_table_.data(),
                       .positions = positions_.device.data(), .slots = slots_.device.data(), .kv = cache(layer)});
  stream_.synchronize();
}

// The staged logit rows of `from`, one after another.
void CudaDecoder::gather_rows(const std::uint16_t* from, std::int64_t width, std::int64_t rows, std::uint16_t* to) {
  embed(stream_, {.dtype = dtype_, .embedding = from, .tokens = logit_rows_.device.data(), .out = to, .rows = rows, .width = width});
}

DecodeAttentionArgs CudaDecoder::decode_args(std::int64_t layer, std::int64_t sequences) {
  const std::int64_t q_width = config_.heads * config_.head_dim;
  return {.dtype = dtype_, .q = qkv_.data(), .q_stride = q_width + 2 * config_.kv_heads * config_.head_dim, .out = attended_.data(),
          .out_stride = q_width, .heads = config_.heads, .softmax_scale = 1.0f / std::sqrt(static_cast<float>(config_.head_dim)),
          .kv = cache(layer), .page_table = page_table_.device.data(), .page_table_stride = table_stride_,
          .contexts = contexts_.device.data(), .sequences = sequences, .rows = 1, .workspace = decode_workspace_.data()};
}

PrefillAttentionArgs CudaDecoder::prefill_args(std::int64_t layer) {
  const std::int64_t q_width = config_.heads * config_.head_dim, kv_width = config_.kv_heads * config_.head_dim;
  return {.dtype = dtype_, .q = qkv_.data(), .q_stride = q_width + 2 * kv_width, .out = attended_.data(),
          .out_stride = q_width, .heads = config_.heads,
          .softmax_scale = 1.0f / std::sqrt(static_cast<float>(config_.head_dim)), .kv = cache(layer),
          .page_table = page_table_.device.data(), .page_table_stride = table_stride_,
          .sequences = {}, .k = qkv_.data() + q_width, .v = qkv_.data() + q_width + kv_width,
          .kv_stride = q_width + 2 * kv_width};
}

void CudaDecoder::launch_prefill_attention(std::int64_t layer, const StepRows& rows, const AttentionPlan& plan) {
  for (const Route route : {Route::fresh, Route::gather, Route::plain}) {
    std::vector<PrefillSequence> sequences;
    for (const RoutedSequence& routed : plan.routed) {
      if (routed.route != route) continue;
      const AttentionSequence& s = rows.sequences[static_cast<std::size_t>(routed.sequence)];
      sequences.push_back({.first_row = s.first_row, .rows = s.rows, .context = s.context, .table_row = routed.sequence});
    }
    if (sequences.empty()) continue;
    PrefillAttentionArgs args = prefill_args(layer);
    args.sequences = sequences;
    if (route == Route::fresh) prefill_.fresh(stream_, args);
    if (route == Route::gather) prefill_.gather(stream_, args);
    if (route == Route::plain) prefill_.plain(stream_, args);
  }
}

// Logits and samples of `count` rows of final hidden states.
void CudaDecoder::launch_head(const std::uint16_t* rows, std::int64_t count) {
  product(weights_.head, rows, count, logits_.data(), DType::f32);
  sample(stream_, {.logits = logits_.data(), .rows = count, .vocabulary = config_.vocabulary, .rows_sampling = sampling_.device.data(),
                   .tokens = sampled_.data()});
}

void CudaDecoder::count_routes(const AttentionPlan& plan, const StepRows& rows) {
  for (const RoutedSequence& routed : plan.routed) {
    const std::string key = fmt::format("{}: {}", keel::name(routed.route), routed.reason);
    routes_[key] += rows.sequences[static_cast<std::size_t>(routed.sequence)].rows;
  }
}

}  // namespace

std::unique_ptr<Executor> make_decoder(const LoadedModel& model, const KvLayout& layout, const ExecutorLimits& limits, WorkerPool& workers) {
  return std::make_unique<CudaDecoder>(model, layout, limits, workers);
}

}  // namespace keel::cuda
