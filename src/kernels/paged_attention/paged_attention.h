// Causal attention of query rows over a paged cache: decode (1 row), prefill, chunk and cached prefix are one operation.
//
//   out[r, h] = Σ_t p[t] · V[t, h / (H/G)],   p = softmax_t(softmax_scale · q[r, h] · K[t, h / (H/G)])
//
// A sequence's row i of n sees the positions t < context - n + i + 1 (bottom-right causal mask): its own K and V must
// have been written before. K and V are read in their stored types, times their scales; scores, softmax and sums are f32.
// Slots at or past `context` may hold anything, NaN included, and do not matter.
// An infinity or NaN at a position reaches the rows that see it and no other.
//
// Error against exact arithmetic on the stored values: <= (2^-18 + 2^-20 · largest Σ|q·k| · softmax_scale) · Σ p|v|; the second
// term is the scores' own f32 rounding. Tested for contexts up to 9,000.
// Result does not depend on other sequences in the call; it may depend on the number of rows of its own sequence.
#pragma once

#include <cstdint>
#include <span>

#include "device/stream.h"
#include "kv/view.h"

namespace keel {

struct AttentionSequence {
  std::int64_t first_row;  // of q and out
  std::int64_t rows;       // n >= 1
  std::int64_t context;    // cached tokens, this call's included: >= rows
  const PageId* pages;     // [ceil(context / page_size)], in order
};

struct PagedAttentionArgs {
  const float* q;     // [rows of all sequences, heads, head_dim]
  float* out;         // same shape; must not overlap q
  std::int64_t heads;  // H: a multiple of kv_heads
  float softmax_scale;
  KvLayerView kv;
  std::span<const AttentionSequence> sequences;  // rows disjoint
  std::span<float> workspace;  // >= paged_attention_workspace(...) floats, contents undefined before and after
};

// Floats wanted for any call of at most `rows` rows in all on that many threads.
std::int64_t paged_attention_workspace(const KvLayout& layout,
                                       std::int64_t heads,
                                       std::int64_t rows,
                                       int threads);

void paged_attention(const Stream& stream, const PagedAttentionArgs& args);

// Whether the kernels serve this format: dispatch, tests, `keel inspect kernels` and the docs read this one list.
// Any of f32, f16, bf16, e4m3 as keys; any of those or u4 as values; head_dim a multiple of 16 up to 256.
std::span<const KvFormat> paged_attention_formats();

}  // namespace keel
