// The work of one task: attention of a tile of query rows that share a KV head over a range of positions.
//
// A tile's rows are (query row, head of the group) pairs: row m is query row m / group, head m % group of the group.
#pragma once

#include <cstdint>

#include "kernels/paged_attention/attention_state.h"
#include "kv/view.h"

namespace keel {

constexpr std::int64_t kTileRows = 96;     // at most: queries, scores and sums of a tile stay in a 1 MiB L2
constexpr std::int64_t kBlockTokens = 128;  // positions taken through scores, softmax and values together
constexpr std::int64_t kStripTokens = 16;  // positions contiguous in memory at any page size

struct AttentionTile {
  const float* q;         // query row 0, the group's first head; heads are contiguous
  std::int64_t q_stride;  // floats between query rows
  std::int64_t group;     // query heads of this KV head
  std::int64_t first;     // first m
  std::int64_t rows;      // number of m, 1 … kTileRows
  std::int64_t unmasked;  // query row i sees positions t < unmasked + i
  float softmax_scale;
  const KvLayerView* kv;
  std::int64_t kv_head;
  const PageId* pages;

  std::int64_t limit(std::int64_t row) const { return unmasked + (first + row) / group; }
  std::int64_t end() const { return limit(rows - 1); }
};

// Positions [begin, end) of a tile.
struct AttentionRange {
  const AttentionTile* tile = nullptr;
  std::int64_t begin = 0, end = 0;
};

// Floats of scratch that attend() wants for any tile; a multiple of 16. Must be 64-byte aligned.
std::int64_t attention_scratch_floats(std::int64_t head_dim);

// state = attention over the range, end <= tile.end(), begin a multiple of kStripTokens. `next` is what this thread probably
// takes after it, if anything: its first block is fetched ahead. Values are those stored, without the scale that value_factor() names.
void attend(const AttentionRange& range,
            const AttentionRange& next,
            const AttentionState& state,
            float* scratch);

// What state.out is to be multiplied by: the KV head's scale and the loads' constant factor.
float value_factor(const KvLayerView& kv, std::int64_t kv_head);

}  // namespace keel
