// Attention of many query rows on CUDA, three ways (see paged_attention.h for the operation):
//   plain   a tensor-core kernel that reads the pages: every pair and shape; the named fallback
//   fresh   whole prompts with nothing cached: cuDNN straight on the activations, whose V has been rounded in place
//   gather  a cached prefix or a chunk: pages into one bounded workspace in the model's type, then cuDNN with a bottom-right
//           causal mask; contexts past the workspace in tiles merged by their log-sum-exp
// All agree within the bound that the test states. A NaN or an infinity in the cache may reach every row of its own sequence,
// and no other sequence's.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "kv/view.h"

namespace keel::cuda {

// On the host: routing needs it there.
struct PrefillSequence {
  std::int64_t first_row;  // of q and out
  std::int64_t rows;       // n >= 1
  std::int64_t context;    // cached tokens, these rows included
  std::int64_t table_row;  // of the page table
};

// Rows past the last sequence's that cuDNN may read of q, k and v, and makes no use of: a tile of its kernels.
inline constexpr std::int64_t kPrefillSpareRows = 256;

struct PrefillAttentionArgs {
  DType dtype;            // f16 or bf16: q, k, v and out
  const void* q;          // [rows of all sequences, q_stride], H heads of D at the start of each row; then spare rows
  std::int64_t q_stride;  // elements
  void* out;              // [rows, out_stride]; must not overlap q; only the sequences' rows are written
  std::int64_t out_stride;
  std::int64_t heads;
  float softmax_scale;
  KvLayerView kv;         // pages and scales in device memory
  const std::int32_t* page_table;  // device, [..][page_table_stride]
  std::int64_t page_table_stride;
  std::span<const PrefillSequence> sequences;  // host
  // fresh only: this step's K after RoPE and V as the cache reads them back, rows like q's
  const void* k = nullptr;  // [rows, kv_stride], G heads of D
  const void* v = nullptr;
  std::int64_t kv_stride = 0;
};

// A sequence that a route did not serve: the plain one does.
struct PrefillRefusal {
  std::size_t sequence;  // of args.sequences
  const char* reason;    // one of few wordings
};

// Empty where the route serves this geometry; else the missing cell, named. Native: fresh and gather.
std::string plain_prefill_refusal(const KvLayout& layout, DType dtype, std::int64_t heads);
std::string native_prefill_refusal(const KvLayout& layout, DType dtype, std::int64_t heads);

// Owns cuDNN's handle, its plans (built once a shape bucket and kept) and the gather's workspace. One stream at a time.
class PrefillAttention {
 public:
  // max_rows: of a call. workspace_bytes 0: the plain route alone.
  PrefillAttention(const KvLayout& layout, DType dtype, std::int64_t heads, std::int64_t max_rows, std::int64_t workspace_bytes);
  ~PrefillAttention();

  void plain(cudaStream_t stream, const PrefillAttentionArgs& args);
  // Sequences that cuDNN does not run go to `refused`, their rows undefined; without it an Error is thrown.
  void fresh(cudaStream_t stream, const PrefillAttentionArgs& args, std::vector<PrefillRefusal>* refused = nullptr);  // every sequence: rows == context
  void gather(cudaStream_t stream, const PrefillAttentionArgs& args, std::vector<PrefillRefusal>* refused = nullptr);

  // Build what the first such call would build (tens of milliseconds a plan): lengths and strides matter, pointers do not. cuDNN's
  // workspace grows here alone: a call whose plan wants more is refused.
  void prepare_fresh(const PrefillAttentionArgs& args);
  void prepare_gather(const PrefillAttentionArgs& args);
  // Times the two forms of a causal mask over a prompt of `rows` rows of args' tensors, which it reads and overwrites: for fresh prompts they
  // mean the same, and which is faster depends on cuDNN's version.
  void choose_mask(const PrefillAttentionArgs& args, std::int64_t rows);
  // Builds the longest plan of each kind that calls of up to max_rows rows want; where cuDNN has none of them, native_refusal() says why
  // from then on. With `common` it chooses the mask, then builds the plans of prompts of up to 8,192 tokens in batches, chunks of max_rows,
  // and single prompts behind a prefix. `args` as in a call of max_rows rows, without sequences.
  void prepare(PrefillAttentionArgs args, std::int64_t max_rows, std::int64_t max_context, bool common);

  const std::string& native_refusal() const;  // of this geometry, or of all plans; empty where fresh and gather serve
  std::int64_t workspace_bytes() const;       // device memory held
  std::int64_t plans_built() const;           // by cuDNN, so far

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace keel::cuda
