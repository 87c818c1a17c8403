// What two kinds of tensor source share: the account of the bytes they handed out, and widening to f32.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "kernels/matmul/weight_matrix.h"

namespace keel {

class StoredBytes {
 public:
  void add(WeightType type, std::span<const std::byte> matrix);
  void add_vector(std::span<const std::byte> vector) {
    bytes_ += static_cast<std::int64_t>(vector.size());
  }

  std::int64_t bytes() const { return bytes_; }
  std::string types() const;  // of the matrices, the one of most bytes first: "q4_k/q6_k"
  void read_ahead() const;    // the matrices, with a progress bar

 private:
  std::int64_t bytes_ = 0;
  std::map<WeightType, std::int64_t> bytes_of_type_;
  std::vector<std::span<const std::byte>> matrices_;
};

// f32, f16 or bf16 values of any alignment; `out` takes as many as `bytes` holds.
void copy_floats(WeightType type, std::span<const std::byte> bytes, float* out);

}  // namespace keel
