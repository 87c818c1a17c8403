// Decode attention on CUDA: a few query rows per sequence over compressed pages of any length (see paged_attention.h for
// the operation; pages are PageOrder::cuda).
//
// Supported: keys f16, bf16 (the dtype of q) or e4m3; values f16, bf16 (the dtype of q), e4m3 or u4; D 64 and 128; heads/kv_heads 1..16;
// page size 16; 1..8 rows a sequence, the last `rows` positions of its context (bottom-right causal mask).
//
// Everything that changes from step to step is read from device memory, so that a captured launch stays valid:
// page tables, contexts, and the split of long contexts, which a small kernel plans on the device.
// Deterministic: equal inputs give equal bytes, whatever ran before. Slots at or past a context may hold anything.
//
// Error against exact arithmetic on the stored values: stated in the test, computed from the types' roundoff.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <string>

#include "base/dtype.h"
#include "kv/view.h"

namespace keel::cuda {

struct DecodeAttentionArgs {
  DType dtype;            // f16 or bf16: q's and out's
  const void* q;          // [sequences · rows, q_stride], H heads of D at the start of each row
  std::int64_t q_stride;  // elements
  void* out;              // [sequences · rows, out_stride]; must not overlap q
  std::int64_t out_stride;
  std::int64_t heads;     // H
  float softmax_scale;
  KvLayerView kv;         // pages and scales in device memory
  const std::int32_t* page_table;  // device, [sequences][page_table_stride]
  std::int64_t page_table_stride;
  const std::int32_t* contexts;    // device, [sequences]: cached tokens, these rows included; 0 = a padded row: out is zeroed
  std::int64_t sequences;          // of the launch: a graph's bucket
  std::int64_t rows = 1;           // query rows a sequence
  // Start while the launch before this one still runs (device/launch.cuh). That launch must be one that writes q and these
  // rows' own keys and values alone: contexts, page tables, the plan and older tokens are read before it has ended.
  bool early = false;
  void* workspace;                 // decode_attention_workspace() bytes of device memory, 256-byte aligned;
                                   // decode_attention_plan() must have run on the stream for these contexts
};

// Bytes for any launch of at most `sequences` sequences of `rows` rows each on the current device.
std::int64_t decode_attention_workspace(const KvLayout& layout, std::int64_t heads, std::int64_t sequences, std::int64_t rows);

// Splits the work of this step over the device, once for all layers: reads contexts, writes the plan to the workspace.
void decode_attention_plan(cudaStream_t stream, const DecodeAttentionArgs& args);

void decode_attention(cudaStream_t stream, const DecodeAttentionArgs& args);

// Empty when served; else the missing cell: "decode attention on CUDA: head dim 80 ..., wanted 64 or 128".
std::string decode_attention_refusal(const KvLayout& layout, DType dtype, std::int64_t heads);

}  // namespace keel::cuda
