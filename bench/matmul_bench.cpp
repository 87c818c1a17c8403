// Matrix products of SmolLM2-135M's shapes, beside what this machine can do at best in the same run.
//
//   matmul_bench --benchmark_repetitions=5 --benchmark_report_aggregates_only
//   KEEL_BENCH_THREADS=1 KEEL_CPU_TARGET=AVX2 matmul_bench --benchmark_filter=Step
//
// bytes_per_second counts weight bytes, each once a product; flops counts 2 · rows · columns · tokens. Roofs: Roof/read sums an
// array far beyond the caches, Roof/fma runs dependent-free multiply-adds. A Step is all products of one forward pass: the
// weights of its 30 layers lie one after another, so that they come from memory as they do in a model. On a shared machine
// its quiet_… counters are the figures to read: the sum of the fastest run of each of the five products.
#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <array>
#include <chrono>
#include <cstdlib>
#include <deque>
#include <map>

#include "bench_roofs.h"
#include "device/buffer.h"
#include "kernels/cpu_features.h"
#include "kernels/matmul/matmul.h"
#include "kernels/matmul/random_weights.h"

namespace keel {
namespace {

WorkerPool& pool() {
  static WorkerPool workers([] {
    const char* text = std::getenv("KEEL_BENCH_THREADS");
    return text != nullptr ? std::atoi(text) : 0;
  }());
  return workers;
}

struct Shape {
  const char* name;
  std::vector<std::int64_t> rows;  // of the outputs that share x
  std::int64_t columns;
};
const Shape kQkv{"qkv", {576, 192, 192}, 576};
const Shape kOut{"o", {576}, 576};
const Shape kGateUp{"gate_up", {1536, 1536}, 576};
const Shape kDown{"down", {576}, 1536};
const Shape kHead{"head", {49152}, 576};
const Shape kHeadPart{"head_part", {3072}, 576};  // a sixteenth: short enough to run undisturbed
constexpr std::array<const Shape*, 5> kShapes = {&kQkv, &kOut, &kGateUp, &kDown, &kHeadPart};

// A shape's weights and room for its activations and results.
class Layer {
 public:
  Layer(WeightType type, const Shape& shape, std::int64_t tokens)
      : tokens_(tokens),
        columns_(shape.columns),
        x_(static_cast<std::size_t>(tokens * shape.columns), "activations") {
    std::uint64_t seed = 1;
    for (float& value : x_.span()) value = static_cast<float>(random_unit(7, seed++) - 0.5);
    for (const std::int64_t rows : shape.rows) {
      weights_.emplace_back(type, rows, shape.columns, ++seed);
      outs_.emplace_back(static_cast<std::size_t>(rows * tokens));
      outputs_.push_back(
          {.weights = weights_.back().view(), .out = outs_.back().data(), .out_stride = rows});
      bytes_ += weights_.back().view().bytes();
      flops_ += 2 * rows * shape.columns * tokens;
    }
    const std::int64_t workspace = matmul_workspace(outputs_[0].weights, tokens);
    workspace_ = Buffer<std::byte>(static_cast<std::size_t>(workspace), "quantised activations");
  }
  void multiply() {
    matmul({&pool()},
           {.x = x_.data(),
            .x_stride = columns_,
            .tokens = tokens_,
            .outputs = outputs_,
            .workspace = workspace_.span()});
  }
  std::int64_t bytes() const { return bytes_; }
  std::int64_t flops() const { return flops_; }

 private:
  std::int64_t tokens_, columns_, bytes_ = 0, flops_ = 0;
  Buffer<float> x_;  // aligned, as the engine's are
  Buffer<std::byte> workspace_;
  std::deque<RandomWeights> weights_;
  std::deque<std::vector<float>> outs_;
  std::vector<MatmulOutput> outputs_;
};

double microseconds(const auto& action) {
  const auto start = std::chrono::steady_clock::now();
  action();
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start)
      .count();
}

void report(benchmark::State& state, std::int64_t bytes, std::int64_t flops) {
  state.SetBytesProcessed(state.iterations() * bytes);
  state.counters["flops"] =
      benchmark::Counter(static_cast<double>(flops), benchmark::Counter::kIsIterationInvariantRate);
}

// Enough copies in rotation that no product finds its weights in a cache.
void one_product(benchmark::State& state,
                 WeightType type,
                 const Shape& shape,
                 std::int64_t tokens) {
  std::deque<Layer> copies;
  std::int64_t bytes = 0;
  while (bytes < (std::int64_t{96} << 20) && copies.size() < 200) {
    copies.emplace_back(type, shape, tokens);
    bytes += copies.back().bytes();
  }
  std::size_t next = 0;
  double best = 1e9;
  for (auto _ : state)
    best = std::min(best, microseconds([&] { copies[next++ % copies.size()].multiply(); }));
  report(state, copies[0].bytes(), copies[0].flops());
  state.counters["best_us"] = best;
}

// A whole forward pass; the head sees one token of each stream in decoding, and one in all in prefill.
void step(benchmark::State& state, std::int64_t tokens, std::int64_t head_tokens) {
  std::deque<Layer> layers;
  for (int i = 0; i < 30; ++i) {
    for (std::size_t shape = 0; shape < 4; ++shape) {
      layers.emplace_back(WeightType::q4_1, *kShapes[shape], tokens);
    }
  }
  for (int i = 0; i < 16; ++i) layers.emplace_back(WeightType::q8_0, kHeadPart, head_tokens);
  std::int64_t bytes = 0, flops = 0;
  for (const Layer& layer : layers) bytes += layer.bytes(), flops += layer.flops();
  std::array<double, kShapes.size()> best;
  best.fill(1e9);
  for (auto _ : state) {
    for (std::size_t i = 0; i < layers.size(); ++i) {
      double& shape_best = best[i < 120 ? i % 4 : 4];
      shape_best = std::min(shape_best, microseconds([&] { layers[i].multiply(); }));
    }
  }
  report(state, bytes, flops);
  const double quiet_us = 30 * (best[0] + best[1] + best[2] + best[3]) + 16 * best[4];
  for (std::size_t i = 0; i < best.size(); ++i)
    state.counters[fmt::format("{}_us", kShapes[i]->name)] = best[i];
  state.counters["quiet_us"] = quiet_us;
  state.counters["quiet_flops"] = static_cast<double>(flops) / quiet_us * 1e6;
  state.counters["quiet_bytes_per_second"] = static_cast<double>(bytes) / quiet_us * 1e6;
  state.counters["quiet_tokens_per_second"] = static_cast<double>(tokens) / quiet_us * 1e6;
  state.counters["tokens"] = benchmark::Counter(static_cast<double>(tokens),
                                                benchmark::Counter::kIsIterationInvariantRate);
}

void roof_read(benchmark::State& state) {
  Buffer<float> memory(std::size_t{64} << 20, "read roof");
  for (std::size_t i = 0; i < memory.size(); ++i) memory[i] = 1;
  constexpr std::size_t kPart = std::size_t{4} << 20;
  double best = 1e9;
  for (auto _ : state) {
    for (std::size_t at = 0; at < memory.size(); at += kPart) {
      best =
          std::min(best, microseconds([&] {
                     benchmark::DoNotOptimize(read_all(pool(), memory.span().subspan(at, kPart)));
                   }));
    }
  }
  report(state, memory.bytes(), 0);
  state.counters["best_us"] = best * static_cast<double>(memory.size() / kPart);
}

void roof_fma(benchmark::State& state) {
  std::int64_t flops = 0;
  double best = 1e9;
  for (auto _ : state)
    best = std::min(best, microseconds([&] { flops = multiply_add_burst(pool()); }));
  report(state, 0, flops);
  state.counters["best_us"] = best;
}

void register_all() {
  const auto add = [](const std::string& name, auto... args) {
    benchmark::RegisterBenchmark(name.c_str(), args...)
        ->UseRealTime()
        ->Unit(benchmark::kMicrosecond);
  };
  add("Roof/read", roof_read);
  add("Roof/fma", roof_fma);
  for (const std::int64_t tokens : {1, 2, 4, 8, 16})
    add("Step/decode/" + std::to_string(tokens), step, tokens, tokens);
  for (const std::int64_t tokens : {64, 512})
    add("Step/prefill/" + std::to_string(tokens), step, tokens, std::int64_t{1});
  for (const Shape& shape : {kQkv, kOut, kGateUp, kDown}) {
    for (const std::int64_t tokens : {1, 8, 64, 512}) {
      add(fmt::format("{}/q4_1/{}", shape.name, tokens),
          one_product,
          WeightType::q4_1,
          shape,
          tokens);
    }
  }
  for (const std::int64_t tokens : {1, 8})
    add(fmt::format("head/q8_0/{}", tokens), one_product, WeightType::q8_0, kHead, tokens);
  for (const WeightType type : kAllWeightTypes) {
    for (const std::int64_t tokens : {1, 8, 64, 512}) {
      add(fmt::format("4096x1024/{}/{}", name(type), tokens),
          one_product,
          type,
          Shape{"", {4096}, 1024},
          tokens);
    }
  }
}

}  // namespace
}  // namespace keel

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  benchmark::AddCustomContext("cpu_target", keel::chosen_target());
  benchmark::AddCustomContext("threads", std::to_string(keel::pool().threads()));
  keel::register_all();
  benchmark::RunSpecifiedBenchmarks();
}
