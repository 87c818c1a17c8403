// Tokens' order and weights for the sampler on CUDA.
#pragma once

#include <cfloat>
#include <cstdint>

namespace keel::cuda {

using Sum = unsigned long long;

inline constexpr int kUnitBits = 45;  // the likeliest token's weight is 2^45
inline constexpr double kLeastPart = 0x1p-58;  // less likely tokens' weights, below 2^-46, round to 0

// Tokens likelier than `least`, and those as likely up to `last_id`.
struct Kept {
  float least;
  int last_id;
  __device__ bool has(float logit, int id) const { return (logit > least) | ((logit == least) & (id <= last_id)); }  // | and &: no branches
};

// Orders like (logit, then the smaller id); NaN below everything; -0 as 0.
__device__ inline Sum rank(float logit, int id) {
  if (logit != logit) return 0;
  const auto raw = __float_as_uint(logit + 0.0f);
  const std::uint32_t ordered = raw & 0x80000000u ? ~raw : raw | 0x80000000u;
  return static_cast<Sum>(ordered) << 32 | (0xffffffffu - static_cast<std::uint32_t>(id));
}
__device__ inline float rank_logit(Sum rank) {
  const auto ordered = static_cast<std::uint32_t>(rank >> 32);
  return rank == 0 ? -INFINITY : __uint_as_float(ordered & 0x80000000u ? ordered & 0x7fffffffu : ~ordered);
}
__device__ inline int rank_id(Sum rank) { return static_cast<int>(0xffffffffu - static_cast<std::uint32_t>(rank)); }

// exp((logit - largest) / temperature) · 2^45, to an integer, for tokens of kLeastPart or more (of others it means nothing).
// With y = the exponent in 16ths of a power of two, k its nearest integer: 2^(k / 16) from a table, whose 16 entries lie on
// different banks, and k's upper bits, and 2^(r / 16), |r| <= 1/2, by its series: r^7's term is below 2^-50.
class Weight {
 public:
  static constexpr int kPowers = 16;
  // `powers`: 2^(i / 16), by fill().
  __device__ Weight(const double* powers, float largest, double temperature)
      : powers_(powers), largest_(largest), scale_(kPowers * 1.4426950408889634 / temperature) {}
  __device__ static void fill(double* powers) {
    if (threadIdx.x < kPowers) powers[threadIdx.x] = exp2(threadIdx.x / static_cast<double>(kPowers));
  }

  __device__ Sum operator()(float logit) const {
    const float logits[1] = {logit};
    Sum weights[1];
    many(logits, weights);
    return weights[0];
  }
  // Several, for their chains of operations to be side by side.
  template <int kCount>
  __device__ void many(const float (&logits)[kCount], Sum (&weights)[kCount]) const {
    constexpr double kRounding = 0x1.8p52;  // added, it leaves the nearest integer in the low bits
    constexpr double c = 0.693147180559945309 / kPowers;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const double y = (logits[i] - largest_) * scale_;
      const double biased = y + kRounding;
      const double r = y - (biased - kRounding);
      const int k = __double2loint(biased);
      const double r2 = r * r;  // the series in pairs: a shorter chain
      const double low = fma(r, c, 1.0), middle = fma(r, c * c * c / 6, c * c / 2), high = fma(r, c * c * c * c * c / 120, c * c * c * c / 24);
      const double series = fma(r2, fma(r2, fma(r2, c * c * c * c * c * c / 720, high), middle), low);
      const double product = series * powers_[k & (kPowers - 1)];
      const double weight = __hiloint2double(__double2hiint(product) + ((k >> 4) + kUnitBits) * (1 << 20), __double2loint(product));
      weights[i] = static_cast<Sum>(__double_as_longlong(weight + 0x1p52)) & ((Sum{1} << 52) - 1);
    }
  }
  // Of a token as likely as `part` of the likeliest; no larger.
  __device__ float logit_of(double part) const {
    return __double2float_rd(fmax(largest_ + log2(fmax(part, 0x1p-100)) * kPowers / scale_, -static_cast<double>(FLT_MAX)));
  }
  // About the weight, as a part of the largest.
  __device__ float rough(float logit) const {
    return exp2f((logit - static_cast<float>(largest_)) * static_cast<float>(scale_ / kPowers));
  }

 private:
  const double* powers_;
  double largest_, scale_;
};

}  // namespace keel::cuda
