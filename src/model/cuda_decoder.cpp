#include "model/cuda_decoder.h"

#include <cudnn.h>

#include <algorithm>
#include <utility>
#include <bit>
#include <ranges>

#include "base/bytes.h"
#include "base/error.h"
#include "base/log.h"
#include "base/random.h"
#include "kernels/embed/embed_cuda.h"
#include "kernels/kv_write/kv_write_cuda.h"
#include "kv/cuda_page.h"

namespace keel::cuda {
namespace {

// Decode steps are padded to one of these, so that few graphs serve every batch.
std::vector<std::int64_t> graph_buckets(std::int64_t most) {
  std::vector<std::int64_t> buckets;
  for (std::int64_t size = 1; size < most; size = size < 8 ? size * 2 : size < 64 ? size + 8 : size + 32) buckets.push_back(size);
  buckets.push_back(most);
  return buckets;
}

const ExecutorLimits& checked(const ExecutorLimits& limits) {
  if (limits.max_sequences > limits.max_tokens) {
    fail("a step of {} sequences wants room for one token of each, found {}", limits.max_sequences, limits.max_tokens);
  }
  return limits;
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

// Left free of the share of memory that was asked for: cudaMalloc rounds up, and kernels that first run later are loaded then.
constexpr std::int64_t kMemoryMargin = std::int64_t{64} << 20;

}  // namespace

CudaDecoder::CudaDecoder(const LoadedModel& model, const KvLayout& layout, const ExecutorLimits& limits, WorkerPool& workers)
    : config_(checked(model.config)),
      layout_(layout),
      limits_(checked(limits)),
      dtype_(device_dtype(config_)),
      device_(find_device().info),
      shared_weights_(device_weights(model, dtype_, workers)),
      weights_(*shared_weights_),
      gemm_(dtype_, std::max(limits.max_tokens, limits.max_logit_rows), weights_.awq_scratch_elements, default_gemm_cache()),
      prefill_(layout, dtype_, config_.heads, limits.max_tokens, limits.prefill_workspace_bytes),
      refusals_{.decode = decode_attention_refusal(layout, dtype_, config_.heads), .native = prefill_.native_refusal()},
      table_stride_((limits.max_context + kCudaPageSize - 1) / kCudaPageSize),
      rope_table_(limits.max_context * config_.rotary_dim, "the rotary table"),
      key_scales_(config_.layers * config_.kv_heads, "key scales"),
      value_scales_(config_.layers * config_.kv_heads, "value scales"),
      residual_(limits.max_tokens * config_.hidden, "the residual stream"),
      normed_(limits.max_tokens * config_.hidden, "normalised activations"),
      qkv_((limits.max_tokens + kPrefillSpareRows) * (config_.heads + 2 * config_.kv_heads) * config_.head_dim, "queries, keys and values"),
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
  if (const std::string refusal = plain_prefill_refusal(layout, dtype_, config_.heads); !refusal.empty()) fail("{}", refusal);
  const DType model_16 = layout.format().key == DType::e4m3 ? layout.format().value : layout.format().key;
  for (const DType type : {layout.format().key, layout.format().value}) {
    if (type == DType::f32 || ((type == DType::f16 || type == DType::bf16) && type != dtype_)) {
      fail("KV cache type {} is not served on CUDA for a model that runs in {}: 16-bit keys and values have the model's own type{}",
           to_string(layout.format()), name(dtype_), model_16 == dtype_ ? "" : "; pass --dtype to choose it");
    }
  }
  if (!refusals_.decode.empty()) log_warning("{}; decode rows take the plain kernel", refusals_.decode);
  warn_of_plain_prompts();

  std::vector<float> table(rope_table_.size());
  fill_rope_table(table.data(), limits.max_context, config_.rotary_dim, config_.inverse_frequencies.data(), config_.rope_magnitude);
  copy_to_device(stream_, rope_table_.data(), table.data(), table.size());
  stream_.synchronize();
}

void CudaDecoder::warn_of_plain_prompts() const {
  if (!refusals_.native.empty()) log_warning("{}; prompts take the plain kernel", refusals_.native);
}

void CudaDecoder::bind(KvPool& pool) {
  keel::check(pool_ == nullptr, "a decoder's pool is bound once: its graphs hold the addresses");
  pool_ = &pool;
  copy_to_device(stream_, key_scales_.data(), pool.scales().keys.data(), key_scales_.size());
  copy_to_device(stream_, value_scales_.data(), pool.scales().values.data(), value_scales_.size());
  stream_.synchronize();
  measuring_ = true;
  measure_products();
  if (refusals_.native.empty()) {
    prefill_.prepare(prefill_args(0), limits_.max_tokens, limits_.max_context, limits_.attention_plans);
    refusals_.native = prefill_.native_refusal();
    warn_of_plain_prompts();
  }
  if (limits_.graphs && refusals_.decode.empty()) {
    for (const std::int64_t bucket : buckets_) capture(bucket);
  }
  measuring_ = false;
}

// Graphs, plans and modules take memory that no formula gives, so they are made for a cache of one page, measured, and made again.
std::int64_t CudaDecoder::cache_bytes(double utilization) {
  DeviceMemory memory;
  {
    KvPool page(layout_, KvScales::unit(layout_.geometry()), layout_.page_bytes(), page_memory(Device::cuda));
    bind(page);
    rehearse();
    memory = device_memory(Device::cuda);
    graphs_.clear();
    pool_ = nullptr;
  }
  const std::int64_t allowed = static_cast<std::int64_t>(utilization * static_cast<double>(memory.total)) - kMemoryMargin;
  if (allowed <= memory.in_use) {
    fail("--gpu-memory-utilization {} of {} leaves nothing for the KV cache: {} are in use: weights {}, workspace {}, {} of CUDA's context, modules, graphs and other programs",
         utilization, format_bytes(memory.total), format_bytes(memory.in_use), format_bytes(memory.weights), format_bytes(memory.workspace),
         format_bytes(memory.other()));
  }
  return allowed - memory.in_use;
}

// The largest steps of whole prompts, and of prompts that go on after a cached page (always the cache's first), so that what their
// kernels load and allocate is there. They store nothing.
void CudaDecoder::rehearse() {
  const std::vector<PageId> pages(static_cast<std::size_t>(table_stride_), 0);
  for (const std::int64_t cached : {std::int64_t{0}, std::int64_t{kCudaPageSize}}) {
    StepRows rows;
    while (static_cast<std::int64_t>(rows.sequences.size()) < std::min(limits_.max_sequences, limits_.max_logit_rows)) {
      const auto first = static_cast<std::int64_t>(rows.tokens.size());
      const std::int64_t count = std::min(limits_.max_tokens - first, limits_.max_context - cached);
      if (count < 2) break;  // one row is a decode step's
      for (std::int64_t i = 0; i < count; ++i) {
        rows.tokens.push_back(0);
        rows.positions.push_back(static_cast<std::int32_t>(cached + i));
        rows.slots.push_back(-1);
      }
      rows.sequences.push_back({.first_row = first, .rows = count, .context = cached + count, .pages = pages.data()});
      rows.logit_rows.push_back(first + count - 1);
    }
    if (!rows.sequences.empty()) forward(rows, {});
  }
  routes_.clear();
  route_seconds_.clear();
}

// The products that steps of every size will want, on activations as large as real ones, before a request waits for them. Those of
// the graphs' sizes are measured where they are captured.
void CudaDecoder::measure_products() {
  const DeviceLayer& layer = weights_.layers.front();
  const std::int64_t rows = limits_.max_tokens;
  for (std::int64_t i = 0; i < rows; ++i) tokens_.host.data()[i] = static_cast<std::int32_t>(mix64(static_cast<std::uint64_t>(i)) % static_cast<std::uint64_t>(config_.vocabulary));
  tokens_.send(stream_, rows);
  launch_embedding(rows);
  launch_norm(residual_.data(), false, weights_.final_norm, rows);
  const auto fill = [&](DeviceBuffer<std::uint16_t>& buffer) {
    for (std::size_t done = 0; done < buffer.size(); done += normed_.size()) {
      const std::size_t some = std::min(buffer.size() - done, normed_.size());
      check(cudaMemcpyAsync(buffer.data() + done, normed_.data(), some * sizeof(std::uint16_t), cudaMemcpyDeviceToDevice, stream_), "copy of activations");
    }
  };
  fill(attended_);
  fill(activated_);
  fill(last_rows_);
  const std::int64_t captured = limits_.graphs && refusals_.decode.empty() ? buckets_.back() : 0;
  // One of each size that choices are kept for.
  const auto next_smaller = [](std::int64_t tokens) { return static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(tokens)) / 2); };
  for (std::int64_t count = limits_.max_logit_rows; count > captured; count = next_smaller(count)) {
    product(weights_.head, last_rows_.data(), count, logits_.data(), DType::f32);
  }
  for (std::int64_t tokens = rows; tokens > captured; tokens = next_smaller(tokens)) {
    product(layer.qkv, normed_.data(), tokens, qkv_.data(), dtype_);
    product(layer.o, attended_.data(), tokens, projected_.data(), dtype_);
    product(gated_args(layer.gate_up, tokens));
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
  const std::size_t cudnn = cudnnGetVersion();
  return fmt::format("{}, compute capability {}.{}, {} multiprocessors, driver {}for CUDA {}, runtime {}, cuDNN {}.{}.{}", device_.name, device_.major, device_.minor,
                     device_.multiprocessors, device_.driver_version.empty() ? "" : device_.driver_version + " ", device_.driver, device_.runtime,
                     cudnn / 10000, cudnn / 100 % 100, cudnn % 100);
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

// Where a launch throws, those before it still read what the next step's host would overwrite.
StepResult CudaDecoder::forward(const StepRows& rows, std::span<const std::optional<DeviceSampling>> sampling) try {
  return step(rows, sampling);
} catch (...) {
  cudaStreamSynchronize(stream_);
  throw;
}

std::span<const float> CudaDecoder::logits(std::span<const std::int64_t> rows) try {
  return launch_logits(rows);
} catch (...) {
  cudaStreamSynchronize(stream_);
  throw;
}

StepResult CudaDecoder::step(const StepRows& rows, std::span<const std::optional<DeviceSampling>> sampling) {
  const ProfileRange range("step");
  const auto tokens = static_cast<std::int64_t>(rows.tokens.size()), outputs = static_cast<std::int64_t>(rows.logit_rows.size());
  keel::check(outputs <= limits_.max_logit_rows, "more logit rows than the decoder's scratch holds");
  keel::check(sampling.empty() || static_cast<std::int64_t>(sampling.size()) == outputs, "a sampling a logit row");
  stage(rows);
  AttentionPlan plan = plan_attention(rows.sequences, refusals_);
  timed_launches_ = 0;
  bool host_logits = sampling.empty() && outputs > 0;
  for (std::int64_t i = 0; i < outputs; ++i) {
    const std::optional<DeviceSampling> wish = sampling.empty() ? std::nullopt : sampling[static_cast<std::size_t>(i)];
    host_logits = host_logits || !wish;
    const DeviceSampling s = wish.value_or(DeviceSampling{.top_p = 1});
    sampling_.host.data()[i] = {.temperature = s.temperature, .top_p = s.top_p, .min_p = s.min_p, .top_k = s.top_k, .seed = s.seed, .draw = s.draw};
  }
  sampling_.send(stream_, outputs);

  // A graph has a logit row for each token, in their order.
  const bool all_in_order = std::ranges::equal(rows.logit_rows, std::views::iota(std::int64_t{0}, tokens));
  const bool decode_only = probe_ == nullptr && plan.decode_sequences == static_cast<std::int64_t>(rows.sequences.size()) && all_in_order && !rows.keep_all;
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
  count_routes(plan, rows);
  routed_ = std::move(plan.routed);
  if (outputs > 0) {
    copy_to_host(stream_, sampled_host_.data(), sampled_.data(), static_cast<std::size_t>(outputs));
    if (host_logits) copy_to_host(stream_, logits_host_.data(), logits_.data(), static_cast<std::size_t>(outputs * config_.vocabulary));
  }
  stream_.synchronize();
  add_route_times();
  StepResult result{.routed = routed_};
  if (host_logits) result.logits = {logits_host_.data(), static_cast<std::size_t>(outputs * config_.vocabulary)};
  if (!sampling.empty()) result.tokens = {sampled_host_.data(), static_cast<std::size_t>(outputs)};
  return result;
}

// A decode step through its bucket's graph; the rows past the step's own are padding that stores and attends to nothing.
void CudaDecoder::replay(std::int64_t tokens) {
  const ProfileRange range("replay");
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

// The products of a layer, by the time of some layers with all their kernels. The step's rows are padding, so attention takes no time.
void CudaDecoder::choose_decode_products(std::int64_t sequences) {
  constexpr std::int64_t kTimedLayers = 4;
  const DeviceLayer& layer = weights_.layers.front();
  const GemmArgs products[] = {gated_args(layer.gate_up, sequences), product_args(layer.down, activated_.data(), sequences, projected_.data()),
                               product_args(layer.qkv, normed_.data(), sequences, qkv_.data()),
                               product_args(layer.o, attended_.data(), sequences, projected_.data())};
  gemm_.prepare_together(stream_, products, [&] {
    launch_embedding(sequences);
    decode_attention_plan(stream_, decode_args(0, sequences));
    for (std::int64_t index = 0; index < std::min(kTimedLayers, config_.layers); ++index) launch_decode_layer(index, sequences);
  });
}

void CudaDecoder::capture(std::int64_t bucket) {
  pad(0, bucket);
  choose_decode_products(bucket);
  launch_decode(bucket);  // once as it is: products choose their algorithms, which a capture may not
  stream_.synchronize();
  graphs_[bucket] = StepGraph(stream_, [&] { launch_decode(bucket); });
}

std::span<const float> CudaDecoder::launch_logits(std::span<const std::int64_t> rows) {
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

void CudaDecoder::count_routes(const AttentionPlan& plan, const StepRows& rows) {
  for (const RoutedSequence& routed : plan.routed) {
    const std::string key = fmt::format("{}: {}", keel::name(routed.route), routed.reason);
    routes_[key] += rows.sequences[static_cast<std::size_t>(routed.sequence)].rows;
  }
}

void CudaDecoder::add_route_times() {
  for (; timed_launches_ > 0; --timed_launches_) {
    const TimedLaunches& one = timed_[timed_launches_ - 1];
    route_seconds_[std::string(keel::name(one.route))] += one.end.milliseconds_since(one.begin) * 1e-3;
  }
}

}  // namespace keel::cuda
