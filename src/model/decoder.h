// The forward pass that every supported family shares: pre-norm attention and SwiGLU blocks with residuals.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "device/buffer.h"
#include "device/stream.h"
#include "kernels/paged_attention/paged_attention.h"
#include "kv/pool.h"
#include "model/attention_probe.h"
#include "model/weights.h"

namespace keel {

// One step's rows, flattened: sequences one after another, each a run of consecutive positions.
struct StepRows {
  std::vector<std::int32_t> tokens;     // [T]
  std::vector<std::int32_t> positions;  // [T]
  std::vector<std::int64_t> slots;      // [T], where each row's K and V go
  std::vector<AttentionSequence> sequences;
  std::vector<std::int64_t> logit_rows;  // [R] rows of T whose logits are wanted
  bool keep_all = false;                 // other rows' logits will be asked for after the forward

  void clear();
};

// Scratch is sized once for `max_tokens` rows. Thread rule: one forward at a time.
class Decoder {
 public:
  // `model` must outlive the decoder.
  Decoder(const LoadedModel& model,
          const KvLayout& layout,
          std::int64_t max_tokens,
          std::int64_t max_logit_rows,
          int threads);

  // Writes the rows' K and V into `pool`; returns logits of rows.logit_rows [R, vocabulary], valid until the next call.
  std::span<const float> forward(const Stream& stream, const StepRows& rows, KvPool& pool);

  // Logits of other rows of the last forward, at most max_logit_rows a call; valid until the next call.
  std::span<const float> logits(const Stream& stream, std::span<const std::int64_t> rows);

  std::int64_t max_logit_rows() const { return max_logit_rows_; }

  // Called with each layer's new K and V (after RoPE) before they are cached, [T, kv_heads, head_dim], and free to change
  // them; for calibration and probes.
  using KvHook = std::function<void(std::int64_t layer, const StepRows& rows, float* k, float* v)>;
  void on_new_kv(KvHook hook) { kv_hook_ = std::move(hook); }
  void probe_attention(AttentionProbe* probe) { probe_ = probe; }  // null: none

  std::int64_t scratch_bytes() const;

 private:
  void attention_block(const Stream& stream, const LayerWeights& layer, std::int64_t index, const StepRows& rows, KvPool& pool);
  void mlp_block(const Stream& stream, const LayerWeights& layer, std::int64_t rows);

  const ModelConfig& config_;
  const ModelWeights& weights_;
  Buffer<float> residual_;   // [T, hidden]
  Buffer<float> normed_;     // [max(T, R), hidden]
  Buffer<float> qkv_;        // q [T, H·D], k [T, G·D], v [T, G·D], one after another
  Buffer<float> angles_;     // RoPE's, [T, rotary_dim]
  Buffer<float> attended_;   // [T, H·D]
  Buffer<float> gate_;       // [T, intermediate]
  Buffer<float> up_;         // [T, intermediate]
  Buffer<float> logits_;     // [R, vocabulary]
  Buffer<float> workspace_;  // paged attention's
  Buffer<std::byte> quantized_;  // activations as integers, for products with quantised weights
  KvHook kv_hook_;
  AttentionProbe* probe_ = nullptr;
  std::int64_t max_tokens_;
  std::int64_t max_logit_rows_;
};

}  // namespace keel
