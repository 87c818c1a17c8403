#include "kernels/paged_attention/decode_cuda.h"

#include "device/cuda.h"
#include "kernels/paged_attention/decode_cuda_plan.cuh"
#include "kv/cuda_page.h"

namespace keel::cuda {
namespace {

constexpr int kPlanThreads = 1024;
constexpr int kMinPagesAWarp = 2;  // below, merging costs more than more warps save
constexpr std::int64_t kMaxRows = 8, kMaxGroup = 16;

__device__ int plan_pages(int context) { return context > 0 ? (context + kPageTokens - 1) / kPageTokens : 0; }

// Sequence whose pages hold the flattened page `at`: the last one that begins at or before it.
__device__ int sequence_of(const std::int64_t* first_page, int sequences, std::int64_t at) {
  int low = 0, high = sequences - 1;
  while (low < high) {
    const int middle = (low + high + 1) / 2;
    if (first_page[middle] <= at) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

// CTAs for `count` units of equal length: as many as take whole units each, or whole shares of one, if that leaves at most a
// tenth idle. The memory is as busy then, and fewer pieces are merged.
__device__ int even_ctas(std::int64_t count, int ctas) {
  const std::int64_t even = count >= ctas ? count / ((count + ctas - 1) / ctas) : count * (ctas / count);
  return (count % even == 0 || even % count == 0) && even * 10 >= ctas * 9 ? static_cast<int>(even) : ctas;
}

// One block. See DecodeWorkspace for what it writes.
__global__ void __launch_bounds__(kPlanThreads) plan_kernel(const std::int32_t* contexts, int sequences, int units, int ctas, int warps_a_cta, DecodeWorkspace workspace) {
  __shared__ std::int64_t sums[2][kPlanThreads];
  const int thread = threadIdx.x;
  std::int64_t total = 0;
  __shared__ int longest, shortest, live;
  if (thread == 0) {
    longest = live = 0;
    shortest = INT32_MAX;
  }
  __syncthreads();
  for (int sequence = thread; sequence < sequences; sequence += kPlanThreads) {
    if (const int pages = plan_pages(contexts[sequence]); pages > 0) {
      atomicMax(&longest, pages);
      atomicMin(&shortest, pages);
      atomicAdd(&live, 1);
    }
  }
  for (int base = 0; base < sequences; base += kPlanThreads) {
    const int sequence = base + thread;
    const std::int64_t pages = sequence < sequences ? std::int64_t{plan_pages(contexts[sequence])} * units : 0;
    int now = 0;
    sums[0][thread] = pages;
    __syncthreads();
    for (int step = 1; step < kPlanThreads; step *= 2) {
      sums[now ^ 1][thread] = sums[now][thread] + (thread >= step ? sums[now][thread - step] : 0);
      now ^= 1;
      __syncthreads();
    }
    if (sequence < sequences) workspace.first_page[sequence] = total + sums[now][thread] - pages;
    total += sums[now][kPlanThreads - 1];
    __syncthreads();  // also: first_page is written
  }
  const int used_ctas = longest == shortest ? even_ctas(std::int64_t{live} * units, ctas) : ctas;
  const std::int64_t warps = std::int64_t{ctas} * warps_a_cta;
  const std::int64_t active = min(std::int64_t{used_ctas} * warps_a_cta, (total + kMinPagesAWarp - 1) / kMinPagesAWarp);
  const auto begin_of = [&](std::int64_t warp) { return warp < active ? warp * total / active : total; };
  // The warp whose slice holds page `at`: the last one with begin_of(warp) <= at.
  const auto warp_of = [&](std::int64_t at) { return ((at + 1) * active - 1) / total; };
  const auto cta_of = [&](std::int64_t at) { return static_cast<int>(warp_of(at) / warps_a_cta); };
  // Pages [from, to) of the unit of page `at`.
  const auto unit_range = [&](std::int64_t at, std::int64_t& from, std::int64_t& to) {
    const int sequence = sequence_of(workspace.first_page, sequences, at);
    const std::int64_t pages = plan_pages(contexts[sequence]), first = workspace.first_page[sequence];
    from = first + (at - first) / pages * pages;
    to = from + pages;
  };
  // The run of that unit in the CTA that has pages [begin, end).
  const auto run_of = [&](std::int64_t at, std::int64_t begin, std::int64_t end) {
    std::int64_t from, to;
    unit_range(at, from, to);
    const std::int64_t owner = warp_of(max(from, begin)), last = warp_of(min(to, end) - 1);
    return UnitRun{.owner = static_cast<std::uint8_t>(owner % warps_a_cta),
                   .parts = static_cast<std::uint8_t>(last - owner + 1),
                   .cut = from < begin ? UnitCut::head : to > end ? UnitCut::tail : UnitCut::none};
  };

  for (std::int64_t warp = thread; warp < warps; warp += kPlanThreads) {
    WarpSlice slice = {};
    const std::int64_t begin = begin_of(warp), end = begin_of(warp + 1);
    if (begin < end) {
      slice.sequence = sequence_of(workspace.first_page, sequences, begin);
      slice.context = contexts[slice.sequence];
      const std::int64_t within = begin - workspace.first_page[slice.sequence];
      slice.unit = static_cast<int>(within / plan_pages(slice.context));
      slice.first_page = static_cast<int>(within % plan_pages(slice.context));
      slice.pages = static_cast<int>(end - begin);
      const std::int64_t cta = warp / warps_a_cta, cta_begin = begin_of(cta * warps_a_cta), cta_end = begin_of((cta + 1) * warps_a_cta);
      slice.first = run_of(begin, cta_begin, cta_end);
      slice.last = run_of(end - 1, cta_begin, cta_end);
    }
    workspace.slices[warp] = slice;
  }
  for (int cta = thread; cta < ctas; cta += kPlanThreads) {
    CtaCuts cuts = {};
    const std::int64_t begin = begin_of(std::int64_t{cta} * warps_a_cta), end = begin_of((std::int64_t{cta} + 1) * warps_a_cta);
    if (begin < end) {
      std::int64_t from, to;
      unit_range(begin, from, to);
      if (from < begin) {
        cuts.head_owner = cta_of(from);
        cuts.head_parts = cta_of(to - 1) - cuts.head_owner + 1;
      }
      unit_range(end - 1, from, to);
      if (from >= begin && to > end) cuts.tail_parts = cta_of(to - 1) - cta + 1;
    }
    workspace.cuts[cta] = cuts;
    workspace.arrivals[cta] = 0;
  }
}

int multiprocessors() {
  int device = 0, count = 0;
  check(cudaGetDevice(&device), "current device");
  check(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device), "multiprocessors");
  return count;
}

struct DecodeGrid {
  DecodeConfig config;
  int ctas;
};
DecodeGrid grid_for(const KvLayout& layout, std::int64_t heads, std::int64_t rows) {
  const DecodeConfig config = decode_config(layout.format().key, layout.format().value, static_cast<int>(layout.geometry().head_dim),
                                            rows * (heads / layout.geometry().kv_heads));
  return {config, multiprocessors() * config.tuning.ctas_per_sm};
}

DecodeParams params_of(const DecodeAttentionArgs& args, const DecodeGrid& grid) {
  const KvLayout& layout = *args.kv.layout;
  const std::int64_t kv_heads = layout.geometry().kv_heads, group = args.heads / kv_heads;
  const int blocks = static_cast<int>((args.rows * group + 8 * grid.config.tiles - 1) / (8 * grid.config.tiles));
  return {.q = args.q,
          .q_stride = args.q_stride,
          .out = args.out,
          .out_stride = args.out_stride,
          .bf16 = args.dtype == DType::bf16,
          .keys = args.kv.keys,
          .values = args.kv.values,
          .key_page_bytes = layout.key_page_bytes(),
          .value_page_bytes = layout.value_page_bytes(),
          .key_scales = args.kv.key_scales,
          .value_scales = args.kv.value_scales,
          .page_table = args.page_table,
          .page_table_stride = args.page_table_stride,
          .contexts = args.contexts,
          .sequences = static_cast<int>(args.sequences),
          .rows = static_cast<int>(args.rows),
          .group = static_cast<int>(group),
          .blocks = blocks,
          .units = static_cast<int>(kv_heads) * blocks,
          .scale_log2 = args.softmax_scale * 1.44269504088896341f,
          .early = args.early,
          .workspace = DecodeWorkspace(args.workspace, args.sequences, grid.ctas, grid.config)};
}

void check_args(const DecodeAttentionArgs& args) {
  const std::string refusal = decode_attention_refusal(*args.kv.layout, args.dtype, args.heads);
  keel::check(refusal.empty(), refusal.c_str());
  keel::check(args.rows >= 1 && args.rows <= kMaxRows, "decode attention takes 1 to 8 rows a sequence");
  keel::check(args.q_stride % 8 == 0 && args.out_stride % 8 == 0, "rows of q and out begin at 16-byte boundaries");
  keel::check(args.kv.layout->geometry().kv_heads * kMaxRows <= 4096, "KV heads of decode attention");
  keel::check(args.sequences >= 0 && args.sequences < 1 << 24, "sequences of decode attention");
}

}  // namespace

void plan_decode(cudaStream_t stream, const DecodeParams& params, int ctas, int warps) {
  plan_kernel<<<1, kPlanThreads, 0, stream>>>(params.contexts, params.sequences, params.units, ctas, warps, params.workspace);
  check_launch("plan of decode attention");
}

std::int64_t decode_attention_workspace(const KvLayout& layout, std::int64_t heads, std::int64_t sequences, std::int64_t rows) {
  std::int64_t bytes = 0;
  for (const std::int64_t fewer : {std::int64_t{1}, rows}) {
    const DecodeGrid grid = grid_for(layout, heads, fewer);
    bytes = std::max(bytes, DecodeWorkspace(nullptr, sequences, grid.ctas, grid.config).bytes);
  }
  return bytes;
}

void decode_attention_plan(cudaStream_t stream, const DecodeAttentionArgs& args) {
  if (args.sequences == 0) return;
  check_args(args);
  const DecodeGrid grid = grid_for(*args.kv.layout, args.heads, args.rows);
  plan_decode(stream, params_of(args, grid), grid.ctas, grid.config.tuning.warps);
}

void decode_attention(cudaStream_t stream, const DecodeAttentionArgs& args) {
  if (args.sequences == 0) return;
  check_args(args);
  const DecodeGrid grid = grid_for(*args.kv.layout, args.heads, args.rows);
  const DecodeParams params = params_of(args, grid);
  const DecodeConfig& config = grid.config;
  const auto launch = config.key == DType::f16    ? launch_decode_f16_keys
                      : config.key == DType::bf16 ? launch_decode_bf16_keys
                                                  : launch_decode_e4m3_keys;
  launch(stream, params, config.value, config.dim, grid.ctas);
}

std::string decode_attention_refusal(const KvLayout& layout, DType dtype, std::int64_t heads) {
  const auto& [key, value] = layout.format();
  const auto& geometry = layout.geometry();
  const auto refuse = [](const std::string& found, const char* wanted) { return "decode attention on CUDA: " + found + ", wanted " + wanted; };
  const auto text = [](DType type) { return std::string(name(type)); };
  if (dtype != DType::f16 && dtype != DType::bf16) return refuse("queries in " + text(dtype), "f16 or bf16");
  if (key != dtype && key != DType::e4m3) return refuse("keys in " + text(key) + " with queries in " + text(dtype), "the queries' type or fp8_e4m3");
  if (value != dtype && value != DType::e4m3 && value != DType::u4) {
    return refuse("values in " + text(value) + " with queries in " + text(dtype), "the queries' type, fp8_e4m3 or u4");
  }
  if (geometry.head_dim != 64 && geometry.head_dim != 128) return refuse("head dim " + std::to_string(geometry.head_dim), "64 or 128");
  if (layout.order() != PageOrder::cuda) return refuse("pages in the CPU's order", "CUDA's");
  if (geometry.page_size != kCudaPageSize) return refuse("page size " + std::to_string(geometry.page_size), "16");
  if (heads % geometry.kv_heads != 0 || heads / geometry.kv_heads > kMaxGroup) {
    return refuse(std::to_string(heads) + " heads over " + std::to_string(geometry.kv_heads) + " KV heads", "a whole ratio up to 16");
  }
  return "";
}

}  // namespace keel::cuda
