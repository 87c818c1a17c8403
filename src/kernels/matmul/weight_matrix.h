// A weight matrix as it is stored in a model file: a view of rows · columns elements in one of these encodings.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace keel {

// The block formats are GGUF's (docs/formats/weights.md): blocks of 32 elements for q8_0, q4_0, q4_1, of 256 for the K types.
// awq4: AutoAWQ's 4-bit GEMM packing, groups of 128 along the columns.
enum class WeightType : std::uint8_t { f32, f16, bf16, q8_0, q4_0, q4_1, q4_k, q5_k, q6_k, awq4 };

std::string_view name(WeightType type);
std::int64_t block_elements(WeightType type);  // 1, 32 or 256; the number of columns must be a multiple (awq4: 128)
std::int64_t block_bytes(WeightType type);     // bytes of one such block; refuses awq4, which has no row blocks

// W of y = W·x. Row n of an f32…q6_k matrix starts at data + n · row_bytes, columns contiguous.
// awq4 (AutoAWQ): qweight int32 [columns][rows/8], qzeros int32 [columns/128][rows/8], scales f16 [columns/128][rows];
// nibble i of a word holds row 8·w + {0,2,4,6,1,3,5,7}[i]; w = (code - zero) · scale. A row slice of a fused matrix
// keeps the whole matrix's `awq_row_stride` and points at its first row, which is a multiple of 8.
struct WeightMatrix {
  WeightType type = WeightType::f32;
  std::int64_t rows = 0;     // N: outputs
  std::int64_t columns = 0;  // K: inputs
  const std::byte* data = nullptr;         // rows, or AWQ's qweight; any alignment
  const std::byte* awq_zeros = nullptr;
  const std::byte* awq_scales = nullptr;
  std::int64_t awq_row_stride = 0;         // rows of the stored matrix

  std::int64_t row_bytes() const { return columns / block_elements(type) * block_bytes(type); }
  std::int64_t bytes() const;  // all that a product reads
  WeightMatrix row_slice(std::int64_t first, std::int64_t count) const;
};

}  // namespace keel
