// The CUDA backend's memory by the shapes of model/cuda_decoder.h and what it calls, on any machine.
#include <algorithm>

#include "kernels/paged_attention/decode_cuda_shape.h"
#include "lab/byte_plan.h"

namespace keel {
namespace {

constexpr std::int64_t kAwqGroup = 128, kAwqRowTile = 64;
constexpr std::int64_t kPage = 16;
constexpr std::int64_t kLibraryGemmBytes = std::int64_t{64} << 20;
constexpr std::int64_t kNativeSequences = 16;  // of one call of cuDNN
constexpr std::int64_t kCudnnBytes = 1 << 20;  // its plans' workspace
constexpr std::int64_t kSpareRows = 256;       // of queries, keys and values, behind a step's
constexpr std::int64_t kRowSamplingBytes = 48;

std::int64_t up(std::int64_t value, std::int64_t step) { return (value + step - 1) / step * step; }

struct Matrix {
  std::int64_t rows, columns;
};
// One layer's matrices as they are fused on the device.
std::vector<Matrix> layer_matrices(const ModelConfig& c) {
  return {{(c.heads + 2 * c.kv_heads) * c.head_dim, c.hidden}, {c.hidden, c.heads * c.head_dim}, {2 * c.intermediate, c.hidden}, {c.hidden, c.intermediate}};
}

std::int64_t matrix_bytes(const Matrix& matrix, bool awq) {
  if (!awq) return matrix.rows * matrix.columns * 2;
  return up(matrix.rows, kAwqRowTile) * (matrix.columns / 2 + matrix.columns / kAwqGroup * 4);
}

bool any_of(std::int64_t value, std::initializer_list<std::int64_t> wanted) { return std::ranges::find(wanted, value) != wanted.end(); }

// Of one CTA a multiprocessor, for the format that wants the most.
std::int64_t decode_workspace(const ModelConfig& c, std::int64_t sequences, int multiprocessors) {
  const std::int64_t group = c.heads / c.kv_heads;
  if (!any_of(c.head_dim, {64, 128}) || group > 16) return 0;  // the plain kernel's shapes
  std::int64_t most = 0;
  for (const auto& [key, value] : plan_formats(DType::f16)) {
    const cuda::DecodeConfig kernel = cuda::decode_config(key, value, static_cast<int>(c.head_dim), group);
    most = std::max(most, cuda::DecodeWorkspace(nullptr, sequences, multiprocessors * kernel.tuning.ctas_per_sm, kernel).bytes);
  }
  return most;
}

}  // namespace

WeightBytes weight_bytes(const ModelConfig& c) {
  const std::int64_t embedding = c.vocabulary * c.hidden * 2;
  std::int64_t layer = 2 * c.hidden * 4;  // two norms
  for (const Matrix& matrix : layer_matrices(c)) layer += matrix_bytes(matrix, c.awq);
  if (c.qk_norm) layer += 2 * c.head_dim * 4;
  if (c.qkv_bias) layer += (c.heads + 2 * c.kv_heads) * c.head_dim * 2;
  if (c.o_bias) layer += c.hidden * 2;
  const std::int64_t step = c.layers * layer + embedding + c.hidden * 4;
  return {.device = step + (c.tied_head ? 0 : embedding), .step = step};
}

std::vector<NamedBytes> cuda_scratch(const ModelConfig& c, const StepLimits& limits, int multiprocessors) {
  const std::int64_t tokens = limits.max_tokens, rows = limits.max_logit_rows, sequences = limits.max_sequences;
  const std::int64_t attention = c.heads * c.head_dim, scales = 2 * c.layers * c.kv_heads * 4;
  std::int64_t awq_elements = 0;
  if (c.awq) {
    for (const Matrix& matrix : layer_matrices(c)) awq_elements = std::max(awq_elements, matrix.rows * matrix.columns);
  }
  const bool native = any_of(c.head_dim, {64, 80, 96, 128, 256});
  return {{"activations", 2 * (tokens * (3 * c.hidden + attention + 3 * c.intermediate) + (tokens + kSpareRows) * (c.heads + 2 * c.kv_heads) * c.head_dim)},
          {"rows of the head and logits", rows * (2 * c.hidden + 2 * std::max(c.hidden, attention) + 4 * c.vocabulary)},
          {"rotary table and scales", limits.max_context * c.rotary_dim * 4 + scales},
          {"a step's tokens, slots, pages and sampling",
           tokens * (4 + 4 + 8) + rows * (4 + 4 + kRowSamplingBytes) + sequences * (4 + (limits.max_context + kPage - 1) / kPage * 4)},
          {"decode attention", decode_workspace(c, sequences, multiprocessors)},
          {"prefill attention", native ? limits.prefill_workspace_bytes + 5 * (kNativeSequences + 1) * 4 + kCudnnBytes : 0},
          {"matrix products", kLibraryGemmBytes + awq_elements * 2}};
}

}  // namespace keel
