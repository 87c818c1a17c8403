#include "kernels/paged_attention/prefill_cuda.h"

#include <algorithm>
#include <vector>

#include "base/error.h"
#include "kernels/paged_attention/prefill_cuda_native.h"
#include "kernels/paged_attention/prefill_cuda_plain.h"

namespace keel::cuda {
namespace {

constexpr std::int64_t kPlainHeadDims[] = {64, 80, 96, 128, 256};
constexpr std::int64_t kNativeHeadDims[] = {64, 80, 96, 128, 256};

// Empty when served.
std::string refusal(const char* route, const KvLayout& layout, DType dtype, std::int64_t heads, std::span<const std::int64_t> head_dims) {
  const auto [key, value] = layout.format();
  const std::int64_t kv_heads = layout.geometry().kv_heads, head_dim = layout.geometry().head_dim;
  if (dtype != DType::f16 && dtype != DType::bf16) return fmt::format("{}: model type {}, wanted f16 or bf16", route, name(dtype));
  if (layout.order() != PageOrder::cuda) return fmt::format("{}: pages in the CPU's order", route);
  if (key != dtype && key != DType::e4m3) return fmt::format("{}: keys in {}, wanted {} or fp8_e4m3", route, name(key), name(dtype));
  if (value != dtype && value != DType::e4m3 && value != DType::u4) {
    return fmt::format("{}: values in {}, wanted {}, fp8_e4m3 or u4", route, name(value), name(dtype));
  }
  if (heads < 1 || heads % kv_heads != 0) return fmt::format("{}: {} heads over {} KV heads, wanted a multiple", route, heads, kv_heads);
  if (std::ranges::find(head_dims, head_dim) == head_dims.end()) {
    return fmt::format("{}: head dim {}, wanted one of {}", route, head_dim, fmt::join(head_dims, ", "));
  }
  return {};
}

void check_rows(const PrefillAttentionArgs& args) {
  for (const PrefillSequence& s : args.sequences) keel::check(s.rows == s.context, "fresh prompts have nothing cached before them");
}

}  // namespace

std::string plain_prefill_refusal(const KvLayout& layout, DType dtype, std::int64_t heads) {
  return refusal("plain prefill attention on CUDA", layout, dtype, heads, kPlainHeadDims);
}
std::string native_prefill_refusal(const KvLayout& layout, DType dtype, std::int64_t heads) {
  return refusal("prefill attention through cuDNN", layout, dtype, heads, kNativeHeadDims);
}

struct PrefillAttention::State {
  std::string plain_refusal, native_refusal;
  std::unique_ptr<NativePrefill> native;  // or a refusal

  NativePrefill& served() {
    if (!native) fail("{}", native_refusal);
    return *native;
  }
};

PrefillAttention::PrefillAttention(const KvLayout& layout,
                                   DType dtype,
                                   std::int64_t heads,
                                   std::int64_t max_rows,
                                   std::int64_t workspace_bytes)
    : state_(new State{.plain_refusal = plain_prefill_refusal(layout, dtype, heads), .native_refusal = native_prefill_refusal(layout, dtype, heads), .native = nullptr}) {
  if (state_->native_refusal.empty() && workspace_bytes == 0) state_->native_refusal = "prefill attention through cuDNN: no workspace was given";
  if (state_->native_refusal.empty()) state_->native = std::make_unique<NativePrefill>(layout, dtype, heads, max_rows, workspace_bytes);
}
PrefillAttention::~PrefillAttention() = default;

void PrefillAttention::plain(cudaStream_t stream, const PrefillAttentionArgs& args) {
  if (!state_->plain_refusal.empty()) fail("{}", state_->plain_refusal);
  prefill_plain(stream, args);
}

void PrefillAttention::fresh(cudaStream_t stream, const PrefillAttentionArgs& args, std::vector<PrefillRefusal>* refused) {
  check_rows(args);
  state_->served().fresh(stream, args, false, refused);
}
void PrefillAttention::gather(cudaStream_t stream, const PrefillAttentionArgs& args, std::vector<PrefillRefusal>* refused) {
  state_->served().gather(stream, args, false, refused);
}
void PrefillAttention::prepare_fresh(const PrefillAttentionArgs& args) {
  state_->served().fresh(nullptr, args, true);
  state_->served().build_noted();
}
void PrefillAttention::prepare_gather(const PrefillAttentionArgs& args) {
  state_->served().gather(nullptr, args, true);
  state_->served().build_noted();
}

void PrefillAttention::choose_mask(const PrefillAttentionArgs& args, std::int64_t rows) { state_->served().choose_mask(args, rows); }

void PrefillAttention::prepare(PrefillAttentionArgs args, std::int64_t max_rows, std::int64_t max_context, bool common) {
  constexpr std::int64_t kLongest = 8192, kLeast = 128, kStep = 1024, kMostChunks = 16;
  NativePrefill& native = state_->served();
  std::vector<PrefillSequence> sequences;
  const auto note = [&](std::int64_t count, std::int64_t rows, std::int64_t context, bool are_equal = true) {
    if (rows < 1 || count * rows > max_rows || context > max_context) return;
    sequences.clear();
    for (std::int64_t i = 0, first = 0; i < count; ++i) {
      const std::int64_t more = are_equal ? 0 : i % 2;
      sequences.push_back({.first_row = first, .rows = rows + more, .context = context + more, .table_row = i});
      first += rows + more;
    }
    args.sequences = sequences;
    rows == context ? native.fresh(nullptr, args, true) : native.gather(nullptr, args, true);
  };
  // The longest of each kind: of lengths that are multiples of kStep, and of others.
  const std::int64_t most = std::min(max_rows, max_context), of_step = most / kStep * kStep, other = most - (most == of_step);
  const std::int64_t held = std::min(max_context, native.tokens()), held_step = held / kStep * kStep, held_other = held - (held == held_step);
  std::string first_refusal;
  bool serves = false;
  const auto probe = [&](std::int64_t rows, std::int64_t context) {
    note(1, rows, context);
    if (native.noted() == 0) return;
    const std::string refusal = native.build_noted();
    serves = serves || refusal.empty();
    if (first_refusal.empty()) first_refusal = refusal;
  };
  probe(other, other);
  probe(of_step, of_step);
  probe(std::min(other, held_other - 1), held_other);
  probe(std::min(of_step, held_step - kStep), held_step);
  if (max_context > held) probe(std::min(other, max_context - 1), max_context);
  if (!serves) state_->native_refusal = first_refusal;
  if (!serves || !common) return;

  if (const std::int64_t rows = std::min({kLongest, max_rows, max_context}) / kStep * kStep; rows > 0) native.choose_mask(args, rows);
  for (std::int64_t rows = kStep; rows <= kLongest; rows += kStep) {
    for (std::int64_t count = 1; count <= 64; count = rows < kLongest / 2 || count >= 8 ? count * 2 : count + 1) note(count, rows, rows);
  }
  // Other lengths share plans by the next power of two: each noted by its shortest two.
  for (std::int64_t count = 1; count <= kNativeSequences; count *= 2) {
    for (std::int64_t bound = kLeast; bound <= kLongest; bound *= 2) note(count, bound == kLeast ? 1 : bound / 2 + 1, bound == kLeast ? 1 : bound / 2 + 1, false);
  }
  for (std::int64_t chunk = 2; chunk <= kMostChunks; ++chunk) note(1, max_rows, chunk * max_rows);
  for (std::int64_t rows = kLeast; rows <= kLongest; rows *= 2) {
    for (std::int64_t context = rows; context <= kLongest; context *= 2) note(1, rows / 2 + 1, context / 2 + 2);
  }
  native.build_noted();
}

const std::string& PrefillAttention::native_refusal() const { return state_->native_refusal; }
std::int64_t PrefillAttention::workspace_bytes() const { return state_->native ? state_->native->workspace_bytes() : 0; }
std::int64_t PrefillAttention::plans_built() const { return state_->native ? state_->native->plans_built() : 0; }

}  // namespace keel::cuda
