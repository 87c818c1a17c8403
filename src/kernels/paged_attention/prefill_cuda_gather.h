// The kernels beside cuDNN in the gather route: pages to rows in the model's type, and tiles of one softmax to a whole.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "base/dtype.h"
#include "kv/view.h"

namespace keel::cuda {

inline constexpr int kNativeSequences = 16;  // a call of cuDNN, and a gather

struct GatheredSequence {
  std::int64_t table_row;
  std::int64_t first_page, tokens;  // of the context
  std::int64_t to;                  // its first row of keys and values
};

struct GatherArgs {
  DType dtype;
  KvLayerView kv;
  const std::int32_t* page_table;
  std::int64_t page_table_stride;
  void* keys;    // [rows, G, D]
  void* values;  // [rows, G, D]: stored · scale, rounded to dtype as rope_write's rounding leaves it
  std::int64_t zero_rows = 0;  // after the last sequence
  int count = 0;
  GatheredSequence sequence[kNativeSequences];
};
// Rows past a sequence's tokens, up to a multiple of 16, become zeros too.
void gather_pages(cudaStream_t stream, const GatherArgs& args);

// Merges one tile's normalised output into a running one, by the rows' log-sum-exp.
struct MergeArgs {
  DType dtype;
  const void* tile;         // [rows, heads, head_dim]
  const float* tile_stats;  // [heads, stats_stride]
  std::int64_t stats_stride;
  float* sum;               // [rows, heads, head_dim]
  float* stats;             // [rows, heads]
  void* out;                // [rows, out_stride]: written by the last tile
  std::int64_t out_stride;
  std::int64_t rows, heads, head_dim;
  bool first, last;
};
void merge_tile(cudaStream_t stream, const MergeArgs& args);

// Small integers from the host to device memory in stream order, without a copy that the host must keep alive.
struct Integers {
  std::int32_t value[5 * (kNativeSequences + 1)];
};
void write_integers(cudaStream_t stream, const Integers& integers, std::int32_t* to);

}  // namespace keel::cuda
