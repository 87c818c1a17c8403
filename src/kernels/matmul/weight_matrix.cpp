#include "kernels/matmul/weight_matrix.h"

#include "base/error.h"

namespace keel {
namespace {

constexpr std::int64_t kAwqGroup = 128;  // columns that share a scale and a zero
constexpr std::int64_t kAwqWord = 8;     // rows that share a 32-bit word

}  // namespace

std::string_view name(WeightType type) {
  switch (type) {
    case WeightType::f32:
      return "f32";
    case WeightType::f16:
      return "f16";
    case WeightType::bf16:
      return "bf16";
    case WeightType::q8_0:
      return "q8_0";
    case WeightType::q4_0:
      return "q4_0";
    case WeightType::q4_1:
      return "q4_1";
    case WeightType::q4_k:
      return "q4_k";
    case WeightType::q5_k:
      return "q5_k";
    case WeightType::q6_k:
      return "q6_k";
    case WeightType::awq4:
      return "awq4";
  }
  return "?";
}

std::int64_t block_elements(WeightType type) {
  switch (type) {
    case WeightType::f32:
    case WeightType::f16:
    case WeightType::bf16:
      return 1;
    case WeightType::q8_0:
    case WeightType::q4_0:
    case WeightType::q4_1:
      return 32;
    case WeightType::q4_k:
    case WeightType::q5_k:
    case WeightType::q6_k:
      return 256;
    case WeightType::awq4:
      return kAwqGroup;
  }
  check(false, "block_elements of an unknown weight type");
  return 0;
}

std::int64_t block_bytes(WeightType type) {
  switch (type) {
    case WeightType::f32:
      return 4;
    case WeightType::f16:
    case WeightType::bf16:
      return 2;
    case WeightType::q8_0:
      return 2 + 32;
    case WeightType::q4_0:
      return 2 + 16;
    case WeightType::q4_1:
      return 2 + 2 + 16;
    case WeightType::q4_k:
      return 2 + 2 + 12 + 128;
    case WeightType::q5_k:
      return 2 + 2 + 12 + 32 + 128;
    case WeightType::q6_k:
      return 128 + 64 + 16 + 2;
    case WeightType::awq4:
      break;
  }
  check(false, "block_bytes: awq4 has no row blocks");
  return 0;
}

std::int64_t WeightMatrix::bytes() const {
  if (type != WeightType::awq4) return rows * row_bytes();
  const std::int64_t groups = columns / kAwqGroup;
  return columns * rows / 2 + groups * rows / 2 + groups * rows * 2;
}

WeightMatrix WeightMatrix::row_slice(std::int64_t first, std::int64_t count) const {
  check(first >= 0 && count >= 0 && first + count <= rows, "row_slice is inside the matrix");
  WeightMatrix slice = *this;
  slice.rows = count;
  if (type != WeightType::awq4) {
    slice.data += first * row_bytes();
    return slice;
  }
  check(first % kAwqWord == 0, "an awq4 row_slice begins at a multiple of 8");
  slice.data += first / kAwqWord * 4;
  slice.awq_zeros += first / kAwqWord * 4;
  slice.awq_scales += first * 2;
  return slice;
}

}  // namespace keel
