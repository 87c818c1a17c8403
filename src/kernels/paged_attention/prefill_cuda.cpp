#include "kernels/paged_attention/prefill_cuda.h"

#include <algorithm>

#include "base/error.h"
#include "kernels/paged_attention/prefill_cuda_plain.h"

namespace keel::cuda {
namespace {

constexpr std::int64_t kPlainHeadDims[] = {64, 80, 96, 128, 256};

// What both the pages' readers want of a format; empty when served.
std::string format_refusal(const char* route, const KvLayout& layout, DType dtype, std::int64_t heads) {
  const auto [key, value] = layout.format();
  if (dtype != DType::f16 && dtype != DType::bf16) return fmt::format("{}: model type {}, wanted f16 or bf16", route, name(dtype));
  if (layout.order() != PageOrder::cuda) return fmt::format("{}: pages in the CPU's order", route);
  if (key != dtype && key != DType::e4m3) return fmt::format("{}: keys in {}, wanted {} or fp8_e4m3", route, name(key), name(dtype));
  if (value != dtype && value != DType::e4m3 && value != DType::u4) {
    return fmt::format("{}: values in {}, wanted {}, fp8_e4m3 or u4", route, name(value), name(dtype));
  }
  const std::int64_t kv_heads = layout.geometry().kv_heads;
  if (heads < 1 || heads % kv_heads != 0) return fmt::format("{}: {} heads over {} KV heads, wanted a multiple", route, heads, kv_heads);
  return {};
}

}  // namespace

struct PrefillAttention::State {
  KvLayout layout;
  DType dtype;
  std::int64_t heads;
};

PrefillAttention::PrefillAttention(const KvLayout& layout,
                                   DType dtype,
                                   std::int64_t heads,
                                   std::int64_t max_rows,
                                   std::int64_t workspace_bytes)
    : state_(new State{layout, dtype, heads}) {
  (void)max_rows, (void)workspace_bytes;
}
PrefillAttention::~PrefillAttention() = default;

std::string PrefillAttention::plain_refusal() const {
  constexpr const char* kRoute = "plain prefill attention on CUDA";
  std::string refusal = format_refusal(kRoute, state_->layout, state_->dtype, state_->heads);
  if (!refusal.empty()) return refusal;
  const std::int64_t dim = state_->layout.geometry().head_dim;
  if (std::ranges::find(kPlainHeadDims, dim) == std::end(kPlainHeadDims)) {
    return fmt::format("{}: head dim {}, wanted 64, 80, 96, 128 or 256", kRoute, dim);
  }
  return {};
}

void PrefillAttention::plain(cudaStream_t stream, const PrefillAttentionArgs& args) {
  if (const std::string refusal = plain_refusal(); !refusal.empty()) fail("{}", refusal);
  prefill_plain(stream, args);
}

}  // namespace keel::cuda
