// The shape of decode attention's kernels and the bytes of their workspace, for those who launch them and for those who
// only plan memory: no CUDA header is wanted here.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "base/dtype.h"

namespace keel::cuda {

inline constexpr int kPageTokens = 16;

struct DecodeTuning {
  int warps;        // a CTA
  int stages;       // pages in flight a warp
  int ctas_per_sm;
};

struct DecodeConfig {
  DType key, value;
  int dim;
  int tiles;  // of 8 query columns
  DecodeTuning tuning;
  bool load_only = false;  // copies and waits alone: the roof to measure against

  constexpr int key_bytes() const { return kPageTokens * dim * bits(key) / 8; }  // of a head's share of a page
  constexpr int value_bytes() const { return kPageTokens * dim * bits(value) / 8; }
  constexpr int parameter_bytes() const { return value == DType::u4 ? kPageTokens * 4 : 0; }
  constexpr int copy_bytes() const { return key_bytes() + value_bytes() + parameter_bytes(); }
  constexpr int stage_bytes() const { return (copy_bytes() + 127) / 128 * 128; }
  // An unfinished softmax of a warp: O as the MMA leaves it, then m and l of every column.
  constexpr int part_floats() const { return tiles * 8 * (dim + 2); }
  // Of a CTA: every eight items of O have their columns' m and l of their own, as one warp alone writes and reads them.
  constexpr int cta_part_floats() const { return tiles * 9 * dim; }
  // Shared memory: the warps' rings, then room for some parts of units that end inside a warp's slice.
  constexpr int ring_bytes() const { return tuning.warps * tuning.stages * stage_bytes(); }
  static constexpr int spares() { return 4; }
  constexpr int shared_bytes() const { return ring_bytes() + spares() * part_floats() * 4; }
};

// The tuning of the product's kernels: what the sweep of decode_cuda_bench found. Sixteen warps hide the MMA chains'
// latency best where registers and two stages of memory allow.
constexpr DecodeConfig decode_config(DType key, DType value, int dim, int tiles) {
  DecodeConfig config{key, value, dim, tiles, {tiles > 1 ? 8 : 16, 1, 1}};
  if (tiles == 1 && config.stage_bytes() > 6144) config.tuning.warps = 12;
  const int left = 224 * 1024 - config.shared_bytes() + config.ring_bytes();
  config.tuning.stages = std::min(8, left / config.ring_bytes());
  return config;
}

// Of eight columns each, that `columns` query columns want.
constexpr int tiles_for(std::int64_t columns) { return columns <= 8 ? 1 : 2; }

struct alignas(16) WarpSlice {
  std::int32_t sequence, unit, first_page, pages;  // of the first unit; `pages` in all
  std::int32_t context;                            // of `sequence`
  std::int32_t unused[3];
};

// A CTA's two possible cuts: `head`, a unit that an earlier CTA (its owner) began, and `tail`, one that it begins itself
// and a later CTA ends. Parts count the CTAs that share the unit, one after another from the owner; 0 = no such unit.
struct alignas(16) CtaCuts {
  std::int32_t head_owner, head_parts, tail_parts, unused;
};

struct DecodeWorkspace {
  WarpSlice* slices;         // [ctas · warps]
  CtaCuts* cuts;             // [ctas]
  unsigned* arrivals;        // [ctas · warps] of each warp's share of the unit that a CTA owns; 0 between launches
  std::int64_t* first_page;  // [sequences + 1] in the flattened order
  float* warp_parts;         // [ctas · warps][part_floats]: units that end inside a warp's slice and found no spare room
  float* cta_parts;          // [ctas][2][cta_part_floats]: head, tail
  std::int64_t bytes;

  DecodeWorkspace(void* base, std::int64_t sequences, int ctas, const DecodeConfig& config) {
    const int warps = config.tuning.warps;
    std::int64_t used = 0;
    const auto place = [&](std::int64_t size) {
      const std::int64_t at = used;
      used += (size + 255) / 256 * 256;
      return static_cast<std::byte*>(base) + at;
    };
    slices = reinterpret_cast<WarpSlice*>(place(sizeof(WarpSlice) * ctas * warps));
    cuts = reinterpret_cast<CtaCuts*>(place(sizeof(CtaCuts) * ctas));
    arrivals = reinterpret_cast<unsigned*>(place(sizeof(unsigned) * ctas * warps));
    first_page = reinterpret_cast<std::int64_t*>(place(sizeof(std::int64_t) * (sequences + 1)));
    warp_parts = reinterpret_cast<float*>(place(sizeof(float) * config.part_floats() * ctas * warps));
    cta_parts = reinterpret_cast<float*>(place(sizeof(float) * config.cta_part_floats() * ctas * 2));
    bytes = used;
  }
};

}  // namespace keel::cuda
