#include "kernels/paged_attention/attention_tile.h"

#include "kernels/cpu_features.h"
#include "kernels/cpu_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/paged_attention/attention_tile.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <algorithm>
#include <limits>

#include "base/error.h"
#include "kernels/fetch.h"
#include "kernels/paged_attention/exp2-inl.h"
#include "kernels/paged_attention/stored_elements-inl.h"

HWY_BEFORE_NAMESPACE();
namespace keel {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
using F = HWY_CAPPED(float, 16);
using V = hn::Vec<F>;
constexpr int kLanes = static_cast<int>(MaxLanes(F()));
constexpr int kVectorsPerStrip = static_cast<int>(kStripTokens) / kLanes;
constexpr int kStrips = static_cast<int>(kBlockTokens / kStripTokens);

// Query rows taken through a register block together. With 32 registers of 16 lanes, 6 rows · 4 vectors of sums leave room for
// 4 loads; with 16 registers of 8 lanes it is 6 · 2.
constexpr int kPanelRows = 6;
constexpr int kStripsAtOnce = kLanes == 16 ? 4 : 1;
constexpr int kVectorsAtOnce = kLanes == 16 ? 4 : 2;

// Where a block's positions lie, and where the next block's do (to be fetched meanwhile).
// A strip is 16 positions of one page: keys [head_dim] rows of 16, `key_stride` elements apart; values [16][head_dim].
struct Block {
  std::int64_t tokens = 0;
  const std::byte* keys[kStrips] = {};
  const std::byte* values[kStrips] = {};
  const std::byte* value_parameters[kStrips] = {};  // u4: {scale, zero} of each token
};

Block LocateBlock(const AttentionTile& tile, std::int64_t begin, std::int64_t end) {
  const KvLayout& layout = *tile.kv->layout;
  const std::int64_t page_size = layout.geometry().page_size;
  const int key_bits = bits(layout.format().key);
  const int value_bits = bits(layout.format().value);
  Block block;
  block.tokens = std::min(end - begin, kBlockTokens);
  const PageId* pages = tile.pages + begin / page_size;
  std::int64_t slot = begin % page_size;
  for (int s = 0; s < kStrips; ++s, slot += kStripTokens) {
    if (s * kStripTokens >= block.tokens) {  // may be computed with the rest, but is never looked at
      block.keys[s] = block.keys[0];
      block.values[s] = block.values[0];
      block.value_parameters[s] = block.value_parameters[0];
      continue;
    }
    if (slot == page_size) ++pages, slot = 0;
    const PageId page = *pages;
    block.keys[s] = tile.kv->key_page(page) + layout.key_element(tile.kv_head, slot, 0) * key_bits / 8;
    block.values[s] =
        tile.kv->value_page(page) + layout.value_element(tile.kv_head, slot, 0) * value_bits / 8;
    if (layout.format().value == DType::u4) {
      block.value_parameters[s] =
          tile.kv->value_page(page) + layout.value_parameters_offset(tile.kv_head, slot);
    }
  }
  return block;
}

// Asks for strips that are wanted soon, a few lines at a time: `rows` rows of a strip, `stride` bytes apart, rows that
// share a 64-byte line once.
struct FetchAhead {
  const std::byte* const* bases;
  std::int64_t step;   // bytes
  std::int64_t every;  // rows to a step
  std::int64_t bytes;  // of a strip
  FetchAhead(const std::byte* const* bases, std::int64_t rows, std::int64_t stride)
      : bases(bases),
        step(std::max<std::int64_t>(64, stride)),
        every(stride < 64 ? 64 / stride : 1),
        bytes(rows * stride) {}
};

// scores[r][t] = Σ_d q[d][r] · key[d][t] for t < tokens and some beyond; every load serves kRows rows.
template <class Key, int kRows>
void ScorePanel(const float* HWY_RESTRICT q,  // [head_dim][kRows]
                std::int64_t head_dim,
                std::int64_t tokens,
                const std::byte* const* strips,
                std::int64_t key_stride,
                const FetchAhead* ahead,  // values of the same block, a row a dimension
                float* HWY_RESTRICT scores) {  // [kRows][kBlockTokens]
  const F d;
  for (int s0 = 0; s0 * kStripTokens < tokens; s0 += kStripsAtOnce) {
    constexpr int kVectors = kStripsAtOnce * kVectorsPerStrip;
    const typename Key::T* from[kStripsAtOnce];
    for (int s = 0; s < kStripsAtOnce; ++s) {
      from[s] = reinterpret_cast<const typename Key::T*>(strips[s0 + s]);
    }
    V sums[kRows][kVectors];
    for (auto& row : sums) {
      for (auto& sum : row) sum = hn::Zero(d);
    }
    const std::int64_t fetch_every = ahead != nullptr ? ahead->every : 0;
    std::int64_t fetch_offset = 0;
    for (std::int64_t dim = 0; dim < head_dim; ++dim) {
      V key[kVectors];
#pragma GCC unroll 16
      for (int v = 0; v < kVectors; ++v) {
        key[v] = Key::Load(
            d, from[v / kVectorsPerStrip] + dim * key_stride + v % kVectorsPerStrip * kLanes);
      }
      if (fetch_every != 0 && (dim & (fetch_every - 1)) == 0) {
        for (int s = 0; s < kStripsAtOnce; ++s) fetch_ahead(ahead->bases[s0 + s] + fetch_offset);
        fetch_offset += ahead->step;
      }
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
        const V factor = hn::Set(d, q[dim * kRows + r]);
#pragma GCC unroll 16
        for (int v = 0; v < kVectors; ++v) sums[r][v] = hn::MulAdd(key[v], factor, sums[r][v]);
      }
    }
    for (int r = 0; r < kRows; ++r) {
      for (int v = 0; v < kVectors; ++v) {
        hn::StoreU(sums[r][v], d, scores + r * kBlockTokens + s0 * kStripTokens + v * kLanes);
      }
    }
  }
}

// out[r][dim …] += Σ_t p[r][t] · value[t][dim …] for kVectors vectors of dimensions and the positions [begin, tokens).
template <class Value, int kRows, int kVectors>
HWY_INLINE void ValueColumns(const float* HWY_RESTRICT p,  // [kRows][kBlockTokens]
                             std::int64_t begin,
                             std::int64_t tokens,
                             std::int64_t head_dim,
                             std::int64_t dim,
                             const std::byte* const* strips,
                             const FetchAhead* ahead,  // the next block's keys, a strip's head_dim rows over 16 tokens
                             float* HWY_RESTRICT out) {
  const F d;
  V sums[kRows][kVectors];
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVectors; ++v) {
      sums[r][v] = hn::LoadU(d, out + r * head_dim + dim + v * kLanes);
    }
  }
  const std::int64_t fetch_step = ahead != nullptr ? ahead->step : 0;
  const std::int64_t fetch_bytes = ahead != nullptr ? ahead->bytes : 0;
  const std::int64_t fetches = ahead != nullptr ? (fetch_bytes / fetch_step + kStripTokens - 1) / kStripTokens : 0;
  for (std::int64_t s = begin / kStripTokens; s * kStripTokens < tokens; ++s) {
    const auto* from = reinterpret_cast<const typename Value::T*>(strips[s]) + dim;
    const std::int64_t count = std::min(kStripTokens, tokens - s * kStripTokens);
    const float* HWY_RESTRICT weights = p + s * kStripTokens;
    std::int64_t fetch_offset = 0;
    for (std::int64_t t = std::max<std::int64_t>(0, begin - s * kStripTokens); t < count; ++t) {
      V value[kVectors];
#pragma GCC unroll 16
      for (int v = 0; v < kVectors; ++v) value[v] = Value::Load(d, from + t * head_dim + v * kLanes);
      for (std::int64_t i = 0; i < fetches && fetch_offset < fetch_bytes; ++i) {
        fetch_ahead(ahead->bases[s] + fetch_offset);
        fetch_offset += fetch_step;
      }
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
        const V weight = hn::Set(d, weights[r * kBlockTokens + t]);
#pragma GCC unroll 16
        for (int v = 0; v < kVectors; ++v) sums[r][v] = hn::MulAdd(value[v], weight, sums[r][v]);
      }
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVectors; ++v) {
      hn::StoreU(sums[r][v], d, out + r * head_dim + dim + v * kLanes);
    }
  }
}

// All dimensions from `dim` on that kVectorsAtOnce vectors at a time cover, then narrower ones.
template <class Value, int kRows>
void ValuePanel(const float* HWY_RESTRICT p,
                std::int64_t begin,
                std::int64_t tokens,
                std::int64_t head_dim,
                const std::byte* const* strips,
                const FetchAhead* ahead,
                float* HWY_RESTRICT out) {  // [kRows][head_dim]
  std::int64_t dim = 0;
  for (; dim + kVectorsAtOnce * kLanes <= head_dim; dim += kVectorsAtOnce * kLanes) {
    ValueColumns<Value, kRows, kVectorsAtOnce>(
        p, begin, tokens, head_dim, dim, strips, dim == 0 ? ahead : nullptr, out);
  }
  if constexpr (kVectorsAtOnce > 2) {
    for (; dim + 2 * kLanes <= head_dim; dim += 2 * kLanes) {
      ValueColumns<Value, kRows, 2>(p, begin, tokens, head_dim, dim, strips, nullptr, out);
    }
  }
  for (; dim < head_dim; dim += kLanes) {
    ValueColumns<Value, kRows, 1>(p, begin, tokens, head_dim, dim, strips, nullptr, out);
  }
}

using ScoreFunction = decltype(&ScorePanel<StoredF32, 1>);
using ValueFunction = decltype(&ValuePanel<StoredF32, 1>);

template <class Stored>
struct Panels {
  static constexpr ScoreFunction kScore[] = {
      ScorePanel<Stored, 1>, ScorePanel<Stored, 2>, ScorePanel<Stored, 3>,
      ScorePanel<Stored, 4>, ScorePanel<Stored, 5>, ScorePanel<Stored, 6>};
  static constexpr ValueFunction kValue[] = {
      ValuePanel<Stored, 1>, ValuePanel<Stored, 2>, ValuePanel<Stored, 3>,
      ValuePanel<Stored, 4>, ValuePanel<Stored, 5>, ValuePanel<Stored, 6>};
};

// Calls use(Stored{}) with the loads of `type`; u4 has none.
template <class Use>
void WithStored(DType type, const Use& use) {
  switch (type) {
    case DType::f32: return use(StoredF32());
    case DType::f16: return use(StoredF16());
    case DType::bf16: return use(StoredBf16());
    case DType::e4m3: return use(StoredE4m3());
    case DType::u4: break;
  }
  check(false, "a cache type with vector loads");
}

// A block's keys as f32 in [strip][head_dim][16], values in [strip][16][head_dim]: rows of `width` elements.
template <class Stored>
void ConvertStrip(const std::byte* strip,
                  std::int64_t rows,
                  std::int64_t width,
                  std::int64_t stride,
                  const std::byte* next,
                  float* HWY_RESTRICT to) {
  const F d;
  const auto* from = reinterpret_cast<const typename Stored::T*>(strip);
  const auto row_bytes = static_cast<std::int64_t>(sizeof(typename Stored::T)) * stride;
  const FetchAhead ahead(&next, rows, row_bytes);
  for (std::int64_t row = 0; row < rows; ++row) {
    if ((row & (ahead.every - 1)) == 0) fetch_ahead(next + row * row_bytes);
    for (std::int64_t i = 0; i < width; i += kLanes) {
      hn::StoreU(Stored::Load(d, from + row * stride + i), d, to + row * width + i);
    }
  }
}

// value = zero + scale · code for `tokens` positions of a strip, kPairs bytes at once.
template <int kPairs>
void ConvertU4Strip(const std::byte* strip,
                    const std::byte* parameters,
                    const std::byte* next,
                    std::int64_t tokens,
                    std::int64_t head_dim,
                    float* HWY_RESTRICT to) {
  const HWY_CAPPED(float, kPairs) d;
  const hn::Rebind<std::uint8_t, decltype(d)> du8;
  const hn::Rebind<std::int32_t, decltype(d)> di32;
  const auto* codes = reinterpret_cast<const std::uint8_t*>(strip);
  HWY_ALIGN float scale_zero[2 * kStripTokens];  // slots past `tokens` too, unused
  for (std::int64_t i = 0; i < 2 * kStripTokens; i += kLanes) {
    hn::Store(StoredF16::Load(F(), reinterpret_cast<const std::uint16_t*>(parameters) + i), F(), scale_zero + i);
  }
  const FetchAhead ahead(&next, kStripTokens, head_dim / 2);
  for (std::int64_t t = 0; t < tokens; ++t) {
    const auto scale = hn::Set(d, scale_zero[2 * t]);
    const auto zero = hn::Set(d, scale_zero[2 * t + 1]);
    if ((t & (ahead.every - 1)) == 0) fetch_ahead(next + t * head_dim / 2);
    for (std::int64_t i = 0; i < head_dim / 2; i += kPairs) {
      const auto pairs = hn::PromoteTo(di32, hn::LoadU(du8, codes + t * head_dim / 2 + i));
      const auto low = hn::ConvertTo(d, hn::And(pairs, hn::Set(di32, 15)));
      const auto high = hn::ConvertTo(d, hn::ShiftRight<4>(pairs));
      const auto even = hn::MulAdd(low, scale, zero);
      const auto odd = hn::MulAdd(high, scale, zero);
      float* pair_to = to + t * head_dim + 2 * i;
      if constexpr (kLanes == 1) {
        pair_to[0] = hn::GetLane(even);
        pair_to[1] = hn::GetLane(odd);
      } else {
        hn::StoreInterleaved2(even, odd, d, pair_to);
      }
    }
  }
}

// Online softmax of one row's scores (base-2 units): scores become p = 2^(score - max), 0 from `valid` up to `padded`,
// and the row's running max, sum and out move to the new max.
HWY_INLINE void SoftmaxRow(float* HWY_RESTRICT scores,
                           std::int64_t valid,
                           std::int64_t padded,  // a multiple of 16
                           float& max,
                           float* HWY_RESTRICT lane_sums,  // [16]
                           float* HWY_RESTRICT out,
                           std::int64_t head_dim) {
  const F d;
  if (valid <= 0) {
    std::fill_n(scores, padded, 0.0f);
    return;
  }
  std::fill(scores + valid, scores + std::max(padded, valid), -std::numeric_limits<float>::infinity());
  V largest = hn::LoadU(d, scores);
  for (std::int64_t t = kLanes; t < padded; t += kLanes) largest = hn::Max(largest, hn::LoadU(d, scores + t));
  const float block_max = hn::GetLane(hn::MaxOfLanes(d, largest));
  V sums = hn::LoadU(d, lane_sums);
  if (block_max > max) {
    const V shrink = Exp2(d, hn::Set(d, max - block_max));
    max = block_max;
    sums = hn::Mul(sums, shrink);
    for (std::int64_t dim = 0; dim < head_dim; dim += kLanes) {
      hn::StoreU(hn::Mul(hn::LoadU(d, out + dim), shrink), d, out + dim);
    }
  }
  const V base = hn::Set(d, max);
  for (std::int64_t t = 0; t < padded; t += kLanes) {
    const V p = Exp2(d, hn::Sub(hn::LoadU(d, scores + t), base));
    hn::StoreU(p, d, scores + t);
    sums = hn::Add(sums, p);
  }
  hn::StoreU(sums, d, lane_sums);
}

struct Scratch {
  float* q;          // panels of [head_dim][panel rows]
  float* scores;     // [rows][kBlockTokens]
  float* keys;       // a block as f32
  float* values;     // a block as f32
  float* lane_sums;  // [rows][16]
};

// A tile's rows cut into panels of nearly equal height.
struct PanelRange {
  std::int64_t first;
  int rows;
};

void AttendTile(const AttentionRange& range, const AttentionRange& after, const AttentionState& state, float* memory) {
  const F d;
  const AttentionTile& tile = *range.tile;
  const std::int64_t begin = range.begin, end = range.end;
  const KvLayout& layout = *tile.kv->layout;
  const std::int64_t head_dim = layout.geometry().head_dim;
  const DType key_type = layout.format().key;
  const DType value_type = layout.format().value;
  const std::int64_t page_size = layout.geometry().page_size;

  Scratch scratch;
  scratch.q = memory;
  scratch.scores = scratch.q + kTileRows * head_dim;
  scratch.keys = scratch.scores + kTileRows * kBlockTokens;
  scratch.values = scratch.keys + kBlockTokens * head_dim;
  scratch.lane_sums = scratch.values + kBlockTokens * head_dim;

  PanelRange panels[kTileRows];
  const std::int64_t panel_count = (tile.rows + kPanelRows - 1) / kPanelRows;
  for (std::int64_t i = 0, m = 0; i < panel_count; ++i) {
    panels[i] = {m, static_cast<int>(tile.rows / panel_count + (i < tile.rows % panel_count))};
    m += panels[i].rows;
  }

  // Many rows share a block: convert it once. Few rows: convert in registers on the way.
  ScoreFunction const* score = nullptr;
  ValueFunction const* value = nullptr;
  float key_factor = 1.0f;
  const bool converted_keys = panel_count > 1 && key_type != DType::f32;
  const bool converted_values = (panel_count > 1 && value_type != DType::f32) || value_type == DType::u4;
  WithStored(key_type, [&](auto stored) {
    score = Panels<decltype(stored)>::kScore;
    key_factor = decltype(stored)::kFactor;
  });
  if (converted_keys) score = Panels<StoredF32>::kScore;
  if (converted_values) {
    value = Panels<StoredF32>::kValue;
  } else {
    WithStored(value_type, [&](auto stored) { value = Panels<decltype(stored)>::kValue; });
  }

  // Scores come out in base-2 units: every constant factor goes into q.
  const float q_factor = static_cast<float>(static_cast<double>(tile.softmax_scale) *
                                            tile.kv->key_scales[tile.kv_head] * key_factor *
                                            1.4426950408889634);
  for (std::int64_t i = 0; i < panel_count; ++i) {
    float* to = scratch.q + panels[i].first * head_dim;
    for (int r = 0; r < panels[i].rows; ++r) {
      const std::int64_t m = tile.first + panels[i].first + r;
      const float* from = tile.q + m / tile.group * tile.q_stride + m % tile.group * head_dim;
      for (std::int64_t dim = 0; dim < head_dim; ++dim) {
        to[dim * panels[i].rows + r] = from[dim] * q_factor;
      }
    }
  }
  std::fill_n(state.max, tile.rows, -std::numeric_limits<float>::infinity());
  std::fill_n(state.out, tile.rows * head_dim, 0.0f);
  std::fill_n(scratch.lane_sums, tile.rows * kStripTokens, 0.0f);

  const std::int64_t key_row_bytes = page_size * bits(key_type) / 8;
  const std::int64_t value_row_bytes = kStripTokens * bits(value_type) / 8;
  Block block = LocateBlock(tile, begin, end);
  for (std::int64_t t0 = begin; t0 < end; t0 += kBlockTokens) {
    Block next = block;
    if (t0 + kBlockTokens < end) {
      next = LocateBlock(tile, t0 + kBlockTokens, end);
    } else if (after.tile != nullptr) {
      next = LocateBlock(*after.tile, after.begin, after.end);
    }
    const std::byte* key_strips[kStrips];
    const std::byte* value_strips[kStrips];
    std::copy_n(block.keys, kStrips, key_strips);
    std::copy_n(block.values, kStrips, value_strips);
    std::int64_t key_stride = page_size;
    const FetchAhead values_ahead(block.values, head_dim, value_row_bytes);
    const FetchAhead keys_ahead(next.keys, head_dim, key_row_bytes);

    if (converted_keys) {
      key_stride = kStripTokens;
      for (int s = 0; s * kStripTokens < block.tokens; ++s) {
        float* to = scratch.keys + s * kStripTokens * head_dim;
        WithStored(key_type, [&](auto stored) {
          ConvertStrip<decltype(stored)>(
              block.keys[s], head_dim, kStripTokens, page_size, next.keys[s], to);
        });
      }
      for (int s = 0; s < kStrips; ++s) {
        const int from = s * kStripTokens < block.tokens ? s : 0;
        key_strips[s] = reinterpret_cast<const std::byte*>(scratch.keys + from * kStripTokens * head_dim);
      }
    }
    if (converted_values) {
      for (int s = 0; s * kStripTokens < block.tokens; ++s) {
        float* to = scratch.values + s * kStripTokens * head_dim;
        const std::int64_t count = std::min(kStripTokens, block.tokens - s * kStripTokens);
        if (value_type == DType::u4) {
          const auto convert =
              head_dim % (2 * kLanes) == 0 ? ConvertU4Strip<kLanes> : ConvertU4Strip<(kLanes + 1) / 2>;
          convert(block.values[s], block.value_parameters[s], next.values[s], count, head_dim, to);
        } else {
          WithStored(value_type, [&](auto stored) {
            ConvertStrip<decltype(stored)>(
                block.values[s], count, head_dim, head_dim, next.values[s], to);
          });
        }
        value_strips[s] = reinterpret_cast<const std::byte*>(to);
      }
    }

    std::int64_t first_panel = 0;  // earlier ones see nothing of this block
    const auto seen_by = [&](std::int64_t m) {
      return std::clamp<std::int64_t>(tile.limit(m) - t0, 0, block.tokens);
    };
    const auto seen = [&](std::int64_t i) { return seen_by(panels[i].first + panels[i].rows - 1); };
    while (first_panel < panel_count && seen(first_panel) <= 0) ++first_panel;
    for (std::int64_t i = first_panel; i < panel_count; ++i) {
      score[panels[i].rows - 1](scratch.q + panels[i].first * head_dim,
                                head_dim,
                                seen(i),
                                key_strips,
                                key_stride,
                                converted_values ? nullptr : &values_ahead,
                                scratch.scores + panels[i].first * kBlockTokens);
    }
    for (std::int64_t i = first_panel; i < panel_count; ++i) {
      const std::int64_t padded = hwy::RoundUpTo(seen(i), kStripTokens);
      for (std::int64_t m = panels[i].first; m < panels[i].first + panels[i].rows; ++m) {
        SoftmaxRow(scratch.scores + m * kBlockTokens,
                   seen_by(m),
                   padded,
                   state.max[m],
                   scratch.lane_sums + m * kStripTokens,
                   state.out + m * head_dim,
                   head_dim);
      }
    }
    for (std::int64_t i = first_panel; i < panel_count; ++i) {
      // Together as far as all rows see, then each row alone: p = 0 would not hide an infinity that a later token stored.
      const std::int64_t common = seen_by(panels[i].first);
      value[panels[i].rows - 1](scratch.scores + panels[i].first * kBlockTokens,
                                0,
                                common,
                                head_dim,
                                value_strips,
                                converted_keys ? nullptr : &keys_ahead,
                                state.out + panels[i].first * head_dim);
      for (std::int64_t m = panels[i].first + 1; m < panels[i].first + panels[i].rows; ++m) {
        if (seen_by(m) == common) continue;
        value[0](scratch.scores + m * kBlockTokens, common, seen_by(m), head_dim, value_strips, nullptr,
                 state.out + m * head_dim);
      }
    }
    block = next;
  }
  for (std::int64_t m = 0; m < tile.rows; ++m) {
    V sum = hn::LoadU(d, scratch.lane_sums + m * kStripTokens);
    state.sum[m] = hn::GetLane(hn::SumOfLanes(d, sum));
  }
}

}  // namespace

void AttendTileExported(const AttentionRange& range,
                        const AttentionRange& next,
                        const AttentionState& state,
                        float* memory) {
  AttendTile(range, next, state, memory);
}

}  // namespace HWY_NAMESPACE
}  // namespace keel
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace keel {

HWY_EXPORT(AttendTileExported);

std::int64_t attention_scratch_floats(std::int64_t head_dim) {
  return kTileRows * (head_dim + kBlockTokens + kStripTokens) + 2 * kBlockTokens * head_dim;
}

void attend(const AttentionRange& range, const AttentionRange& next, const AttentionState& state, float* scratch) {
  HWY_DYNAMIC_DISPATCH(AttendTileExported)(range, next, state, scratch);
}

float value_factor(const KvLayerView& kv, std::int64_t kv_head) {
  const float scale = kv.value_scales[kv_head];
  return kv.layout->format().value == DType::e4m3 ? scale * 256.0f : scale;
}

}  // namespace keel
#endif
