#include "kernels/matmul/matmul.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <iterator>
#include <limits>

#include "device/buffer.h"
#include "kernels/cpu_features.h"
#include "kernels/matmul/quantized.h"
#include "kernels/matmul/random_weights.h"

namespace keel {
namespace {

constexpr float kPoison = std::numeric_limits<float>::quiet_NaN();

// Leaves the target as it found it.
class MatmulOnTarget : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    before_ = chosen_target();
    force_target(GetParam());
  }
  void TearDown() override { force_target(before_); }

 private:
  std::string before_;
};
INSTANTIATE_TEST_SUITE_P(Cpu,
                         MatmulOnTarget,
                         testing::ValuesIn(supported_targets()),
                         [](const auto& info) { return info.param; });

struct Case {
  std::int64_t tokens = 1;
  bool bias = false, accumulate = false;
  std::int64_t x_padding = 0, out_padding = 0;
};

// The part of each weight of a row that its code does not scale: what it would be with all codes zero.
void dequantize_offsets(const WeightMatrix& weights, std::int64_t row, float* out) {
  const auto code_bytes = [&]() -> std::int64_t {  // at each block's end
    if (weights.type == WeightType::q4_1) return 16;
    if (weights.type == WeightType::q4_k) return 128;
    if (weights.type == WeightType::q5_k) return 160;
    return 0;
  }();
  std::fill_n(out, weights.columns, 0.0f);
  if (code_bytes == 0) return;
  const std::byte* from = weights.data + row * weights.row_bytes();
  std::vector<std::byte> bytes(from, from + weights.row_bytes());
  const std::int64_t block = block_bytes(weights.type);
  for (auto end = bytes.begin() + block;; end += block) {
    std::fill(end - code_bytes, end, std::byte{0});
    if (end == bytes.end()) break;
  }
  dequantize_row(
      {.type = weights.type, .rows = 1, .columns = weights.columns, .data = bytes.data()}, 0, out);
}

// One product, its inputs random and everything it must not touch NaN.
class Trial {
 public:
  Trial(const WeightMatrix& weights, const Case& c, std::uint64_t seed)
      : weights_(weights),
        case_(c),
        x_stride_(weights.columns + c.x_padding),
        out_stride_(weights.rows + c.out_padding),
        x_(static_cast<std::size_t>(c.tokens * x_stride_), kPoison),
        bias_(static_cast<std::size_t>(weights.rows)),
        out_(static_cast<std::size_t>(c.tokens * out_stride_), kPoison) {
    std::uint64_t n = 0;
    const auto draw = [&] { return static_cast<float>(2 * random_unit(seed, n++) - 1); };
    for (std::int64_t t = 0; t < c.tokens; ++t) {
      for (std::int64_t k = 0; k < weights.columns; ++k) x(t, k) = draw();
      for (std::int64_t r = 0; r < weights.rows && c.accumulate; ++r) out(t, r) = draw();
    }
    for (float& b : bias_) b = draw();
    before_ = out_;
  }

  MatmulOutput output() {
    return {.weights = weights_,
            .bias = case_.bias ? bias_.data() : nullptr,
            .out = out_.data(),
            .out_stride = out_stride_,
            .accumulate = case_.accumulate};
  }
  void run(WorkerPool& pool) {
    const MatmulOutput outputs[] = {output()};
    const std::int64_t bytes = matmul_workspace(weights_, case_.tokens);
    Buffer<std::byte> workspace(static_cast<std::size_t>(bytes), "workspace");
    matmul({&pool},
           {.x = x_.data(),
            .x_stride = x_stride_,
            .tokens = case_.tokens,
            .outputs = outputs,
            .workspace = workspace.span()});
  }

  float& x(std::int64_t t, std::int64_t k) {
    return x_[static_cast<std::size_t>(t * x_stride_ + k)];
  }
  float& out(std::int64_t t, std::int64_t r) {
    return out_[static_cast<std::size_t>(t * out_stride_ + r)];
  }
  std::vector<float>& outputs() { return out_; }

  // The number of wrong elements: beyond the contract's bound of the double sum of dequantize_row's weights, or written
  // though they lie outside the result.
  int wrong() {
    int count = 0;
    const std::int64_t columns = weights_.columns;
    std::vector<float> row(static_cast<std::size_t>(columns)), offsets(row.size());
    for (std::int64_t r = 0; r < weights_.rows; ++r) {
      dequantize_row(weights_, r, row.data());
      dequantize_offsets(weights_, r, offsets.data());
      for (std::int64_t t = 0; t < case_.tokens; ++t) {
        double sum = 0, magnitudes = 0, quantization = 0, largest = 0;
        for (std::int64_t k = 0; k < columns; ++k) {
          const auto i = static_cast<std::size_t>(k);
          const double w = row[i], b = offsets[i];
          if (k % kRunColumns == 0) {
            largest = 0;
            for (std::int64_t n = k; n < std::min(columns, k + kRunColumns); ++n)
              largest = std::max<double>(largest, std::abs(x(t, n)));
          }
          sum += w * x(t, k);
          const double step = std::max(largest * 0x1.0001p-15, 0x1p-127);
          quantization += std::abs(w) * step;
          magnitudes += (std::abs(w - b) + std::abs(b)) * (std::abs(x(t, k)) + step);
        }
        const auto at = static_cast<std::size_t>(t * out_stride_ + r);
        double extra = 0;  // two more additions, each rounded
        if (case_.bias) extra += bias_[static_cast<std::size_t>(r)];
        if (case_.accumulate) extra += before_[at];
        double bound = static_cast<double>(columns) * 0x1p-24 * magnitudes;
        if (is_quantized(weights_.type)) bound = bound / 4 + quantization;
        if (case_.bias || case_.accumulate)
          bound += 0x1p-24 * 2 * (std::abs(sum) + std::abs(extra) + 2);
        if (!(std::abs(out_[at] - (sum + extra)) <= bound)) ++count;  // a NaN counts too
      }
    }
    for (std::int64_t t = 0; t < case_.tokens; ++t) {
      for (std::int64_t i = weights_.rows; i < out_stride_; ++i) count += !std::isnan(out(t, i));
    }
    return count;
  }

 private:
  WeightMatrix weights_;
  Case case_;
  std::int64_t x_stride_, out_stride_;
  std::vector<float> x_, bias_, out_, before_;
};

std::vector<std::int64_t> column_counts(WeightType type) {
  if (block_elements(type) == 1) return {1, 31, 32, 33, 100, 288};
  if (block_elements(type) == 32) return {32, 96, 2080};
  if (type == WeightType::awq4) return {128, 384, 1152};
  return {256, 768, 2304};
}

TEST_P(MatmulOnTarget, StaysWithinTheBoundForEveryTypeShapeAndTokenCount) {
  WorkerPool pool(2);
  std::uint64_t seed = 1;
  for (const WeightType type : kAllWeightTypes) {
    for (const std::int64_t columns : column_counts(type)) {
      for (std::int64_t rows : {1, 7, 8, 33, 129}) {
        if (type == WeightType::awq4) rows = (rows + 7) / 8 * 8;
        const RandomWeights weights(type, rows, columns, ++seed);
        for (const std::int64_t tokens : {1, 2, 3, 5, 8, 12, 13, 16, 31, 64, 100}) {
          if (tokens > 16 && rows > 8 && columns > 400 && tokens != 31)
            continue;  // time; 31 stands for them
          Trial trial(weights.view(), {.tokens = tokens, .out_padding = 3}, ++seed);
          trial.run(pool);
          ASSERT_EQ(trial.wrong(), 0)
              << name(type) << " rows " << rows << " columns " << columns << " tokens " << tokens;
        }
      }
    }
  }
}

TEST_P(MatmulOnTarget, AddsBiasAndAccumulatesAndKeepsPadding) {
  WorkerPool pool(2);
  std::uint64_t seed = 1000;
  for (const WeightType type : kAllWeightTypes) {
    const RandomWeights weights(type, 40, 2304, ++seed);
    for (const std::int64_t tokens : {1, 4, 20}) {
      for (const bool bias : {false, true}) {
        for (const bool accumulate : {false, true}) {
          Trial trial(weights.view(),
                      {.tokens = tokens,
                       .bias = bias,
                       .accumulate = accumulate,
                       .x_padding = 5,
                       .out_padding = 9},
                      ++seed);
          trial.run(pool);
          ASSERT_EQ(trial.wrong(), 0) << name(type) << " tokens " << tokens << " bias " << bias
                                      << " accumulate " << accumulate;
        }
      }
    }
  }
}

TEST_P(MatmulOnTarget, ReadsWeightsAtAnyAddress) {
  WorkerPool pool(1);
  for (const WeightType type : kAllWeightTypes) {
    const RandomWeights aligned(type, 24, 256, 7), shifted(type, 24, 256, 8, 1);
    for (const std::int64_t tokens : {1, 3, 17}) {
      Trial trial(shifted.view(), {.tokens = tokens}, 9);
      trial.run(pool);
      ASSERT_EQ(trial.wrong(), 0) << name(type) << " tokens " << tokens;
    }
  }
}

TEST_P(MatmulOnTarget, TakesARowSliceAsAMatrixOfItsOwn) {
  WorkerPool pool(2);
  for (const WeightType type : kAllWeightTypes) {
    const RandomWeights weights(type, 64, 256, 11);
    const WeightMatrix slice = weights.view().row_slice(16, 24);
    std::vector<float> whole(256), part(256);
    dequantize_row(weights.view(), 16 + 5, whole.data());
    dequantize_row(slice, 5, part.data());
    ASSERT_EQ(whole, part) << name(type);
    for (const std::int64_t tokens : {1, 20}) {
      Trial trial(slice, {.tokens = tokens}, 12);
      trial.run(pool);
      ASSERT_EQ(trial.wrong(), 0) << name(type) << " tokens " << tokens;
    }
  }
}

// With one weight column selected by a unit vector the product is that column: exact, so this checks each decoder bit by bit.
TEST_P(MatmulOnTarget, DecodesEveryElementToTheReferencesBits) {
  WorkerPool pool(1);
  for (const WeightType type : kAllWeightTypes) {
    const RandomWeights weights(type, 8, 256, 13);
    for (const std::int64_t tokens : {8, 256}) {
      Trial trial(weights.view(), {.tokens = tokens}, 14);
      for (std::int64_t first = 0; first < 256; first += tokens) {
        for (std::int64_t t = 0; t < tokens; ++t) {
          for (std::int64_t k = 0; k < 256; ++k) trial.x(t, k) = k == first + t ? 1.0f : 0.0f;
        }
        trial.run(pool);
        for (std::int64_t r = 0; r < 8; ++r) {
          std::vector<float> row(256);
          dequantize_row(weights.view(), r, row.data());
          for (std::int64_t t = 0; t < tokens; ++t) {
            ASSERT_EQ(trial.out(t, r), row[static_cast<std::size_t>(first + t)])
                << name(type) << " row " << r << " column " << first + t;
          }
        }
      }
    }
  }
}

TEST_P(MatmulOnTarget, GivesTheSameBitsWithAnyNumberOfThreads) {
  for (const WeightType type : kAllWeightTypes) {
    const RandomWeights weights(type, 200, 512, 21);
    for (const std::int64_t tokens : {1, 20}) {
      std::vector<float> first;
      for (const int threads : {1, 2, 3}) {
        WorkerPool pool(threads);
        Trial trial(weights.view(), {.tokens = tokens}, 22);
        trial.run(pool);
        if (first.empty()) first = trial.outputs();
        ASSERT_EQ(trial.outputs(), first) << name(type) << " threads " << threads;
      }
      ASSERT_EQ(first.size(), static_cast<std::size_t>(200 * tokens));
    }
  }
}

TEST_P(MatmulOnTarget, ComputesSeveralOutputsOfOneInput) {
  WorkerPool pool(3);
  const RandomWeights q(WeightType::q4_1, 48, 64, 31), k(WeightType::q8_0, 16, 64, 32),
      v(WeightType::f16, 17, 64, 33);
  for (const std::int64_t tokens : {1, 30}) {
    Trial a(q.view(), {.tokens = tokens, .bias = true}, 34), b(k.view(), {.tokens = tokens}, 34),
        c(v.view(), {.tokens = tokens, .accumulate = true, .out_padding = 1}, 34);
    for (Trial* other : {&b, &c}) {
      for (std::int64_t t = 0; t < tokens; ++t) {
        for (std::int64_t i = 0; i < 64; ++i) other->x(t, i) = a.x(t, i);
      }
    }
    const MatmulOutput outputs[] = {a.output(), b.output(), c.output()};
    const auto bytes = static_cast<std::size_t>(matmul_workspace(q.view(), tokens));
    Buffer<std::byte> workspace(bytes, "workspace");
    matmul({&pool},
           {.x = &a.x(0, 0),
            .x_stride = 64,
            .tokens = tokens,
            .outputs = outputs,
            .workspace = workspace.span()});
    EXPECT_EQ(a.wrong(), 0);
    EXPECT_EQ(b.wrong(), 0);
    EXPECT_EQ(c.wrong(), 0);
  }
}

std::vector<WeightType> quantized_types() {
  std::vector<WeightType> types;
  std::copy_if(std::begin(kAllWeightTypes), std::end(kAllWeightTypes), std::back_inserter(types), is_quantized);
  return types;
}

TEST_P(MatmulOnTarget, GivesAQuantizedWeightsTokenTheSameBitsInAnyCompany) {
  WorkerPool pool(2);
  for (const WeightType type : quantized_types()) {
    const RandomWeights weights(type, 40, 768, 51);
    Trial whole(weights.view(), {.tokens = 29}, 52);
    whole.run(pool);
    for (const std::int64_t tokens : {1, 2, 3, 4, 5, 6, 7, 8, 9, 15}) {
      for (const std::int64_t first : {0, 11, 14}) {
        Trial part(weights.view(), {.tokens = tokens}, 53);
        for (std::int64_t t = 0; t < tokens; ++t)
          std::copy_n(&whole.x(first + t, 0), 768, &part.x(t, 0));
        part.run(pool);
        for (std::int64_t t = 0; t < tokens; ++t) {
          for (std::int64_t r = 0; r < 40; ++r)
            ASSERT_EQ(part.out(t, r), whole.out(first + t, r)) << name(type) << " tokens " << tokens;
        }
      }
    }
  }
}

TEST_P(MatmulOnTarget, StaysWithinTheBoundForActivationsOfAnyMagnitude) {
  WorkerPool pool(2);
  for (const WeightType type : quantized_types()) {
    const RandomWeights weights(type, 32, 512, 61);
    for (const std::int64_t tokens : {1, 7, 19}) {
      Trial trial(weights.view(), {.tokens = tokens}, 62);
      for (std::int64_t t = 0; t < tokens; ++t) {
        for (std::int64_t k = 0; k < 512; ++k) {
          const std::int64_t run = k / 32, in_run = k % 32;
          float& x = trial.x(t, k);
          if (run % 8 == 0) x = 0;
          if (run % 8 == 1) x *= 0x1p-140f;                                // subnormal
          if (run % 8 == 2) x *= 0x1p-110f;
          if (run % 8 == 3) x = in_run == t % 32 ? 0x1.fffffep+90f : x;    // one outlier hides the others
          if (run % 8 == 4) x = in_run % 2 == 0 ? 1.0f : -1.0f;
          if (run % 8 == 5) x = in_run == 31 ? 0x1.fffep+0f : 0x1p-15f;    // rounds to the largest code, and past it
          if (run % 8 == 6) x = in_run == 0 ? 0x1.ffffp+0f : -0x1.ffffp+0f;
          if (t % 3 != 0 && run % 8 == 3) x = -x * 0x1p-100f;              // so that others show
        }
      }
      trial.run(pool);
      ASSERT_EQ(trial.wrong(), 0) << name(type) << " tokens " << tokens;
    }
  }
}

TEST_P(MatmulOnTarget, AnswersNanAndInfinityWithNoFiniteNumberAndSparesOtherTokens) {
  WorkerPool pool(2);
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const WeightType type : kAllWeightTypes) {
    const RandomWeights weights(type, 24, 256, 71);
    for (const std::int64_t tokens : {3, 20}) {
      for (const float bad : {kPoison, -kPoison, kInfinity, -kInfinity}) {
        Trial trial(weights.view(), {.tokens = tokens}, 72), clean(weights.view(), {.tokens = tokens}, 72);
        trial.x(1, 77) = bad;
        trial.run(pool);
        clean.run(pool);
        for (std::int64_t r = 0; r < 24; ++r) {
          ASSERT_FALSE(std::isfinite(trial.out(1, r))) << name(type);
          for (std::int64_t t = 0; t < tokens; ++t) {
            ASSERT_TRUE(t == 1 || trial.out(t, r) == clean.out(t, r)) << name(type);
          }
        }
      }
    }
  }
}

TEST_P(MatmulOnTarget, QuantizesToTheNearestOfTheRunsPowersOfTwo) {
  for (const std::int64_t tokens : {1, 2, 3, 7, 8}) {
    const std::int64_t width = group_slots(tokens);
    std::vector<float> x(static_cast<std::size_t>(tokens * 96));
    for (std::size_t i = 0; i < x.size(); ++i) {
      const int exponent = static_cast<int>(random_u64(81, i) % 200) - 100;
      x[i] = std::ldexp(static_cast<float>(2 * random_unit(82, i) - 1), i % 7 == 0 ? exponent : 0);
    }
    std::vector<QuantizedRun> runs(static_cast<std::size_t>(3 * width), QuantizedRun{.scale = kPoison});
    quantize_group({.x = x.data(), .x_stride = 96, .tokens = tokens, .columns = 96, .out = runs.data()}, 0, 3);
    for (std::int64_t run = 0; run < 3; ++run) {
      for (std::int64_t t = 0; t < width; ++t) {
        const QuantizedRun& found = runs[static_cast<std::size_t>(run * width + t)];
        double sum = 0, largest = 0;
        for (int k = 0; k < 32; ++k) {
          constexpr int kPlace[4] = {0, 2, 1, 3};
          const std::int16_t code = found.codes[k / 4 * 4 + kPlace[k % 4]];
          const double value = t < tokens ? x[static_cast<std::size_t>(t * 96 + run * 32 + k)] : 0;
          ASSERT_LE(std::abs(code * static_cast<double>(found.scale) - value), found.scale / 2);
          ASSERT_GE(code, -32767);
          sum += code;
          largest = std::max(largest, std::abs(value));
        }
        ASSERT_EQ(found.sum, sum * found.scale);
        if (t >= tokens) continue;
        int exponent = 0;
        ASSERT_EQ(std::frexp(found.scale, &exponent), 0.5f) << "a power of two";
        ASSERT_LE(found.scale / 2, largest * 0x1.0001p-15);
      }
    }
  }
}

TEST(MatmulChecks, NoticeEachKindOfDamage) {
  WorkerPool pool(1);
  RandomWeights weights(WeightType::q4_1, 16, 64, 41);
  Trial trial(weights.view(), {.tokens = 2, .out_padding = 1}, 42);
  EXPECT_EQ(trial.wrong(), 32) << "poison must be seen before the product runs";
  trial.run(pool);
  ASSERT_EQ(trial.wrong(), 0);

  trial.out(1, 16) = 0;  // the padding
  EXPECT_EQ(trial.wrong(), 1);
  trial.out(1, 16) = kPoison;
  std::swap(trial.out(0, 3), trial.out(1, 3));
  EXPECT_EQ(trial.wrong(), 2);
  std::swap(trial.out(0, 3), trial.out(1, 3));
  trial.out(0, 0) *= 1 + 0x1p-9f;  // the size of an eight-bit activation's rounding
  EXPECT_EQ(trial.wrong(), 1);
  trial.run(pool);
  weights.codes()[4] ^= std::byte{1};  // one code of one row by one step
  EXPECT_EQ(trial.wrong(), 2);
}

}  // namespace
}  // namespace keel
