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
  bool fold;  // at most 4 columns, in half a tile (see DecodeMath)
  DecodeTuning tuning;
  bool load_only = false;  // copies and waits alone: the roof to measure against

  constexpr int key_bytes() const { return kPageTokens * dim * bits(key) / 8; }  // of a head's share of a page
  constexpr int value_bytes() const { return kPageTokens * dim * bits(value) / 8; }
  constexpr int parameter_bytes() const { return value == DType::u4 ? kPageTokens * 4 : 0; }
  constexpr int copy_bytes() const { return key_bytes() + value_bytes() + parameter_bytes(); }
  constexpr int stage_bytes() const { return (copy_bytes() + 127) / 128 * 128; }
  // An unfinished softmax: O as the MMA leaves it (folded, half of the columns), then every lane's m and l.
  constexpr int part_floats() const { return tiles * (8 * dim / (fold ? 2 : 1) + 4 * 32); }
  // Shared memory: the warps' rings, then room for some parts of units that end inside a warp's slice.
  constexpr int ring_bytes() const { return tuning.warps * tuning.stages * stage_bytes(); }
  static constexpr int spares() { return 4; }
  constexpr int shared_bytes() const { return ring_bytes() + spares() * part_floats() * 4; }
};

// The product's kernel for `columns` query columns a KV head (rows of a sequence times heads of a group), tuned by what the sweep
// of decode_cuda_bench found: as many pages in flight as memory holds, for few warps, whose parts are soon merged; more where a
// page of 8 bits or fewer has as much to multiply as one of 16.
constexpr DecodeConfig decode_config(DType key, DType value, int dim, std::int64_t columns) {
  DecodeConfig config{key, value, dim, columns <= 8 ? 1 : 2, columns <= 4, {8, 1, 1}};
  if (config.fold && config.stage_bytes() <= 4096) config.tuning.warps = 12;
  const int left = 224 * 1024 - config.shared_bytes() + config.ring_bytes();
  config.tuning.stages = std::min(8, left / config.ring_bytes());
  return config;
}

// The warps of a CTA that share a unit: `parts` from `owner` on.
enum class UnitCut : std::uint8_t { none, head, tail };  // see CtaCuts
struct UnitRun {
  std::uint8_t owner, parts;
  UnitCut cut;
  std::uint8_t unused;
};

struct alignas(16) WarpSlice {
  std::int32_t sequence, unit, first_page, pages;  // of the first unit; `pages` in all
  std::int32_t context;                            // of `sequence`
  UnitRun first, last;                             // of the first unit and of the last
  std::int32_t unused;
};

// A CTA's two possible cuts: `head`, a unit that an earlier CTA (its owner) began, and `tail`, one that it begins itself
// and a later CTA ends. Parts count the CTAs that share the unit, one after another from the owner; 0 = no such unit.
struct alignas(16) CtaCuts {
  std::int32_t head_owner, head_parts, tail_parts, unused;
};

struct DecodeWorkspace {
  WarpSlice* slices;         // [ctas · warps]
  CtaCuts* cuts;             // [ctas]
  unsigned* arrivals;        // [ctas] at the unit that a CTA owns; 0 between launches
  std::int64_t* first_page;  // [sequences + 1] in the flattened order
  float* warp_parts;         // [ctas · warps][part_floats]: units that end inside a warp's slice and found no spare room
  float* cta_parts;          // [ctas][2][part_floats]: head, tail
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
    arrivals = reinterpret_cast<unsigned*>(place(sizeof(unsigned) * ctas));
    first_page = reinterpret_cast<std::int64_t*>(place(sizeof(std::int64_t) * (sequences + 1)));
    warp_parts = reinterpret_cast<float*>(place(sizeof(float) * config.part_floats() * ctas * warps));
    cta_parts = reinterpret_cast<float*>(place(sizeof(float) * config.part_floats() * ctas * 2));
    bytes = used;
  }
};

}  // namespace keel::cuda
