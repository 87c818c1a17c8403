#include <algorithm>

#include "kernels/gemm/skinny_shape.h"

namespace keel::cuda {
namespace {

bool is_aligned(const void* pointer) { return reinterpret_cast<std::uintptr_t>(pointer) % 16 == 0; }

}  // namespace

int padded_tokens(std::int64_t tokens) { return tokens <= 8 ? 8 : tokens <= 16 ? 16 : tokens <= 32 ? 32 : 64; }

SkinnyShape skinny_shape(const GemmArgs& args, SkinnyPlan plan) {
  const GemmWeights& w = args.weights;
  const bool is_awq = w.packed != nullptr;
  const int padded = padded_tokens(args.tokens);
  SkinnyShape p{.packed = static_cast<const std::byte*>(w.packed),
                .group_scales = static_cast<const std::byte*>(w.group_scales),
                .bias = w.bias,
                .out = args.out,
                .is_f32_out = args.out_type == DType::f32,
                .is_gated = args.gate_up != nullptr,
                .rows = w.rows,
                .tokens = static_cast<int>(args.tokens)};
  const int block_columns = is_awq ? 128 : 64, tile_rows = 64 * plan.warpgroups;
  p.blocks = static_cast<int>((w.columns + block_columns - 1) / block_columns);
  p.slice_blocks = (p.blocks + plan.splits - 1) / plan.splits;
  p.splits = plan.splits;

  p.tiles = static_cast<int>((w.rows + tile_rows - 1) / tile_rows);
  p.warpgroups = plan.warpgroups;
  p.streams_x = plan.streams_x;
  const int x_block_bytes = block_columns / 64 * padded * kRowBytes, step = is_awq ? kAwqStep : 1;
  const int weights_bytes = plan.warpgroups * (is_awq ? kAwqTileBytes : kDenseTileBytes);
  p.stage_bytes = (step * (weights_bytes + (plan.streams_x ? x_block_bytes : 0)) + 1023) / 1024 * 1024;
  p.lead_steps = kLeadBytes / (step * weights_bytes);
  p.stages_at = plan.streams_x ? 0 : p.slice_blocks * x_block_bytes;
  const int sums_bytes = plan.splits > 1 ? tile_rows * padded * 4 : 0;
  const int left = shared_bytes_of(plan.share) - 1024 - p.stages_at - 2 * sums_bytes - (2 * kMaxStages + 3) * 8;
  const int most_steps = p.tiles * p.slice_blocks;
  p.stages = left < 0 ? 0 : std::min({left / p.stage_bytes, kMaxStages, std::max(most_steps, kMinStages)});
  if (p.is_gated && tile_rows / plan.splits % 16 != 0) p.stages = 0;  // a block adds up gates and what they gate
  if (p.blocks < plan.splits || p.stages < kMinStages) p.stages = 0;
  if (plan.share == SkinnyShare::pair && (args.tokens > kMostSharingTokens || plan.warpgroups > most_sharing_warpgroups(is_awq))) p.stages = 0;
  p.sums_at = p.stages_at + p.stages * p.stage_bytes;
  p.own_sums_at = p.sums_at + sums_bytes;
  p.barriers_at = p.own_sums_at + sums_bytes;
  p.shared_bytes = 1024 + p.barriers_at + (2 * p.stages + 3) * 8;
  return p;
}

std::vector<SkinnyPlan> skinny_plans(const GemmArgs& args) {
  const GemmWeights& w = args.weights;
  std::vector<SkinnyPlan> plans;
  if (args.tokens < 1 || args.tokens > kSkinnyTokens || w.columns % 8 != 0 || w.columns < 64 || !is_aligned(args.x) || !is_aligned(w.dense)) return plans;
  if (w.rows >= std::int64_t{1} << 30 || w.columns >= std::int64_t{1} << 30) return plans;  // 32-bit coordinates
  struct Ranked {
    SkinnyPlan plan;
    double cost;
  };
  std::vector<Ranked> ranked;
  for (const SkinnyShare share : {SkinnyShare::whole, SkinnyShare::most, SkinnyShare::pair}) {
    for (const bool streams_x : {false, true}) {
      for (int splits = 1; splits <= kMaxCluster; splits *= 2) {
        for (int warpgroups = 1; warpgroups <= kMaxWarpgroups; ++warpgroups) {
          const SkinnyPlan plan{warpgroups, splits, share, streams_x};
          const SkinnyShape p = skinny_shape(args, plan);
          if (p.stages == 0) continue;
          // Nanoseconds, roughly: bytes that a multiprocessor takes in, and what each turn of a cluster costs.
          const int at_once = share == SkinnyShare::pair ? 2 : 1, clusters = 132 * at_once / splits, turns = (p.tiles + clusters - 1) / clusters;
          const double tile_rows = 64.0 * warpgroups, step_bytes = static_cast<double>(p.stage_bytes) / (w.packed != nullptr ? kAwqStep : 1);
          const double streamed = turns * p.slice_blocks * step_bytes * at_once, kept = static_cast<double>(p.stages_at) * at_once;
          const double exchanged = splits > 1 ? turns * tile_rows * padded_tokens(args.tokens) * 4 * at_once : 0;
          const double ring = static_cast<double>(p.stages) * p.stage_bytes * at_once;
          const double cost = streamed / 32 + kept / 40 + exchanged / 40 + (splits > 1 ? 800 : 0) + std::max(96e3 - ring, 0.0) / 20;
          ranked.push_back({plan, cost});
        }
      }
    }
  }
  std::stable_sort(ranked.begin(), ranked.end(), [](const Ranked& a, const Ranked& b) { return a.cost < b.cost; });
  for (const Ranked& r : ranked) plans.push_back(r.plan);
  return plans;
}

}  // namespace keel::cuda
