#include "kernels/paged_attention/prefill_cuda_native.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <utility>

#include "base/bytes.h"
#include "base/error.h"
#include "kv/cuda_page.h"

namespace keel::cuda {
namespace {

// Lengths that are multiples of this get plans of their own; others share plans for bounds of 128, 256, 512, ...
constexpr std::int64_t kExactStep = 1024;
constexpr std::int64_t kLeastBound = 128;
// Prompts of one other length that come together, as benchmarks have them, get a plan of their own from this many rows on where they
// have earned it: cuDNN's attention of many lengths takes 5 to 7 % longer.
constexpr std::int64_t kLeastEvenRows = 512;
constexpr std::int64_t kMaskTile = 128;  // past whole tiles the top-left form was the faster in every cuDNN
constexpr std::int64_t kLongRows = 4096;
constexpr std::int64_t kMostLong = 8;
constexpr std::int64_t kMostMergedRows = 2048;
constexpr int kEach = kNativeSequences + 1;  // of an array in Integers

std::int64_t bound_of(std::int64_t tokens) {
  return static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(std::max(tokens, kLeastBound))));
}

std::int64_t whole_pages(std::int64_t tokens) { return (tokens + kCudaPageSize - 1) / kCudaPageSize * kCudaPageSize; }

const void* advance(const void* from, std::int64_t elements) { return static_cast<const std::uint16_t*>(from) + elements; }
void* advance(void* from, std::int64_t elements) { return static_cast<std::uint16_t*>(from) + elements; }

bool exact(const PrefillSequence& s) { return s.rows % kExactStep == 0 && s.context % kExactStep == 0; }

// Powers of two, for few plans; of long prompts all counts up to kMostLong, for a call of fewer takes longer a prompt.
std::int64_t sequences_of_call(std::int64_t rows, std::int64_t sequences) {
  if (rows >= kLongRows && sequences <= kMostLong) return sequences;
  return static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(sequences)));
}

// How many leading sequences have the same lengths and stand evenly apart.
std::int64_t even_run(std::span<const PrefillSequence> sequences) {
  std::size_t n = 1;
  while (n < sequences.size() && sequences[n].rows == sequences[0].rows && sequences[n].context == sequences[0].context &&
         sequences[n].first_row > sequences[n - 1].first_row &&
         sequences[n].first_row - sequences[n - 1].first_row == sequences[1].first_row - sequences[0].first_row) {
    ++n;
  }
  return static_cast<std::int64_t>(n);
}

// Whether the offsets of cuDNN's ragged tensors, 32 bits of elements, reach all rows of the group.
bool offsets_fit(const PrefillAttentionArgs& args, std::span<const PrefillSequence> group) {
  std::int64_t first = group[0].first_row, end = 0;
  for (const PrefillSequence& s : group) {
    first = std::min(first, s.first_row);
    end = std::max(end, s.first_row + s.rows);
  }
  return (end - first) * std::max({args.q_stride, args.kv_stride, args.out_stride}) <= std::numeric_limits<std::int32_t>::max();
}

// Runs `call` for the group; where cuDNN refuses it, the group goes to `refused`.
template <class Call>
void attempt(const PrefillAttentionArgs& args, std::span<const PrefillSequence> group, std::vector<PrefillRefusal>* refused, Call&& call) {
  try {
    call(group);
  } catch (const SdpaRefusal& refusal) {
    if (refused == nullptr) throw;
    for (const PrefillSequence& s : group) refused->push_back({static_cast<std::size_t>(&s - args.sequences.data()), refusal.reason()});
  }
}

}  // namespace

NativePrefill::NativePrefill(const KvLayout& layout, DType dtype, std::int64_t heads, std::int64_t max_rows, std::int64_t workspace_bytes)
    : layout_(layout),
      dtype_(dtype),
      heads_(heads),
      token_bytes_(layout.geometry().kv_heads * layout.geometry().head_dim * 2),
      integers_(sizeof(Integers::value) / sizeof(std::int32_t), "sequence lengths") {
  const std::int64_t row_bytes = heads * layout.geometry().head_dim * 6 + heads * 8;  // tile, sum and two log-sum-exps
  merged_rows_ = std::min(kMostMergedRows, bound_of(max_rows));
  while (merged_rows_ > kLeastBound && merged_rows_ * row_bytes > workspace_bytes / 8) merged_rows_ /= 2;
  const std::int64_t rows = (workspace_bytes - merged_rows_ * row_bytes) / (2 * token_bytes_) / kCudaPageSize * kCudaPageSize;
  tokens_ = std::min(rows - kPrefillSpareRows, std::numeric_limits<std::int32_t>::max() / (token_bytes_ / 2) / kCudaPageSize * kCudaPageSize);  // offsets reach them
  const std::int64_t least = merged_rows_ + kCudaPageSize;
  if (tokens_ < least) {
    fail("a prefill workspace of {} is too small: wanted at least {}", format_bytes(workspace_bytes),
         format_bytes(merged_rows_ * row_bytes + (least + kPrefillSpareRows) * 2 * token_bytes_));
  }
  workspace_ = DeviceBuffer<std::byte>(workspace_bytes, "the prefill workspace");
  values_ = workspace_.data() + rows * token_bytes_;
  tile_ = values_ + rows * token_bytes_;
  sum_ = reinterpret_cast<float*>(tile_ + merged_rows_ * heads * layout.geometry().head_dim * 2);
  tile_stats_ = sum_ + merged_rows_ * heads * layout.geometry().head_dim;
  stats_ = tile_stats_ + merged_rows_ * heads;
}

SdpaShape NativePrefill::shape(const PrefillAttentionArgs& args) const {
  return {.dtype = dtype_,
          .heads = heads_,
          .kv_heads = layout_.geometry().kv_heads,
          .head_dim = layout_.geometry().head_dim,
          .softmax_scale = args.softmax_scale,
          .q_tokens = 0,
          .kv_tokens = 0,
          .q_stride = args.q_stride,
          .kv_stride = token_bytes_ / 2,
          .out_stride = args.out_stride};
}

void NativePrefill::fresh(cudaStream_t stream, const PrefillAttentionArgs& args, bool build_only, std::vector<PrefillRefusal>* refused) {
  std::span<const PrefillSequence> left = args.sequences;
  while (!left.empty()) {
    const bool is_long = !offsets_fit(args, left.first(1));
    std::int64_t count = is_long ? 1 : sequences_of_call(left[0].rows, even_run(left));
    bool has_own_plan = exact(left[0]) || is_long;
    if (!has_own_plan && count > 1 && left[0].rows >= kLeastEvenRows) {
      const SdpaShape own = exact_shape(args, left.first(count), false);
      has_own_plan = build_only || sdpa_.has(own) || tally_.earns(own);
    }
    if (!has_own_plan) {
      count = 1;
      while (count < std::ssize(left) && count < kNativeSequences && !exact(left[count]) && offsets_fit(args, left.first(count + 1))) ++count;
      count = static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(count)));
    }
    attempt(args, left.first(count), refused, [&](std::span<const PrefillSequence> group) {
      has_own_plan ? run_exact(stream, args, group, false, build_only) : run_ragged(stream, args, group, false, build_only);
    });
    left = left.subspan(count);
  }
}

void NativePrefill::gather(cudaStream_t stream, const PrefillAttentionArgs& args, bool build_only, std::vector<PrefillRefusal>* refused) {
  std::span<const PrefillSequence> left = args.sequences;
  while (!left.empty()) {
    std::int64_t count = 0, tokens = 0;
    while (count < std::ssize(left) && count < kNativeSequences && tokens + whole_pages(left[count].context) <= tokens_) {
      tokens += whole_pages(left[count++].context);
    }
    const bool is_long = !offsets_fit(args, left.first(1)), has_own_plan = exact(left[0]) || is_long, is_whole = count > 0;
    if (has_own_plan) count = is_long ? 1 : std::min(count, even_run(left));
    while (!has_own_plan && count > 1 && !offsets_fit(args, left.first(count))) --count;
    count = static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(std::max<std::int64_t>(count, 1))));
    attempt(args, left.first(count), refused, [&](std::span<const PrefillSequence> group) {
      if (!is_whole) {
        run_tiles(stream, args, group[0], build_only);
      } else if (has_own_plan) {
        run_exact(stream, args, group, true, build_only);
      } else {
        run_ragged(stream, args, group, true, build_only);
      }
    });
    left = left.subspan(count);
  }
}

void NativePrefill::choose_mask(const PrefillAttentionArgs& args, std::int64_t rows) {
  const PrefillSequence whole{.first_row = 0, .rows = rows, .context = rows, .table_row = 0};
  const Stream stream;
  try {
    top_left_ = sdpa_.in_faster_form(stream, exact_shape(args, {&whole, 1}, false), {.q = args.q, .k = args.k, .v = args.v, .out = args.out}).square;
  } catch (const SdpaRefusal&) {  // told and kept: calls of that form are refused
  }
}

std::string NativePrefill::build_noted() { return sdpa_.prepare(std::exchange(noted_, {})); }

GatherArgs NativePrefill::pages(const PrefillAttentionArgs& args) {
  return {.dtype = dtype_,
          .kv = args.kv,
          .page_table = args.page_table,
          .page_table_stride = args.page_table_stride,
          .keys = workspace_.data(),
          .values = values_,
          .zero_rows = kPrefillSpareRows};
}

SdpaShape NativePrefill::exact_shape(const PrefillAttentionArgs& args, std::span<const PrefillSequence> group, bool gathered) const {
  const PrefillSequence& first = group[0];
  const std::int64_t apart = group.size() > 1 ? group[1].first_row - first.first_row : first.rows;
  SdpaShape s = shape(args);
  s.batch = std::ssize(group);
  s.q_tokens = first.rows;
  s.kv_tokens = first.context;
  s.square = first.rows == first.context && (top_left_ || first.rows % kMaskTile != 0);
  if (!gathered) s.kv_stride = args.kv_stride;
  s.q_sequence = apart * args.q_stride;
  s.kv_sequence = (gathered ? first.context : apart) * s.kv_stride;
  s.out_sequence = apart * args.out_stride;
  return s;
}

// Sequences of the same lengths, evenly apart.
void NativePrefill::run_exact(cudaStream_t stream,
                              const PrefillAttentionArgs& args,
                              std::span<const PrefillSequence> group,
                              bool gathered,
                              bool build_only) {
  const PrefillSequence& first = group[0];
  const SdpaShape s = exact_shape(args, group, gathered);
  if (build_only) return noted_.push_back(s);
  if (gathered) {
    GatherArgs all = pages(args);
    for (const PrefillSequence& sequence : group) {
      all.sequence[all.count] = {sequence.table_row, 0, sequence.context, all.count * first.context};
      ++all.count;
    }
    gather_pages(stream, all);
  }
  sdpa_.run(stream, s,
            {.q = advance(args.q, first.first_row * args.q_stride),
             .k = gathered ? workspace_.data() : advance(args.k, first.first_row * args.kv_stride),
             .v = gathered ? values_ : advance(args.v, first.first_row * args.kv_stride),
             .out = advance(args.out, first.first_row * args.out_stride)});
}

void NativePrefill::run_ragged(cudaStream_t stream,
                               const PrefillAttentionArgs& args,
                               std::span<const PrefillSequence> group,
                               bool gathered,
                               bool build_only) {
  SdpaShape s = shape(args);
  s.lengths = SdpaLengths::ragged;
  s.square = !gathered;
  s.batch = std::ssize(group);
  if (!gathered) s.kv_stride = args.kv_stride;
  std::int64_t rows = 1, context = 1, base = group[0].first_row;
  for (const PrefillSequence& sequence : group) {
    rows = std::max(rows, sequence.rows);
    context = std::max(context, sequence.context);
    base = std::min(base, sequence.first_row);
  }
  s.q_tokens = bound_of(rows);
  s.kv_tokens = bound_of(context);
  if (build_only) return noted_.push_back(s);

  Integers integers{};
  GatherArgs all = pages(args);
  const auto offset = [](std::int64_t elements) { return static_cast<std::int32_t>(elements); };  // which the grouping has seen to
  std::int64_t gathered_row = 0;
  for (std::size_t i = 0; i <= group.size(); ++i) {  // offsets have an end
    const PrefillSequence& sequence = group[std::min(i, group.size() - 1)];
    const std::int64_t row = sequence.first_row - base + (i == group.size() ? sequence.rows : 0);
    integers.value[2 * kEach + i] = offset(row * args.q_stride);
    integers.value[3 * kEach + i] = offset((gathered ? gathered_row : row) * s.kv_stride);
    integers.value[4 * kEach + i] = offset(row * args.out_stride);
    if (i == group.size()) break;
    integers.value[i] = static_cast<std::int32_t>(sequence.rows);
    integers.value[kEach + i] = static_cast<std::int32_t>(sequence.context);
    all.sequence[all.count++] = {sequence.table_row, 0, sequence.context, gathered_row};
    gathered_row += whole_pages(sequence.context);
  }
  write_integers(stream, integers, integers_.data());
  if (gathered) gather_pages(stream, all);
  sdpa_.run(stream, s,
            {.q = advance(args.q, base * args.q_stride),
             .k = gathered ? workspace_.data() : advance(args.k, base * args.kv_stride),
             .v = gathered ? values_ : advance(args.v, base * args.kv_stride),
             .out = advance(args.out, base * args.out_stride),
             .q_lengths = integers_.data(),
             .kv_lengths = integers_.data() + kEach,
             .q_offsets = integers_.data() + 2 * kEach,
             .kv_offsets = integers_.data() + 3 * kEach,
             .out_offsets = integers_.data() + 4 * kEach});
}

// A context that the workspace does not hold, a block of rows at a time: whole tiles that every row of the block sees, then
// the last, which ends with the block's own tokens.
void NativePrefill::run_tiles(cudaStream_t stream, const PrefillAttentionArgs& args, const PrefillSequence& sequence, bool build_only) {
  for (std::int64_t first = 0; first < sequence.rows; first += merged_rows_) {
    const std::int64_t rows = std::min(merged_rows_, sequence.rows - first);
    const std::int64_t context = sequence.context - sequence.rows + first + rows;
    const std::int64_t last_tile = context <= tokens_ ? 0 : whole_pages(context - tokens_);
    for (std::int64_t begin = 0; begin < context;) {
      const bool last = begin == last_tile;
      const std::int64_t end = last ? context : std::min(begin + tokens_, last_tile);
      SdpaShape s = shape(args);
      s.lengths = SdpaLengths::padded;
      s.causal = last;
      s.stats = true;
      s.q_tokens = std::min(bound_of(rows), merged_rows_);
      s.kv_tokens = std::min(bound_of(end - begin), tokens_);
      s.out_stride = heads_ * layout_.geometry().head_dim;
      if (build_only) {
        noted_.push_back(s);
      } else {
        Integers integers{};
        integers.value[0] = static_cast<std::int32_t>(rows);
        integers.value[1] = static_cast<std::int32_t>(end - begin);
        write_integers(stream, integers, integers_.data());
        GatherArgs tile = pages(args);
        tile.sequence[tile.count++] = {sequence.table_row, begin / kCudaPageSize, end - begin, 0};
        gather_pages(stream, tile);
        const std::int64_t row = sequence.first_row + first;
        sdpa_.run(stream, s,
                  {.q = advance(args.q, row * args.q_stride),
                   .k = workspace_.data(),
                   .v = values_,
                   .out = tile_,
                   .stats = tile_stats_,
                   .q_lengths = integers_.data(),
                   .kv_lengths = integers_.data() + 1});
        merge_tile(stream, {.dtype = dtype_,
                            .tile = tile_,
                            .tile_stats = tile_stats_,
                            .stats_stride = s.q_tokens,
                            .sum = sum_,
                            .stats = stats_,
                            .out = advance(args.out, row * args.out_stride),
                            .out_stride = args.out_stride,
                            .rows = rows,
                            .heads = heads_,
                            .head_dim = layout_.geometry().head_dim,
                            .first = begin == 0,
                            .last = last});
      }
      begin = end;
    }
  }
}

}  // namespace keel::cuda
