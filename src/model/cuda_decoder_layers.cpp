// A layer's launches, the same for a step that is captured and one that is not.
#include <cmath>

#include "kernels/embed/embed_cuda.h"
#include "kernels/kv_write/kv_write_cuda.h"
#include "kernels/rms_norm/rms_norm_cuda.h"
#include "model/cuda_decoder.h"

namespace keel::cuda {
namespace {

// Up to this many rows a projection takes kernels that cannot sum it into the residual stream, and leaves that to the norm that
// follows; more rows the product itself adds.
constexpr std::int64_t kMostUnaddedRows = 512;

}  // namespace

bool CudaDecoder::is_added(std::int64_t rows) { return rows > kMostUnaddedRows; }

void CudaDecoder::product(const GemmWeights& weights, const void* x, std::int64_t tokens, void* out, DType out_type) {
  product({.weights = weights, .x = x, .tokens = tokens, .out = out, .out_type = out_type});
}

GemmArgs CudaDecoder::product_args(const GemmWeights& weights, const void* x, std::int64_t tokens, void* out) const {
  return {.weights = weights, .x = x, .tokens = tokens, .out = out, .out_type = dtype_};
}
GemmArgs CudaDecoder::gated_args(const GemmWeights& weights, std::int64_t tokens) {
  GemmArgs args = product_args(weights, normed_.data(), tokens, activated_.data());
  args.gate_up = gate_up_.data();
  return args;
}

void CudaDecoder::product(const GemmArgs& args) {
  cudaStreamCaptureStatus capturing = cudaStreamCaptureStatusNone;
  if (measuring_) check(cudaStreamIsCapturing(stream_, &capturing), "state of the stream");
  if (measuring_ && capturing == cudaStreamCaptureStatusNone) {
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
  if (measuring_ && !gemm_.prepared(args)) gemm_.prepare(stream_, args);  // which overwrites its output
  args.out = residual;
  args.accumulate = true;
  gemm_.run(stream_, args);
}

// After add_product of the attention's projection; ends with the feed-forward's.
void CudaDecoder::launch_mlp(const DeviceLayer& layer, std::uint16_t* residual, std::int64_t rows) {
  launch_norm(residual, !is_added(rows), layer.mlp_norm, rows);
  product(gated_args(layer.gate_up, rows));
  add_product(layer.down, activated_.data(), residual, rows);
}

void CudaDecoder::launch_embedding(std::int64_t rows) {
  embed(stream_, {.dtype = dtype_, .embedding = weights_.embedding, .tokens = tokens_.device.data(), .out = residual_.data(),
                  .rows = rows, .width = config_.hidden});
}

void CudaDecoder::launch_decode_layer(std::int64_t index, std::int64_t sequences) {
  const DeviceLayer& layer = weights_.layers[static_cast<std::size_t>(index)];
  launch_attention_inputs(index, sequences, false);
  DecodeAttentionArgs attention = decode_args(index, sequences);
  attention.early = true;  // rope_write comes just before
  decode_attention(stream_, attention);
  add_product(layer.o, attended_.data(), residual_.data(), sequences);
  launch_mlp(layer, residual_.data(), sequences);
}

void CudaDecoder::launch_decode(std::int64_t sequences) {
  launch_embedding(sequences);
  decode_attention_plan(stream_, decode_args(0, sequences));
  for (std::int64_t index = 0; index < config_.layers; ++index) launch_decode_layer(index, sequences);
  launch_norm(residual_.data(), !is_added(sequences), weights_.final_norm, sequences);
  launch_head(normed_.data(), sequences);
}

// Past the last layer's attention only the rows whose logits are wanted matter: the others' last output projection and
// feed-forward, a fortieth of a prompt's work, are left out.
void CudaDecoder::launch_mixed(const StepRows& rows, AttentionPlan& plan) {
  const ProfileRange range(plan.only(Route::decode) ? "decode rows" : "prompt rows");
  const auto tokens = static_cast<std::int64_t>(rows.tokens.size()), outputs = static_cast<std::int64_t>(rows.logit_rows.size());
  launch_embedding(tokens);
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

// A route's launches of one layer, named in profilers' timelines and between two events where routes are timed.
template <class Launch>
void CudaDecoder::timed(Route route, Launch&& launch) {
  const ProfileRange range(name(route).data());
  if (!limits_.profile_routes) return launch();
  if (timed_launches_ == timed_.size()) timed_.emplace_back();
  TimedLaunches& one = timed_[timed_launches_++];
  one.route = route;
  one.begin.record(stream_);
  launch();
  one.end.record(stream_);
}

void CudaDecoder::launch_attention(std::int64_t index, const StepRows& rows, AttentionPlan& plan) {
  if (plan.decode_sequences > 0) timed(Route::decode, [&] { decode_attention(stream_, decode_args(index, plan.decode_sequences)); });
  launch_prefill_attention(index, rows, plan);
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

// Plain last: what the others leave to it is its from here on.
void CudaDecoder::launch_prefill_attention(std::int64_t layer, const StepRows& rows, AttentionPlan& plan) {
  for (const Route route : {Route::fresh, Route::gather, Route::plain}) {
    std::vector<PrefillSequence> sequences;
    std::vector<PrefillRefusal> refused;
    for (const RoutedSequence& routed : plan.routed) {
      if (routed.route != route) continue;
      const AttentionSequence& s = rows.sequences[static_cast<std::size_t>(routed.sequence)];
      sequences.push_back({.first_row = s.first_row, .rows = s.rows, .context = s.context, .table_row = routed.sequence});
    }
    if (sequences.empty()) continue;
    PrefillAttentionArgs args = prefill_args(layer);
    args.sequences = sequences;
    timed(route, [&] {
      if (route == Route::plain) return prefill_.plain(stream_, args);
      if (faults_.native_refuses) {
        for (std::size_t i = 0; i < sequences.size(); ++i) refused.push_back({i, "a check has it refused"});
      } else {
        route == Route::fresh ? prefill_.fresh(stream_, args, &refused) : prefill_.gather(stream_, args, &refused);
      }
    });
    for (const auto& [sequence, reason] : refused) {
      RoutedSequence& routed = plan.routed[static_cast<std::size_t>(sequences[sequence].table_row)];
      routed.route = Route::plain;
      routed.reason = reason;
    }
  }
}

// Logits and samples of `count` rows of final hidden states.
void CudaDecoder::launch_head(const std::uint16_t* rows, std::int64_t count) {
  const ProfileRange range("head and sampling");
  product(weights_.head, rows, count, logits_.data(), DType::f32);
  sample(stream_, {.logits = logits_.data(), .rows = count, .vocabulary = config_.vocabulary, .rows_sampling = sampling_.device.data(),
                   .tokens = sampled_.data()});
}
}  // namespace keel::cuda
