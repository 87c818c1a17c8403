#include "kernels/paged_attention/paged_attention.h"

#include <algorithm>
#include <array>
#include <vector>

#include "base/error.h"
#include "kernels/cpu_features.h"
#include "kernels/paged_attention/attention_tile.h"

namespace keel {
namespace {

// Calls of few rows cut the context into parts, each with its own softmax state, joined in order. The cut depends on the
// sequence alone and is made whether or not parts run in parallel, so that the result depends on neither threads nor the
// rest of the batch.
constexpr std::int64_t kSplitRows = 64;    // query rows of a sequence up to which its context is cut
constexpr std::int64_t kPartTokens = 512;  // about; 128 KiB of 16-bit keys and values at head_dim 64: some 10 µs
constexpr std::int64_t kMaxParts = 16;
constexpr std::int64_t kTasksPerThread = 4;   // below that many tiles, parts become tasks of their own
constexpr std::int64_t kStatesPerThread = 32;  // that many parts' states fit the workspace

std::int64_t round_up(std::int64_t n, std::int64_t step) { return (n + step - 1) / step * step; }

struct TileTask {
  AttentionTile tile;
  float* out;          // of query row 0, the group's first head
  std::int64_t parts;
  std::int64_t part_tokens;
  std::int64_t first_state = -1;  // parts run as tasks of their own, with states from here on
};

// A task of the pool: part `part` of a tile, or all of it.
struct Task {
  std::int64_t tile;
  std::int64_t part;  // -1: all
};

std::int64_t worker_floats(std::int64_t head_dim) {
  return attention_scratch_floats(head_dim) + 2 * AttentionState::floats(kTileRows, head_dim);
}

std::vector<TileTask> make_tiles(const PagedAttentionArgs& args) {
  const KvGeometry& geometry = args.kv.layout->geometry();
  const std::int64_t group = args.heads / geometry.kv_heads;
  const std::int64_t tile_rows = group > kTileRows ? kTileRows : kTileRows / group * group;
  const std::int64_t stride = args.heads * geometry.head_dim;
  std::vector<TileTask> tiles;
  for (const AttentionSequence& sequence : args.sequences) {
    for (std::int64_t first = 0; first < sequence.rows * group; first += tile_rows) {
      for (std::int64_t head = 0; head < geometry.kv_heads; ++head) {
        const std::int64_t offset =
            sequence.first_row * stride + head * group * geometry.head_dim;
        TileTask task;
        task.tile = {.q = args.q + offset,
                     .q_stride = stride,
                     .group = group,
                     .first = first,
                     .rows = std::min(tile_rows, sequence.rows * group - first),
                     .unmasked = sequence.context - sequence.rows + 1,
                     .softmax_scale = args.softmax_scale,
                     .kv = &args.kv,
                     .kv_head = head,
                     .pages = sequence.pages};
        task.out = args.out + offset;
        const std::int64_t end = task.tile.end();
        // Not a part more for a few positions past a multiple: a part costs a microsecond beside its positions.
        const std::int64_t parts = std::clamp<std::int64_t>((end + kPartTokens / 2) / kPartTokens, 1, kMaxParts);
        task.part_tokens = sequence.rows > kSplitRows ? end : round_up((end + parts - 1) / parts, kBlockTokens);
        task.parts = (end + task.part_tokens - 1) / task.part_tokens;
        tiles.push_back(task);
      }
    }
  }
  // Longest first, so that threads finish together.
  std::stable_sort(tiles.begin(), tiles.end(), [](const TileTask& a, const TileTask& b) {
    return a.tile.rows * a.tile.end() > b.tile.rows * b.tile.end();
  });
  return tiles;
}

AttentionRange range_of(const TileTask& task, std::int64_t part) {
  const std::int64_t begin = part * task.part_tokens;
  return {&task.tile, begin, std::min(begin + task.part_tokens, task.tile.end())};
}

void write_out(const TileTask& task, const AttentionState& state) {
  const AttentionTile& tile = task.tile;
  const std::int64_t head_dim = tile.kv->layout->geometry().head_dim;
  const float factor = value_factor(*tile.kv, tile.kv_head);
  for (std::int64_t row = 0; row < tile.rows; ++row) {
    const std::int64_t m = tile.first + row;
    float* out = task.out + m / tile.group * tile.q_stride + m % tile.group * head_dim;
    const float normalise = factor / state.sum[row];
    for (std::int64_t dim = 0; dim < head_dim; ++dim) {
      out[dim] = state.out[row * head_dim + dim] * normalise;
    }
  }
}

void check_args(const PagedAttentionArgs& args) {
  const KvLayout& layout = *args.kv.layout;
  const KvGeometry& geometry = layout.geometry();
  const auto formats = paged_attention_formats();
  if (std::find(formats.begin(), formats.end(), layout.format()) == formats.end()) {
    fail("paged attention has no kernel for keys {} with values {}",
         name(layout.format().key),
         name(layout.format().value));
  }
  if (geometry.head_dim % 16 != 0 || geometry.head_dim < 16 || geometry.head_dim > 256) {
    fail("paged attention wants head_dim a multiple of 16 up to 256, found {}", geometry.head_dim);
  }
  check(geometry.page_size % kPageSizeStep == 0, "page size is a multiple of 16");
  check(args.heads > 0 && args.heads % geometry.kv_heads == 0, "heads are a multiple of KV heads");
  for (const AttentionSequence& sequence : args.sequences) {
    check(sequence.rows >= 1 && sequence.context >= sequence.rows, "context covers the rows");
  }
}

}  // namespace

std::span<const KvFormat> paged_attention_formats() {
  static const auto formats = [] {
    constexpr DType kKeys[] = {DType::f32, DType::f16, DType::bf16, DType::e4m3};
    constexpr DType kValues[] = {DType::f32, DType::f16, DType::bf16, DType::e4m3, DType::u4};
    std::array<KvFormat, std::size(kKeys) * std::size(kValues)> all;
    for (std::size_t i = 0; i < all.size(); ++i) {
      all[i] = {kKeys[i / std::size(kValues)], kValues[i % std::size(kValues)]};
    }
    return all;
  }();
  return formats;
}

std::int64_t paged_attention_workspace(const KvLayout& layout,
                                       std::int64_t heads,
                                       std::int64_t rows,
                                       int threads) {
  const std::int64_t head_dim = layout.geometry().head_dim;
  const std::int64_t group = heads / layout.geometry().kv_heads;
  const std::int64_t state_rows = std::min(kTileRows, rows * group);
  const std::int64_t states =
      threads == 1 ? 0 : threads * kStatesPerThread * AttentionState::floats(state_rows, head_dim);
  return threads * worker_floats(head_dim) + states + 16;  // 16: to align it
}

void paged_attention(const Stream& stream, const PagedAttentionArgs& args) {
  check_args(args);
  choose_target_once();
  if (args.sequences.empty()) return;
  const std::int64_t head_dim = args.kv.layout->geometry().head_dim;
  const int threads = stream.workers->threads();
  std::vector<TileTask> tiles = make_tiles(args);

  const std::int64_t max_rows =
      std::max_element(tiles.begin(), tiles.end(), [](const TileTask& a, const TileTask& b) {
        return a.tile.rows < b.tile.rows;
      })->tile.rows;
  const std::int64_t state_floats = AttentionState::floats(max_rows, head_dim);
  auto* memory = reinterpret_cast<float*>(
      round_up(reinterpret_cast<std::intptr_t>(args.workspace.data()), 64));
  float* const states = memory + threads * worker_floats(head_dim);
  const auto state_at = [&](std::int64_t index) {
    return AttentionState::at(states + index * state_floats, max_rows);
  };

  std::int64_t used_states = 0;
  std::int64_t task_count = static_cast<std::int64_t>(tiles.size());
  for (TileTask& tile : tiles) {
    if (threads == 1 || task_count >= threads * kTasksPerThread) break;
    if (tile.parts == 1 || used_states + tile.parts > threads * kStatesPerThread) continue;
    tile.first_state = used_states;
    used_states += tile.parts;
    task_count += tile.parts - 1;
  }
  check(static_cast<std::int64_t>(args.workspace.size()) >=
            (states - args.workspace.data()) + used_states * state_floats,
        "attention workspace is as large as paged_attention_workspace() says");

  std::vector<Task> tasks;
  tasks.reserve(task_count);
  for (std::size_t i = 0; i < tiles.size(); ++i) {
    const auto tile = static_cast<std::int64_t>(i);
    if (tiles[i].first_state < 0) {
      tasks.push_back({tile, -1});
    } else {
      for (std::int64_t part = 0; part < tiles[i].parts; ++part) tasks.push_back({tile, part});
    }
  }

  stream.workers->parallel_for(task_count, [&](std::int64_t index, int worker) {
    const TileTask& task = tiles[tasks[index].tile];
    AttentionRange next;  // threads take tasks in turn
    if (index + threads < task_count) {
      const Task& later = tasks[index + threads];
      next = range_of(tiles[later.tile], std::max<std::int64_t>(later.part, 0));
    }
    float* scratch = memory + worker * worker_floats(head_dim);
    if (tasks[index].part >= 0) {
      attend(range_of(task, tasks[index].part), next, state_at(task.first_state + tasks[index].part), scratch);
      return;
    }
    float* own = scratch + attention_scratch_floats(head_dim);
    const AttentionState total = AttentionState::at(own, kTileRows);
    const AttentionState later =
        AttentionState::at(own + AttentionState::floats(kTileRows, head_dim), kTileRows);
    for (std::int64_t part = 0; part < task.parts; ++part) {
      const AttentionRange after = part + 1 < task.parts ? range_of(task, part + 1) : next;
      attend(range_of(task, part), after, part == 0 ? total : later, scratch);
      if (part == 0) continue;
      merge(total, later, task.tile.rows, head_dim);
    }
    write_out(task, total);
  });
  if (used_states == 0) return;
  for (const TileTask& task : tiles) {  // microseconds: not worth waking the pool
    if (task.first_state < 0) continue;
    const AttentionState total = state_at(task.first_state);
    for (std::int64_t part = 1; part < task.parts; ++part) {
      merge(total, state_at(task.first_state + part), task.tile.rows, head_dim);
    }
    write_out(task, total);
  }
}

}  // namespace keel
