#include "model/decoder.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/error.h"
#include "kernels/kv_write/kv_write.h"
#include "kernels/matmul/matmul.h"
#include "kernels/rms_norm/rms_norm.h"
#include "kernels/silu_mul/silu_mul.h"

namespace keel {

void StepRows::clear() {
  tokens.clear();
  positions.clear();
  slots.clear();
  sequences.clear();
  logit_rows.clear();
  keep_all = false;
}

namespace {

std::int64_t products_workspace(const ModelWeights& weights, std::int64_t max_tokens, std::int64_t max_logit_rows) {
  std::int64_t bytes = matmul_workspace(weights.head, max_logit_rows);
  for (const LayerWeights& layer : weights.layers) {
    for (const WeightMatrix* matrix : {&layer.q, &layer.k, &layer.v, &layer.o, &layer.gate, &layer.up, &layer.down}) {
      bytes = std::max(bytes, matmul_workspace(*matrix, max_tokens));
    }
  }
  return bytes;
}

}  // namespace

Decoder::Decoder(const LoadedModel& model,
                 const KvLayout& layout,
                 std::int64_t max_tokens,
                 std::int64_t max_logit_rows,
                 int threads)
    : config_(model.config),
      weights_(model.weights),
      residual_(max_tokens * config_.hidden, "the residual stream"),
      normed_(std::max(max_tokens, max_logit_rows) * config_.hidden, "normalised activations"),
      qkv_(max_tokens * (config_.heads + 2 * config_.kv_heads) * config_.head_dim, "queries, keys and values"),
      angles_(max_tokens * config_.rotary_dim, "rotary angles"),
      attended_(max_tokens * config_.heads * config_.head_dim, "attention outputs"),
      gate_(max_tokens * config_.intermediate, "feed-forward activations"),
      up_(max_tokens * config_.intermediate, "feed-forward activations"),
      logits_(max_logit_rows * config_.vocabulary, "logits"),
      workspace_(paged_attention_workspace(layout, config_.heads, max_tokens, threads), "attention scratch"),
      quantized_(products_workspace(weights_, max_tokens, max_logit_rows), "activations as integers"),
      max_tokens_(max_tokens),
      max_logit_rows_(max_logit_rows) {}

std::int64_t Decoder::scratch_bytes() const {
  return residual_.bytes() + normed_.bytes() + qkv_.bytes() + angles_.bytes() + attended_.bytes() +
         gate_.bytes() + up_.bytes() + logits_.bytes() + workspace_.bytes() + quantized_.bytes();
}

std::span<const float> Decoder::forward(const Stream& stream, const StepRows& rows, KvPool& pool) {
  const std::int64_t tokens = static_cast<std::int64_t>(rows.tokens.size());
  check(tokens > 0 && tokens <= max_tokens_, "a step's rows must fit the decoder's scratch");
  stream.workers->parallel_for(tokens, [&](std::int64_t row, int) {
    dequantize_row(weights_.embedding, rows.tokens[row], residual_.data() + row * config_.hidden);
  });
  rope_angles(stream, {.positions = rows.positions, .inverse_frequencies = config_.inverse_frequencies.data(),
                       .rotary_dim = config_.rotary_dim, .magnitude = config_.rope_magnitude, .angles = angles_.data()});
  for (std::int64_t layer = 0; layer < config_.layers; ++layer) {
    attention_block(stream, weights_.layers[layer], layer, rows, pool);
    mlp_block(stream, weights_.layers[layer], tokens);
  }
  return logits(stream, rows.logit_rows);
}

void Decoder::attention_block(const Stream& stream,
                              const LayerWeights& layer,
                              std::int64_t index,
                              const StepRows& rows,
                              KvPool& pool) {
  const std::int64_t tokens = static_cast<std::int64_t>(rows.tokens.size());
  const std::int64_t hidden = config_.hidden, head_dim = config_.head_dim;
  const std::int64_t q_width = config_.heads * head_dim, kv_width = config_.kv_heads * head_dim;
  float* q = qkv_.data();
  float* k = q + tokens * q_width;
  float* v = k + tokens * kv_width;

  rms_norm(stream, {.x = residual_.data(), .x_stride = hidden, .weight = layer.attention_norm,
                    .out = normed_.data(), .out_stride = hidden, .rows = tokens, .width = hidden,
                    .epsilon = config_.rms_epsilon});
  const MatmulOutput projections[] = {
      {.weights = layer.q, .bias = layer.q_bias, .out = q, .out_stride = q_width},
      {.weights = layer.k, .bias = layer.k_bias, .out = k, .out_stride = kv_width},
      {.weights = layer.v, .bias = layer.v_bias, .out = v, .out_stride = kv_width}};
  matmul(stream, {.x = normed_.data(), .x_stride = hidden, .tokens = tokens, .outputs = projections, .workspace = quantized_.span()});

  const auto norm_heads_and_rotate = [&](float* x, std::int64_t heads, const float* norm) {
    if (norm != nullptr) {
      rms_norm(stream, {.x = x, .x_stride = head_dim, .weight = norm, .out = x, .out_stride = head_dim,
                        .rows = tokens * heads, .width = head_dim, .epsilon = config_.rms_epsilon});
    }
    rope(stream, {.x = x, .tokens = tokens, .token_stride = heads * head_dim, .heads = heads, .head_dim = head_dim,
                  .rotary_dim = config_.rotary_dim, .pairs = config_.rope_pairs, .angles = angles_.data()});
  };
  norm_heads_and_rotate(q, config_.heads, layer.q_norm);
  norm_heads_and_rotate(k, config_.kv_heads, layer.k_norm);
  if (kv_hook_) kv_hook_(index, rows, k, v);

  KvLayerView cache = pool.layer(index);
  kv_write(stream, {.k = k, .v = v, .slots = rows.slots, .kv = cache});
  const auto count = [](std::int64_t floats) { return static_cast<std::size_t>(floats); };
  AttentionCall call{.layer = index, .rows = rows, .q = {q, count(tokens * q_width)}, .k = {k, count(tokens * kv_width)},
                     .v = {v, count(tokens * kv_width)}, .read_layer = index};
  if (probe_ != nullptr) {
    probe_->before(call);
    cache = pool.layer(call.read_layer);
    if (call.values_are_keys) cache.values = cache.keys;
  }
  paged_attention(stream, {.q = q, .out = attended_.data(), .heads = config_.heads,
                           .softmax_scale = 1.0f / std::sqrt(static_cast<float>(head_dim)), .kv = cache,
                           .sequences = rows.sequences, .workspace = workspace_.span()});
  if (probe_ != nullptr) {
    call.out = {attended_.data(), count(tokens * q_width)};
    probe_->after(call);
  }
  const MatmulOutput output[] = {{.weights = layer.o, .bias = layer.o_bias, .out = residual_.data(),
                                  .out_stride = hidden, .accumulate = true}};
  matmul(stream, {.x = attended_.data(), .x_stride = q_width, .tokens = tokens, .outputs = output, .workspace = quantized_.span()});
}

void Decoder::mlp_block(const Stream& stream, const LayerWeights& layer, std::int64_t tokens) {
  const std::int64_t hidden = config_.hidden, width = config_.intermediate;
  rms_norm(stream, {.x = residual_.data(), .x_stride = hidden, .weight = layer.mlp_norm, .out = normed_.data(),
                    .out_stride = hidden, .rows = tokens, .width = hidden, .epsilon = config_.rms_epsilon});
  const MatmulOutput gate_and_up[] = {{.weights = layer.gate, .out = gate_.data(), .out_stride = width},
                                      {.weights = layer.up, .out = up_.data(), .out_stride = width}};
  matmul(stream, {.x = normed_.data(), .x_stride = hidden, .tokens = tokens, .outputs = gate_and_up, .workspace = quantized_.span()});
  silu_mul(stream, {.gate = gate_.data(), .up = up_.data(), .in_stride = width, .out = gate_.data(),
                    .out_stride = width, .rows = tokens, .width = width});
  const MatmulOutput down[] = {{.weights = layer.down, .out = residual_.data(), .out_stride = hidden, .accumulate = true}};
  matmul(stream, {.x = gate_.data(), .x_stride = width, .tokens = tokens, .outputs = down, .workspace = quantized_.span()});
}

std::span<const float> Decoder::logits(const Stream& stream, std::span<const std::int64_t> rows) {
  const std::int64_t count = static_cast<std::int64_t>(rows.size()), hidden = config_.hidden;
  check(count <= max_logit_rows_, "more logit rows than the decoder's scratch holds");
  if (count == 0) return {};
  for (std::int64_t i = 0; i < count; ++i) {
    std::memcpy(normed_.data() + i * hidden, residual_.data() + rows[i] * hidden, hidden * sizeof(float));
  }
  rms_norm(stream, {.x = normed_.data(), .x_stride = hidden, .weight = weights_.final_norm, .out = normed_.data(),
                    .out_stride = hidden, .rows = count, .width = hidden, .epsilon = config_.rms_epsilon});
  const MatmulOutput head[] = {{.weights = weights_.head, .out = logits_.data(), .out_stride = config_.vocabulary}};
  matmul(stream, {.x = normed_.data(), .x_stride = hidden, .tokens = count, .outputs = head, .workspace = quantized_.span()});
  return {logits_.data(), static_cast<std::size_t>(count * config_.vocabulary)};
}

}  // namespace keel
