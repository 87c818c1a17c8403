// Random weight matrices of every encoding, for this folder's tests and benchmark.
#pragma once

#include <cstring>
#include <vector>

#include "base/dtype.h"
#include "base/random.h"
#include "kernels/matmul/weight_matrix.h"

namespace keel {

constexpr WeightType kAllWeightTypes[] = {WeightType::f32,
                                          WeightType::f16,
                                          WeightType::bf16,
                                          WeightType::q8_0,
                                          WeightType::q4_0,
                                          WeightType::q4_1,
                                          WeightType::q4_k,
                                          WeightType::q5_k,
                                          WeightType::q6_k,
                                          WeightType::awq4};

// The bytes of a matrix and its view. All codes are random bits; scales and minima are random f16 of either sign, about one
// in sixteen of them subnormal; plain elements lie in [-1, 1). `misalignment` shifts every array off its allocation.
class RandomWeights {
 public:
  RandomWeights(WeightType type,
                std::int64_t rows,
                std::int64_t columns,
                std::uint64_t seed,
                std::size_t misalignment = 0)
      : seed_(seed) {
    view_ = {.type = type, .rows = rows, .columns = columns};
    if (type == WeightType::awq4) {
      const std::int64_t groups = columns / 128;
      codes_.resize(static_cast<std::size_t>(columns * rows / 2) + misalignment);
      zeros_.resize(static_cast<std::size_t>(groups * rows / 2) + misalignment);
      scales_.resize(static_cast<std::size_t>(groups * rows * 2) + misalignment);
      fill_random(codes_);
      fill_random(zeros_);
      for (std::size_t at = misalignment; at < scales_.size(); at += 2) put_half(scales_, at);
      view_.data = codes_.data() + misalignment;
      view_.awq_zeros = zeros_.data() + misalignment;
      view_.awq_scales = scales_.data() + misalignment;
      view_.awq_row_stride = rows;
      return;
    }
    codes_.resize(static_cast<std::size_t>(rows * view_.row_bytes()) + misalignment);
    fill_random(codes_);
    const auto step = static_cast<std::size_t>(block_bytes(type));
    for (std::size_t at = misalignment; at < codes_.size(); at += step) put_scales(type, at);
    view_.data = codes_.data() + misalignment;
  }

  const WeightMatrix& view() const { return view_; }
  std::vector<std::byte>& codes() { return codes_; }

 private:
  void fill_random(std::vector<std::byte>& bytes) {
    for (auto& byte : bytes) byte = static_cast<std::byte>(random_u64(seed_, counter_++) & 255);
  }
  float signed_unit() { return static_cast<float>(2 * random_unit(seed_, counter_++) - 1); }
  template <class T>
  static void put(std::vector<std::byte>& bytes, std::size_t at, T value) {
    std::memcpy(bytes.data() + at, &value, sizeof(value));
  }
  void put_half(std::vector<std::byte>& bytes, std::size_t at) {
    const bool subnormal = random_u64(seed_, counter_++) % 16 == 0;
    put(bytes, at, to_half(signed_unit() * (subnormal ? 0x1p-15f : 0.05f)));
  }
  void put_scales(WeightType type, std::size_t at) {
    switch (type) {
      case WeightType::f32:
        return put(codes_, at, signed_unit());
      case WeightType::f16:
        return put_half(codes_, at);
      case WeightType::bf16:
        return put(codes_, at, to_bf16(signed_unit()));
      case WeightType::q8_0:
      case WeightType::q4_0:
        return put_half(codes_, at);
      case WeightType::q4_1:
      case WeightType::q4_k:
      case WeightType::q5_k:
        put_half(codes_, at);
        return put_half(codes_, at + 2);
      case WeightType::q6_k:
        return put_half(codes_, at + 208);
      case WeightType::awq4:
        return;
    }
  }

  std::uint64_t seed_;
  std::uint64_t counter_ = 0;
  std::vector<std::byte> codes_, zeros_, scales_;
  WeightMatrix view_;
};

}  // namespace keel
