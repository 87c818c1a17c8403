// Time of paged attention for real shapes: µs a layer, GB/s over the bytes of keys and values, GFLOP/s of the two products.
//
//   attention_bench --benchmark_filter='smollm2/decode/.*/4096'
//
// Rates are those of the fastest call. KEEL_BENCH_THREADS sets the threads (default: all processors).
// Decode walks through enough caches that none is found in the last-level cache from the call before.
#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <memory>

#include "kernels/paged_attention/attention_scene.h"
#include "kv/format.h"

namespace keel {
namespace {

struct Model {
  const char* name;
  std::int64_t heads;
  std::int64_t kv_heads;
  std::int64_t head_dim;
};
constexpr Model kModels[] = {{"smollm2", 9, 3, 64}, {"32_8_128", 32, 8, 128}};
constexpr KvFormat kFormats[] = {{DType::f32, DType::f32},
                                 {DType::f16, DType::f16},
                                 {DType::bf16, DType::bf16},
                                 {DType::f16, DType::e4m3},
                                 {DType::e4m3, DType::e4m3},
                                 {DType::f16, DType::u4}};
constexpr std::int64_t kCacheBytes = 100 << 20;  // past any last-level cache's share

int threads() {
  const char* text = std::getenv("KEEL_BENCH_THREADS");
  return text == nullptr ? 0 : std::atoi(text);
}

SceneShape shape_of(const Model& model, const KvFormat& format, SequenceShape sequence, std::size_t streams = 1) {
  return {.format = format,
          .heads = model.heads,
          .kv_heads = model.kv_heads,
          .head_dim = model.head_dim,
          .sequences = std::vector<SequenceShape>(streams, sequence)};
}

// Iterates and keeps the fastest call: what the machine can do when nothing else runs on it.
template <class Call>
double best_seconds(benchmark::State& state, const Call& call) {
  double best = 1e30;
  for (auto _ : state) {
    const auto start = std::chrono::steady_clock::now();
    call();
    best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  return best;
}

void report(benchmark::State& state, const AttentionScene& scene, double score_pairs, double best) {
  double context = 0;
  for (const SequenceShape& sequence : scene.shape_.sequences) context += static_cast<double>(sequence.context);
  const double token_bytes =
      static_cast<double>(scene.key_page_bytes() + scene.value_page_bytes()) / scene.shape_.page_size;
  const double products = 4.0 * score_pairs * static_cast<double>(scene.shape_.heads * scene.shape_.head_dim);
  state.counters["best_us"] = best * 1e6;
  state.counters["GB/s"] = token_bytes * context / best * 1e-9;
  state.counters["GFLOP/s"] = products / best * 1e-9;
}

void decode(benchmark::State& state, SceneShape shape) {
  WorkerPool pool(threads());
  const Stream stream{&pool};
  std::vector<std::unique_ptr<AttentionScene>> layers;
  layers.push_back(std::make_unique<AttentionScene>(shape));
  const auto bytes = static_cast<std::int64_t>(layers[0]->keys_.size() + layers[0]->values_.size());
  const std::int64_t count = std::min<std::int64_t>(30, kCacheBytes / bytes + 1);
  while (static_cast<std::int64_t>(layers.size()) < count) {
    layers.push_back(std::make_unique<AttentionScene>(*layers[0]));
    for (std::size_t i = 0; i < layers.back()->sequences_.size(); ++i) {
      layers.back()->sequences_[i].pages = layers.back()->tables_[i].data();
    }
  }
  for (auto& layer : layers) layer->run(stream);
  std::size_t next = 0;
  const double best = best_seconds(state, [&] {
    layers[next]->call(stream);
    next = (next + 1) % layers.size();
  });
  report(state, *layers[0], static_cast<double>(shape.sequences.size()) * static_cast<double>(shape.sequences[0].context), best);
}

void prefill(benchmark::State& state, SceneShape shape) {
  WorkerPool pool(threads());
  AttentionScene scene(shape);
  scene.run(Stream{&pool});
  const double best = best_seconds(state, [&] { scene.call(Stream{&pool}); });
  const double rows = static_cast<double>(shape.sequences[0].rows);
  report(state, scene, rows * (rows + 1) / 2, best);
}

void register_all() {
  for (const Model& model : kModels) {
    for (const KvFormat& format : kFormats) {
      const auto type = fmt::format("k_{}_v_{}", name(format.key), name(format.value));
      benchmark::RegisterBenchmark(
          fmt::format("{}/decode8/{}/512", model.name, type).c_str(),  // eight streams
          [=](benchmark::State& state) { decode(state, shape_of(model, format, {1, 512}, 8)); })
          ->Unit(benchmark::kMicrosecond)
          ->UseRealTime();
      for (const std::int64_t context : {128, 1024, 4096}) {
        benchmark::RegisterBenchmark(
            fmt::format("{}/decode/{}/{}", model.name, type, context).c_str(),
            [=](benchmark::State& state) { decode(state, shape_of(model, format, {1, context})); })
            ->Unit(benchmark::kMicrosecond)
            ->UseRealTime();
        benchmark::RegisterBenchmark(
            fmt::format("{}/prefill/{}/{}", model.name, type, context).c_str(),
            [=](benchmark::State& state) { prefill(state, shape_of(model, format, {context, context})); })
            ->Unit(benchmark::kMicrosecond)
            ->UseRealTime();
      }
    }
  }
}

}  // namespace
}  // namespace keel

int main(int argc, char** argv) {
  keel::register_all();
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
}
