#include "kernels/gemm/gemm_cuda.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>

#include "base/random.h"
#include "device/cuda.h"
#include "kernels/gemm/gemm_choice.h"
#include "kernels/gemm/gemm_kernels.h"
#include "kernels/gemm/skinny_gemm.h"
#include "kernels/matmul/random_weights.h"

namespace keel::cuda {
namespace {

constexpr std::int64_t kTokens[] = {1, 2, 7, 8, 9, 16, 31, 32, 33, 64, 65, 128, 1000};

class GemmCuda : public testing::Test {
 protected:
  void SetUp() override {
    if (const FoundDevice device = find_device(); !device.usable) GTEST_SKIP() << device.reason;
    stream.emplace();
  }
  std::optional<Stream> stream;
};

std::uint16_t bits_of(DType dtype, float value) {
  return dtype == DType::f16 ? static_cast<std::uint16_t>(to_half(value)) : static_cast<std::uint16_t>(to_bf16(value));
}
float value_of(DType dtype, std::uint16_t bits) { return dtype == DType::f16 ? to_float(Half{bits}) : to_float(Bf16{bits}); }

std::vector<std::uint16_t> random_values(DType dtype, std::int64_t count, std::uint64_t seed) {
  std::vector<std::uint16_t> values(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = bits_of(dtype, static_cast<float>(2 * random_unit(seed, i) - 1));
  return values;
}

template <class T>
DeviceBuffer<T> on_device(const std::vector<T>& host) {
  DeviceBuffer<T> device(host.size(), "test data");
  check(cudaMemcpy(device.data(), host.data(), host.size() * sizeof(T), cudaMemcpyHostToDevice), "test data");
  check(cudaDeviceSynchronize(), "test data");  // a copy from pageable memory may still be under way
  return device;
}

// Weights on both sides: `weight(n, k)` is the exact value that the device's bytes mean.
struct Matrix {
  GemmWeights weights;
  std::vector<std::uint16_t> dense, bias;
  std::optional<RandomWeights> awq;
  DeviceBuffer<std::uint16_t> dense_device, bias_device;
  DeviceBuffer<std::byte> packed_device, scales_device;

  double weight(std::int64_t n, std::int64_t k) const {
    if (!awq) return value_of(weights.dtype, dense[static_cast<std::size_t>(n * weights.columns + k)]);
    constexpr int kNibbleOfRow[8] = {0, 4, 1, 5, 2, 6, 3, 7};
    const WeightMatrix& w = awq->view();
    const auto code = [&](const std::byte* words, std::int64_t line) {
      std::uint32_t word;
      std::memcpy(&word, words + (line * w.rows / 8 + n / 8) * 4, 4);
      return static_cast<int>(word >> (4 * kNibbleOfRow[n % 8]) & 15);
    };
    Half scale;
    std::memcpy(&scale, w.awq_scales + (k / 128 * w.rows + n) * 2, 2);
    return static_cast<double>(code(w.data, k) - code(w.awq_zeros, k / 128)) * to_float(scale);
  }
};

Matrix make_matrix(DType dtype, std::int64_t rows, std::int64_t columns, bool is_awq, bool has_bias, std::uint64_t seed) {
  Matrix m;
  m.weights = {.dtype = dtype, .rows = rows, .columns = columns};
  if (is_awq) {
    m.awq.emplace(WeightType::awq4, rows, columns, seed);
    const PackedAwq packed = pack_awq({m.awq->view()});
    m.packed_device = on_device(packed.packed);
    m.scales_device = on_device(packed.group_scales);
    m.weights.packed = m.packed_device.data();
    m.weights.group_scales = m.scales_device.data();
  } else {
    m.dense = random_values(dtype, rows * columns, seed);
    m.dense_device = on_device(m.dense);
    m.weights.dense = m.dense_device.data();
  }
  if (has_bias) {
    m.bias = random_values(dtype, rows, seed + 1);
    m.bias_device = on_device(m.bias);
    m.weights.bias = m.bias_device.data();
  }
  return m;
}

// Runs into a poisoned output between canaries and compares a sample with f64 sums. `weight_error`: relative rounding of W itself.
template <class Run>
void expect_product(const Matrix& m, std::int64_t tokens, DType out_type, double weight_error, const Stream& stream, Run&& run) {
  const GemmWeights& w = m.weights;
  SCOPED_TRACE(testing::Message() << tokens << " tokens × [" << w.rows << ", " << w.columns << "] " << name(w.dtype) << (m.awq ? " awq" : "")
                                  << (w.bias != nullptr ? " bias" : "") << " to " << name(out_type));
  const auto x = random_values(w.dtype, tokens * w.columns, 77 + static_cast<std::uint64_t>(tokens));
  const auto x_device = on_device(x);
  const std::int64_t out_bytes = tokens * w.rows * bits(out_type) / 8;
  constexpr std::int64_t kCanary = 4096;
  std::vector<std::byte> out(static_cast<std::size_t>(out_bytes + 2 * kCanary), std::byte{0xff});
  auto out_device = on_device(out);
  const GemmArgs args{.weights = w, .x = x_device.data(), .tokens = tokens, .out = out_device.data() + kCanary, .out_type = out_type};
  run(args);
  stream.synchronize();
  check(cudaMemcpy(out.data(), out_device.data(), out.size(), cudaMemcpyDeviceToHost), "the product");
  const auto is_poison = [&](std::int64_t byte) { return out[static_cast<std::size_t>(byte)] == std::byte{0xff}; };
  for (std::int64_t i = 0; i < kCanary; ++i) ASSERT_TRUE(is_poison(i) && is_poison(kCanary + out_bytes + i)) << "written past the output";

  const auto output = [&](std::int64_t token, std::int64_t n) -> double {
    const std::byte* at = out.data() + kCanary + (token * w.rows + n) * bits(out_type) / 8;
    if (out_type == DType::f32) {
      float value;
      std::memcpy(&value, at, 4);
      return value;
    }
    std::uint16_t value;
    std::memcpy(&value, at, 2);
    return value_of(out_type, value);
  };
  for (std::int64_t token = 0; token < tokens; ++token) {
    for (std::int64_t n = 0; n < w.rows; ++n) ASSERT_FALSE(std::isnan(output(token, n))) << "token " << token << " row " << n;
  }
  const double unit = out_type == DType::f32 ? 0x1p-24 : out_type == DType::f16 ? 0x1p-11 : 0x1p-8;
  for (std::uint64_t sample = 0; sample < 160; ++sample) {
    const auto corner = [&](std::int64_t size, std::uint64_t salt) {  // the first and the last more often
      const std::uint64_t r = random_u64(salt, sample);
      return r % 8 == 0 ? 0 : r % 8 == 1 ? size - 1 : static_cast<std::int64_t>((r >> 8) % static_cast<std::uint64_t>(size));
    };
    const std::int64_t token = corner(tokens, 5), n = corner(w.rows, 6);
    double sum = 0, magnitude = 0;
    for (std::int64_t k = 0; k < w.columns; ++k) {
      const double term = m.weight(n, k) * value_of(w.dtype, x[static_cast<std::size_t>(token * w.columns + k)]);
      sum += term;
      magnitude += std::abs(term);
    }
    if (w.bias != nullptr) {
      const double bias = value_of(w.dtype, m.bias[static_cast<std::size_t>(n)]);
      sum += bias;
      magnitude += std::abs(bias);
    }
    const double bound = (static_cast<double>(w.columns) * 0x1p-24 + unit + weight_error) * magnitude;
    ASSERT_LE(std::abs(output(token, n) - sum), bound) << "token " << token << " row " << n << ": " << output(token, n) << " for " << sum;
  }
}

double unit_of(DType dtype) { return dtype == DType::f16 ? 0x1p-11 : 0x1p-8; }

// The same for silu(gate) · up, eight rows of W each in turn.
template <class Run>
void expect_gated(const Matrix& m, std::int64_t tokens, double weight_error, const Stream& stream, Run&& run) {
  const GemmWeights& w = m.weights;
  SCOPED_TRACE(testing::Message() << tokens << " tokens × [" << w.rows << ", " << w.columns << "] " << name(w.dtype) << (m.awq ? " awq" : "")
                                  << (w.bias != nullptr ? " bias" : "") << ", gated");
  const auto x = random_values(w.dtype, tokens * w.columns, 78 + static_cast<std::uint64_t>(tokens));
  const auto x_device = on_device(x);
  constexpr std::int64_t kCanary = 2048;
  const std::int64_t width = w.rows / 2;
  std::vector<std::uint16_t> out(static_cast<std::size_t>(tokens * width + 2 * kCanary), 0xffff);
  auto out_device = on_device(out);
  DeviceBuffer<std::uint16_t> between(static_cast<std::size_t>(tokens * w.rows), "gates and what they gate");
  run({.weights = w, .x = x_device.data(), .tokens = tokens, .out = out_device.data() + kCanary, .out_type = w.dtype, .gate_up = between.data()});
  stream.synchronize();
  check(cudaMemcpy(out.data(), out_device.data(), out.size() * 2, cudaMemcpyDeviceToHost), "the product");
  for (std::int64_t i = 0; i < kCanary; ++i) ASSERT_TRUE(out[static_cast<std::size_t>(i)] == 0xffff && out[out.size() - 1 - static_cast<std::size_t>(i)] == 0xffff);
  for (std::int64_t i = 0; i < tokens * width; ++i) ASSERT_FALSE(std::isnan(value_of(w.dtype, out[static_cast<std::size_t>(kCanary + i)]))) << i;
  const double unit = unit_of(w.dtype);
  for (std::uint64_t sample = 0; sample < 100; ++sample) {
    const auto token = static_cast<std::int64_t>(sample == 0 ? static_cast<std::uint64_t>(tokens) - 1 : random_u64(7, sample) % static_cast<std::uint64_t>(tokens));
    const auto i = static_cast<std::int64_t>(sample == 0 ? static_cast<std::uint64_t>(width) - 1 : random_u64(8, sample) % static_cast<std::uint64_t>(width));
    double value[2], error[2];
    for (int part = 0; part < 2; ++part) {
      const std::int64_t n = i / 8 * 16 + part * 8 + i % 8;
      double magnitude = w.bias != nullptr ? std::abs(value_of(w.dtype, m.bias[static_cast<std::size_t>(n)])) : 0;
      value[part] = w.bias != nullptr ? value_of(w.dtype, m.bias[static_cast<std::size_t>(n)]) : 0;
      for (std::int64_t k = 0; k < w.columns; ++k) {
        const double term = m.weight(n, k) * value_of(w.dtype, x[static_cast<std::size_t>(token * w.columns + k)]);
        value[part] += term;
        magnitude += std::abs(term);
      }
      error[part] = (static_cast<double>(w.columns) * 0x1p-24 + unit + weight_error) * magnitude;
    }
    const double silu = value[0] / (1 + std::exp(-value[0])), exact = silu * value[1];
    const double silu_error = 1.1 * error[0] + std::abs(silu) * 0x1p-18;  // silu's slope is below 1.1
    const double bound = silu_error * (std::abs(value[1]) + error[1]) + std::abs(silu) * error[1] + unit * std::abs(exact) + 0x1p-24;
    const double got = value_of(w.dtype, out[static_cast<std::size_t>(kCanary + token * width + i)]);
    ASSERT_LE(std::abs(got - exact), bound) << "token " << token << " column " << i << ": " << got << " for " << exact;
  }
}

struct Shape {
  std::int64_t rows, columns;
};
constexpr Shape kDenseShapes[] = {{1, 64}, {33, 100}, {100, 72}, {257, 1000}, {1000, 264}, {129, 4096}, {384, 12288}, {51, 77}};
constexpr Shape kAwqShapes[] = {{8, 128}, {64, 128}, {200, 256}, {1032, 1024}, {128, 4096}, {320, 12288}};

TEST_F(GemmCuda, EveryNumberOfTokensIsRightForOddShapes) {
  for (const DType dtype : {DType::f16, DType::bf16}) {
    Gemm gemm(dtype, 1000, 0);
    std::uint64_t seed = 10;
    for (const auto& [rows, columns] : kDenseShapes) {
      const Matrix m = make_matrix(dtype, rows, columns, false, seed % 2 == 0, seed);
      for (const std::int64_t tokens : kTokens) {
        for (const DType out : {dtype, DType::f32}) {
          expect_product(m, tokens, out, 0, *stream, [&](const GemmArgs& args) { gemm.run(*stream, args); });
          if (HasFatalFailure()) return;
        }
      }
      ++seed;
    }
  }
}

TEST_F(GemmCuda, AwqIsRightForEveryNumberOfTokens) {
  for (const DType dtype : {DType::f16, DType::bf16}) {
    Gemm gemm(dtype, 1000, 4 << 20);
    std::uint64_t seed = 30;
    for (const auto& [rows, columns] : kAwqShapes) {
      const Matrix m = make_matrix(dtype, rows, columns, true, seed % 2 == 0, seed);
      for (const std::int64_t tokens : kTokens) {
        // Expanded weights are rounded to dtype; the kernel for few tokens rounds none.
        const double weight_error = tokens <= kSkinnyTokens ? 0 : unit_of(dtype);
        for (const DType out : {dtype, DType::f32}) {
          expect_product(m, tokens, out, weight_error, *stream, [&](const GemmArgs& args) { gemm.run(*stream, args); });
          if (HasFatalFailure()) return;
        }
      }
      ++seed;
    }
  }
}

TEST_F(GemmCuda, EveryPlanOfTheSkinnyKernelIsRight) {
  int plans = 0;
  for (const DType dtype : {DType::f16, DType::bf16}) {
    for (const bool is_awq : {false, true}) {
      for (const auto& [rows, columns] : {Shape{1000, 4096}, Shape{4104, 1536}}) {
        const Matrix m = make_matrix(dtype, rows, columns, is_awq, true, 50);
        for (const std::int64_t tokens : {1, 13, 32, 50}) {
          const GemmArgs like{.weights = m.weights, .x = nullptr, .tokens = tokens, .out = nullptr, .out_type = dtype};
          for (const SkinnyPlan& plan : skinny_plans(like)) {
            SCOPED_TRACE(testing::Message() << plan.warpgroups << " warpgroups, " << plan.splits << " slices of K, share " << static_cast<int>(plan.share) << (plan.streams_x ? ", streamed x" : ""));
            expect_product(m, tokens, dtype, 0, *stream, [&](const GemmArgs& args) { skinny_gemm(*stream, args, plan); });
            if (HasFatalFailure()) return;
            ++plans;
          }
        }
      }
    }
  }
  EXPECT_GT(plans, 400);
}

TEST_F(GemmCuda, GatedProductsAreRightInEveryPlanAndThroughTheLibrary) {
  for (const DType dtype : {DType::f16, DType::bf16}) {
    for (const bool is_awq : {false, true}) {
      const Matrix m = make_matrix(dtype, 4112, 1536, is_awq, dtype == DType::bf16, 65);
      for (const std::int64_t tokens : {1, 13, 32, 50}) {
        const GemmArgs like{.weights = m.weights, .x = nullptr, .tokens = tokens, .out = nullptr, .out_type = dtype, .gate_up = &stream};
        for (const SkinnyPlan& plan : skinny_plans(like)) {
          SCOPED_TRACE(testing::Message() << plan.warpgroups << " warpgroups, " << plan.splits << " slices of K, share " << static_cast<int>(plan.share) << (plan.streams_x ? ", streamed x" : ""));
          expect_gated(m, tokens, 0, *stream, [&](const GemmArgs& args) { skinny_gemm(*stream, args, plan); });
          if (HasFatalFailure()) return;
        }
      }
      Gemm gemm(dtype, 700, is_awq ? 4112 * 1536 : 0);
      for (const std::int64_t tokens : {8, 64, 200, 700}) {
        expect_gated(m, tokens, is_awq && tokens > kSkinnyTokens ? unit_of(dtype) : 0, *stream, [&](const GemmArgs& args) { gemm.prepare(*stream, args); });
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST_F(GemmCuda, ExpandedAwqWeightsAreTheExactProductsRoundedOnce) {
  for (const DType dtype : {DType::f16, DType::bf16}) {
    const Matrix m = make_matrix(dtype, 200, 512, true, false, 60);
    DeviceBuffer<std::uint16_t> expanded(200 * 512 + 64, "expanded");
    check(cudaMemset(expanded.data(), 0xff, static_cast<std::size_t>(expanded.bytes())), "poison");
    check(cudaDeviceSynchronize(), "poison");
    expand_awq(*stream, m.weights, expanded.data());
    stream->synchronize();
    std::vector<std::uint16_t> host(expanded.size());
    check(cudaMemcpy(host.data(), expanded.data(), host.size() * 2, cudaMemcpyDeviceToHost), "expanded");
    for (std::int64_t i = 0; i < 200 * 512; ++i) {
      ASSERT_EQ(host[static_cast<std::size_t>(i)], bits_of(dtype, static_cast<float>(m.weight(i / 512, i % 512)))) << "row " << i / 512 << " column " << i % 512;
    }
    for (std::size_t i = 200 * 512; i < host.size(); ++i) ASSERT_EQ(host[i], 0xffff) << "written past the last row";
  }
}

TEST_F(GemmCuda, PreparedProductsAreRightAndReplayTheSameBytes) {
  for (const bool is_awq : {false, true}) {
    const DType dtype = is_awq ? DType::f16 : DType::bf16;
    const Matrix m = make_matrix(dtype, 2048, 4096, is_awq, true, 70);
    Gemm gemm(dtype, 300, is_awq ? 2048 * 4096 : 0);
    for (const std::int64_t tokens : {1, 17, 64, 100, 300}) {
      expect_product(m, tokens, dtype, is_awq ? unit_of(dtype) : 0, *stream, [&](const GemmArgs& args) {
        gemm.prepare(*stream, args);
        const StepGraph graph(*stream, [&] { gemm.run(*stream, args); });
        const auto bytes = static_cast<std::size_t>(tokens * 2048 * 2);
        std::vector<std::byte> first(bytes), again(bytes);
        for (int replay = 0; replay < 100; ++replay) {
          check(cudaMemsetAsync(args.out, 0xff, bytes, *stream), "poison");
          graph.launch(*stream);
          check(cudaMemcpyAsync(replay == 0 ? first.data() : again.data(), args.out, bytes, cudaMemcpyDeviceToHost, *stream), "the product");
          stream->synchronize();
          ASSERT_TRUE(replay == 0 || first == again) << "replay " << replay;
        }
      });
      if (HasFatalFailure()) return;
    }
  }
}

TEST_F(GemmCuda, ChainedProductsReadWhatTheOneBeforeWrote) {
  // y2 = W · (W · x), 12 times: each launch starts early and must wait for its x.
  const DType dtype = DType::bf16;
  Matrix m = make_matrix(dtype, 2048, 2048, false, false, 80);
  Gemm gemm(dtype, 32, 0);
  const auto x = on_device(random_values(dtype, 32 * 2048, 81));
  DeviceBuffer<std::uint16_t> a(32 * 2048, "a"), b(32 * 2048, "b");
  std::vector<std::uint16_t> apart(a.size()), chained(a.size());
  for (const bool is_chained : {false, true}) {
    const auto step = [&](const void* from, void* to) {
      gemm.run(*stream, {.weights = m.weights, .x = from, .tokens = 32, .out = to, .out_type = dtype});
      if (!is_chained) stream->synchronize();
    };
    step(x.data(), a.data());
    for (int i = 0; i < 6; ++i) {
      step(a.data(), b.data());
      step(b.data(), a.data());
    }
    stream->synchronize();
    auto& host = is_chained ? chained : apart;
    check(cudaMemcpy(host.data(), a.data(), host.size() * 2, cudaMemcpyDeviceToHost), "the last product");
  }
  EXPECT_EQ(apart, chained);
}

TEST_F(GemmCuda, OutputsPastTwoToThe31AreRight) {
  const std::int64_t tokens = 32768, rows = 151936, columns = 64;
  if (free_device_bytes() < tokens * rows * 4 + (std::int64_t{1} << 30)) GTEST_SKIP() << "wants 20 GB of device memory";
  const Matrix m = make_matrix(DType::f16, rows, columns, false, false, 90);
  Gemm gemm(DType::f16, tokens, 0);
  const auto x = random_values(DType::f16, tokens * columns, 91);
  const auto x_device = on_device(x);
  DeviceBuffer<float> out(static_cast<std::size_t>(tokens * rows), "logits");
  check(cudaMemset(out.data(), 0xff, static_cast<std::size_t>(out.bytes())), "poison");
  check(cudaDeviceSynchronize(), "poison");
  gemm.run(*stream, {.weights = m.weights, .x = x_device.data(), .tokens = tokens, .out = out.data(), .out_type = DType::f32});
  stream->synchronize();
  for (std::uint64_t sample = 0; sample < 300; ++sample) {
    const auto token = static_cast<std::int64_t>(sample < 8 ? static_cast<std::uint64_t>(tokens) - 1 - sample : random_u64(1, sample) % static_cast<std::uint64_t>(tokens));
    const auto n = static_cast<std::int64_t>(sample < 4 ? static_cast<std::uint64_t>(rows) - 1 : random_u64(2, sample) % static_cast<std::uint64_t>(rows));
    double sum = 0, magnitude = 0;
    for (std::int64_t k = 0; k < columns; ++k) {
      const double term = m.weight(n, k) * value_of(DType::f16, x[static_cast<std::size_t>(token * columns + k)]);
      sum += term;
      magnitude += std::abs(term);
    }
    float value;
    check(cudaMemcpy(&value, out.data() + token * rows + n, 4, cudaMemcpyDeviceToHost), "a logit");
    ASSERT_LE(std::abs(value - sum), 65 * 0x1p-24 * magnitude) << "token " << token << " row " << n;
  }
}

TEST_F(GemmCuda, ChoicesComeBackFromTheFile) {
  const std::string path = testing::TempDir() + "keel_gemm_choices/gemm";
  std::filesystem::remove(path);
  const Matrix m = make_matrix(DType::f16, 512, 512, false, false, 95);
  std::string first;
  for (int run = 0; run < 2; ++run) {
    Gemm gemm(DType::f16, 64, 0, path);
    for (const std::int64_t tokens : {8, 64}) {
      expect_product(m, tokens, DType::f16, 0, *stream, [&](const GemmArgs& args) { gemm.prepare(*stream, args); });
    }
    std::ifstream file(path);
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 2) << text;  // the second Gemm measured nothing
    if (run == 0) first = text;
    EXPECT_EQ(text, first);
  }
}

TEST_F(GemmCuda, ProductsPreparedTogetherAreRightAndMeasuredOnce) {
  const std::string path = testing::TempDir() + "keel_gemm_together/gemm";
  std::filesystem::remove(path);
  const Matrix up = make_matrix(DType::f16, 1024, 512, false, false, 96), down = make_matrix(DType::f16, 512, 1024, false, true, 97);
  const auto x = on_device(random_values(DType::f16, 16 * 512, 98));
  DeviceBuffer<std::uint16_t> between(16 * 1024, "between"), out(16 * 512, "out");
  const GemmArgs products[] = {{.weights = up.weights, .x = x.data(), .tokens = 16, .out = between.data(), .out_type = DType::f16},
                               {.weights = down.weights, .x = between.data(), .tokens = 16, .out = out.data(), .out_type = DType::f16}};
  for (int round = 0; round < 2; ++round) {
    Gemm gemm(DType::f16, 64, 0, path);
    int runs = 0;
    gemm.prepare_together(*stream, products, [&] {
      for (const GemmArgs& args : products) gemm.run(*stream, args);
      ++runs;
    });
    EXPECT_EQ(runs > 10, round == 0);
    EXPECT_EQ(runs == 0, round == 1);
    for (const GemmArgs& args : products) EXPECT_TRUE(gemm.prepared(args));
    expect_product(up, 16, DType::f16, 0, *stream, [&](const GemmArgs& args) { gemm.run(*stream, args); });
    expect_product(down, 16, DType::f16, 0, *stream, [&](const GemmArgs& args) { gemm.run(*stream, args); });
  }
}

TEST_F(GemmCuda, AProductThatWasNotMeasuredIsGuessedAndToldOnce) {
  const Matrix m = make_matrix(DType::f16, 512, 512, false, false, 99);
  Gemm gemm(DType::f16, 64, 0);
  const auto told = [&](std::int64_t tokens) {
    testing::internal::CaptureStderr();
    expect_product(m, tokens, DType::f16, 0, *stream, [&](const GemmArgs& args) { gemm.run(*stream, args); });
    return testing::internal::GetCapturedStderr();
  };
  EXPECT_NE(told(40).find("was not measured; a guess serves it"), std::string::npos);
  EXPECT_EQ(told(40), "");
  EXPECT_EQ(told(64), "");  // the same choice
  EXPECT_NE(told(8), "");
}

TEST_F(GemmCuda, AChoiceOfAnotherProductIsMeasuredAgain) {
  const std::string path = testing::TempDir() + "keel_gemm_foreign/gemm";
  std::filesystem::remove(path);
  const Matrix m = make_matrix(DType::f16, 512, 128, false, false, 96);  // two blocks of columns, and below splits of eight
  const auto lines = [&] {
    Gemm gemm(DType::f16, 64, 0, path);
    expect_product(m, 8, DType::f16, 0, *stream, [&](const GemmArgs& args) {
      EXPECT_FALSE(gemm.prepared(args));
      gemm.prepare(*stream, args);
      EXPECT_TRUE(gemm.prepared(args));
    });
    std::ifstream file(path);
    return std::count(std::istreambuf_iterator<char>(file), {}, '\n');
  };
  EXPECT_EQ(lines(), 1);
  std::string line;
  std::getline(std::ifstream(path), line);
  const std::string begin = line.substr(0, line.rfind('|') + 1);
  for (const char* foreign : {"1 8 0 0 64", "1 1 0 0 16"}) {
    std::ofstream(path) << begin << foreign << " 0 0 0 0 0 0 0 0\n";
    EXPECT_EQ(lines(), 2) << foreign;
    EXPECT_EQ(lines(), 2) << foreign;  // the later line is right
  }
}

}  // namespace
}  // namespace keel::cuda
