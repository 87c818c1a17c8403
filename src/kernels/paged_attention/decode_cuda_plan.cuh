// How a step's decode work is spread over the device, and where the pieces of a split context meet.
//
// A unit is one KV head of one sequence with up to 8·tiles query columns (column = row · group + head of the group; a
// second block of columns is a second unit). The units' pages, laid end to end in the order (sequence, unit, page), are
// cut into equal runs, one a warp. A unit cut between warps of a CTA is merged in shared memory, one cut between CTAs
// through the workspace by whichever arrives last, always in the order of the pages: the bytes do not depend on timing.
#pragma once

#include <cuda_runtime_api.h>

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

// Divides numbers below 4096 by 1 to 16 without the many instructions of a division.
struct Divisor {
  int by;
  std::uint32_t inverse;  // ceil(2^16 / by)

  Divisor(int divisor) : by(divisor), inverse((65536 + divisor - 1) / divisor) {}
#ifdef __CUDACC__
  __device__ operator int() const { return by; }
  __device__ friend int operator/(int x, const Divisor& d) { return static_cast<int>(x * d.inverse >> 16); }
  __device__ friend int operator%(int x, const Divisor& d) { return x - x / d * d.by; }
#endif
};

struct DecodeParams {
  const void* q;
  std::int64_t q_stride;
  void* out;
  std::int64_t out_stride;
  bool bf16;  // q and out
  const std::byte* keys;
  const std::byte* values;
  std::int64_t key_page_bytes, value_page_bytes;
  const float* key_scales;
  const float* value_scales;
  const std::int32_t* page_table;
  std::int64_t page_table_stride;
  const std::int32_t* contexts;
  int sequences;
  int rows;
  Divisor group;   // query heads a KV head
  Divisor blocks;  // of 8·tiles columns
  int units;   // a sequence: kv_heads · blocks; unit = kv_head · blocks + block
  float scale_log2;  // softmax_scale · log2 e
  bool early;        // launched before the kernel before it has ended: see DecodeAttentionArgs
  DecodeWorkspace workspace;
};

void plan_decode(cudaStream_t stream, const DecodeParams& params, int ctas, int warps);

// One file a key type, for compile time. `value`, `dim` and `tiles` must be served.
void launch_decode_f16_keys(cudaStream_t stream, const DecodeParams& params, DType value, int dim, int tiles, int ctas);
void launch_decode_bf16_keys(cudaStream_t stream, const DecodeParams& params, DType value, int dim, int tiles, int ctas);
void launch_decode_e4m3_keys(cudaStream_t stream, const DecodeParams& params, DType value, int dim, int tiles, int ctas);

}  // namespace keel::cuda
