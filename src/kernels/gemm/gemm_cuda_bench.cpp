// Qwen3-8B's products on this GPU: keel's kernel in every plan against cuBLASLt's algorithms, and the choices of Gemm. Weights are
// random and taken in turn from more memory than the L2 holds; times are medians of graph replays. BENCH_M=32 in the environment
// measures the plans at that number of tokens alone. Arguments: any of dense, awq,
// layer and awq_layer (which way of each product makes a decode layer's launches shortest), prefill, sustained, all plans ("plans").
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <set>
#include <string>

#include "device/cuda.h"
#include "device/read_rate.h"
#include "kernels/gemm/gemm_cuda.h"
#include "kernels/gemm/gemm_kernels.h"
#include "kernels/gemm/library_gemm.h"
#include "kernels/gemm/skinny_gemm.h"
#include "kernels/gemm/together.h"
#include "kernels/rms_norm/rms_norm_cuda.h"
#include "kernels/silu_mul/silu_mul_cuda.h"

namespace keel::cuda {

void pause(cudaStream_t stream);  // gemm_bench_pause.cu

namespace {

struct Product {
  const char* name;
  std::int64_t rows, columns;
  DType out;
};
constexpr Product kProducts[] = {{"qkv", 6144, 4096, DType::f16},
                                 {"o", 4096, 4096, DType::f16},
                                 {"gate_up", 24576, 4096, DType::f16},
                                 {"down", 4096, 12288, DType::f16},
                                 {"lm_head", 151936, 4096, DType::f32}};
constexpr std::int64_t kPoolBytes = std::int64_t{3} << 30;

// Microseconds of one of `launches`.
double time_of(cudaStream_t stream, int launches, const std::function<void(int)>& run, int replays = 7) {
  run(0);
  const StepGraph graph(stream, [&] {
    for (int i = 0; i < launches; ++i) run(i);
  });
  Event begin, end;
  graph.launch(stream);
  std::vector<double> times;
  for (int i = 0; i < replays; ++i) {
    begin.record(stream);
    graph.launch(stream);
    end.record(stream);
    times.push_back(end.milliseconds_since(begin) * 1e3 / launches);
  }
  std::nth_element(times.begin(), times.begin() + replays / 2, times.end());
  return times[static_cast<std::size_t>(replays) / 2];
}

struct Bench {
  Stream stream;
  DeviceBuffer<std::byte> pool{static_cast<std::size_t>(kPoolBytes), "pool"}, scales{std::size_t{64} << 20, "scales"};
  DeviceBuffer<std::byte> x{std::size_t{65536} * 12288 * 2, "x"}, out{std::size_t{65536} * 24576 * 2, "out"}, scratch{std::size_t{24576} * 4096 * 2, "scratch"};
  LibraryGemm library;
  std::string table;
  bool gates = false;  // gate_up ends with silu(gate) · up

  Bench() {
    fill_random(stream, pool.data(), DType::f16, kPoolBytes / 2, 1);
    fill_random(stream, x.data(), DType::f16, x.bytes() / 2, 2);
    // Scales: any half with a zero of 0 … 15 above it.
    std::vector<std::uint32_t> rows(scales.size() / 4);
    for (std::size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<std::uint32_t>((0x2c00 + i % 97) | (i * 7 % 16) << 16);
    copy_to_device(stream, scales.data(), reinterpret_cast<const std::byte*>(rows.data()), scales.size());
    stream.synchronize();
  }

  GemmArgs args_of(const Product& p, bool is_awq, std::int64_t tokens, std::int64_t copy) {
    GemmWeights w{.dtype = DType::f16, .rows = p.rows, .columns = p.columns};
    const std::int64_t bytes = is_awq ? p.rows * p.columns / 2 : p.rows * p.columns * 2;
    (is_awq ? w.packed : w.dense) = pool.data() + copy % (kPoolBytes / bytes) * bytes;
    if (is_awq) w.group_scales = scales.data() + copy % 2 * (p.rows * p.columns / 128 * 4);
    GemmArgs args{.weights = w, .x = x.data(), .tokens = tokens, .out = out.data(), .out_type = p.out};
    if (gates && p.rows == 24576) args.gate_up = out.data() + out.bytes() / 2;
    return args;
  }
  int launches(const Product& p, bool is_awq) {
    const std::int64_t bytes = p.rows * p.columns * 2 / (is_awq ? 4 : 1);
    return static_cast<int>(std::clamp<std::int64_t>((std::int64_t{800} << 20) / bytes, 2, 48));
  }
  double roof(std::int64_t bytes) {
    const std::int64_t copies = std::max<std::int64_t>(kPoolBytes / bytes, 1);
    const int times = static_cast<int>(std::clamp<std::int64_t>((std::int64_t{800} << 20) / bytes, 2, 48));
    return time_of(stream, times, [&](int i) {
      read_only(stream, pool.data() + i % copies * bytes, bytes, out.data());
    });
  }

  void decode(bool is_awq, bool prints_plans) {
    char line[300];
    double layer[2][65] = {};
    for (const Product& p : kProducts) {
      if (is_awq && p.out == DType::f32) continue;
      const std::int64_t bytes = args_of(p, is_awq, 1, 0).weights.bytes();
      const double floor = roof(bytes);
      for (const std::int64_t tokens : {1, 8, 16, 32, 64}) {
        if (std::getenv("BENCH_M") && std::atoll(std::getenv("BENCH_M")) != tokens) continue;
        const int count = launches(p, is_awq);
        double own = 1e9, lib = 1e9;
        SkinnyPlan best;
        for (const SkinnyPlan& plan : skinny_plans(args_of(p, is_awq, tokens, 0))) {
          const double t = time_of(stream, count, [&](int i) { skinny_gemm(stream, args_of(p, is_awq, tokens, i), plan); });
          if (prints_plans) std::printf("plan %s %s M=%lld wg=%d splits=%d share=%d x=%d: %.2f us %.0f GB/s\n", is_awq ? "awq" : "f16", p.name, static_cast<long long>(tokens), plan.warpgroups, plan.splits, static_cast<int>(plan.share), plan.streams_x, t, bytes / t * 1e-3);
          if (t < own) {
            own = t;
            best = plan;
          }
        }
        const auto plans = skinny_plans(args_of(p, is_awq, tokens, 0));
        const SkinnyPlan guess = plans.empty() ? SkinnyPlan() : plans.front();
        GemmArgs dense = args_of(p, is_awq, tokens, 0);
        if (is_awq) dense.weights.dense = scratch.data();
        int index = 0, best_index = -1;
        for (const auto& algorithm : library.algorithms(dense, is_awq ? 1 : 10)) {
          if (!library.run(stream, dense, algorithm)) continue;
          const double t = time_of(stream, count, [&](int i) {
            GemmArgs a = args_of(p, is_awq, tokens, i);
            if (is_awq) {
              expand_awq(stream, a.weights, scratch.data());
              a.weights.dense = scratch.data();
            }
            library.run(stream, a, algorithm);
          });
          if (t < lib) {
            lib = t;
            best_index = index;
          }
          ++index;
        }
        if (p.out != DType::f32) {
          layer[0][tokens] += own;
          layer[1][tokens] += lib;
        }
        std::snprintf(line, sizeof(line), "%-4s %-8s M=%-3lld own %7.2f us %5.0f GB/s %3.0f%% of the read's %7.2f us (wg %d splits %d share %d x %d, guess %d %d %d %d) | %s %7.2f us (algorithm %d)\n", is_awq ? "awq" : "f16", p.name,
                      static_cast<long long>(tokens), own, bytes / own * 1e-3, 100 * floor / own, floor, best.warpgroups, best.splits, static_cast<int>(best.share), best.streams_x, guess.warpgroups, guess.splits, static_cast<int>(guess.share), guess.streams_x, is_awq ? "expand+lib" : "library", lib, best_index);
        table += line;
        std::fputs(line, stdout);
        std::fflush(stdout);
      }
    }
    for (const std::int64_t tokens : {1, 8, 16, 32, 64}) {
      std::snprintf(line, sizeof(line), "%-4s layer of four, each alone, M=%-3lld own %7.2f us, library %7.2f us\n", is_awq ? "awq" : "f16", static_cast<long long>(tokens), layer[0][tokens], layer[1][tokens]);
      table += line;
    }
    // Layers one after another, as a decode step has them, with Gemm's own choices.
    Gemm gemm(DType::f16, 64, is_awq ? 24576 * 4096 : 0);
    gates = true;
    for (const std::int64_t tokens : {1, 8, 16, 32, 64}) {
      if (std::getenv("BENCH_M") && std::atoll(std::getenv("BENCH_M")) != tokens) continue;
      for (int i = 0; i < 4; ++i) gemm.prepare(stream, args_of(kProducts[i], is_awq, tokens, 0));
      const double t = time_of(stream, 6, [&](int layer) {
        for (int i = 0; i < 4; ++i) gemm.run(stream, args_of(kProducts[i], is_awq, tokens, layer + i * 3));
      });
      std::snprintf(line, sizeof(line), "%-4s layers in sequence, Gemm's choices, M=%-3lld %7.2f us a layer\n", is_awq ? "awq" : "f16", static_cast<long long>(tokens), t);
      table += line;
    }
    gates = false;
  }

  // A product's way: a plan of keel's kernel, or an algorithm of cuBLASLt.
  struct Way {
    std::string name;
    SkinnyPlan plan;
    cublasLtMatmulAlgo_t algorithm = {};
  };

  // A decode layer from attention's output to the next layer's queries, keys and values, with its norms and a pause for attention.
  // Each product's way: as the whole takes least time, of all plans and algorithms; and as Gemm chooses, one by one and together.
  void layer(bool is_awq) {
    constexpr int kLayers = 7;
    constexpr std::int64_t kLayerWeights = 192937984;
    std::byte* at = out.data();
    const auto take = [&](std::int64_t width) {
      std::byte* taken = at;
      at += 64 * width * 2;
      return taken;
    };
    std::byte *residual = take(4096), *projected = take(4096), *normed = take(4096), *activated = take(12288), *gate_up = take(24576), *qkv = take(6144);
    fill_random(stream, residual, DType::f16, 64 * 4096, 3);
    DeviceBuffer<float> norm_weight(4096, "a norm");
    const std::vector<float> host(norm_weight.size(), 0.02f);
    copy_to_device(stream, norm_weight.data(), host.data(), host.size());
    constexpr int kOrder[] = {1, 2, 3, 0};  // of kProducts, as they follow each other
    const char* const type = is_awq ? "awq" : "f16";
    for (const std::int64_t tokens : {1, 8, 16, 32}) {
      if (std::getenv("BENCH_M") && std::atoll(std::getenv("BENCH_M")) != tokens) continue;
      const auto args = [&](int i, std::int64_t layer) {
        std::int64_t before = layer * kLayerWeights;
        for (int k = 0; kOrder[k] != i; ++k) before += kProducts[kOrder[k]].rows * kProducts[kOrder[k]].columns;
        GemmArgs a = args_of(kProducts[i], is_awq, tokens, 0);
        (is_awq ? a.weights.packed : a.weights.dense) = pool.data() + (is_awq ? before / 2 : before * 2);
        a.x = i == 1 ? x.data() : i == 3 ? activated : normed;
        a.out = i == 0 ? qkv : i == 2 ? activated : projected;
        if (i == 2) a.gate_up = gate_up;
        return a;
      };
      const auto launch_layer = [&](int layer, const std::function<void(int, const GemmArgs&)>& product) {
        const auto norm = [&] {
          add_rms_norm(stream, {.dtype = DType::f16, .residual = residual, .added = projected, .weight = norm_weight.data(), .out = normed, .rows = tokens, .width = 4096, .epsilon = 1e-6f});
        };
        product(1, args(1, layer));
        norm();
        product(2, args(2, layer));
        product(3, args(3, layer));
        norm();
        product(0, args(0, layer));
        pause(stream);
      };
      std::printf("%s M=%lld: a pause of %.2f us is in every figure\n", type, static_cast<long long>(tokens), time_of(stream, 50, [&](int) { pause(stream); }));
      std::vector<Way> ways[4];
      std::vector<std::size_t> counts;
      Picks first, library_first;
      for (int i = 0; i < 4; ++i) {
        for (const SkinnyPlan& plan : skinny_plans(args(i, 0))) {
          char name[60];
          std::snprintf(name, sizeof(name), "wg %d splits %d share %d x %d", plan.warpgroups, plan.splits, static_cast<int>(plan.share), plan.streams_x);
          ways[i].push_back({.name = name, .plan = plan});
        }
        first.push_back(0);
        library_first.push_back(ways[i].size());
        if (!is_awq) {
          GemmArgs dense = args(i, 0);
          if (i == 2) dense.out = gate_up;
          for (const auto& algorithm : library.algorithms(dense, 5)) {
            if (library.run(stream, dense, algorithm)) ways[i].push_back({.name = "library " + std::to_string(ways[i].size() - library_first[static_cast<std::size_t>(i)]), .plan = {}, .algorithm = algorithm});
          }
        }
        counts.push_back(ways[i].size());
      }
      const auto time = [&](const Picks& picks) {
        return time_of(stream, kLayers, [&](int layer) {
          launch_layer(layer, [&](int i, GemmArgs a) {
            const Way& way = ways[i][picks[static_cast<std::size_t>(i)]];
            if (way.plan.warpgroups != 0) return skinny_gemm(stream, a, way.plan);
            if (i == 2) a.out = gate_up;
            library.run(stream, a, way.algorithm);
            if (i == 2) silu_mul(stream, {.dtype = DType::f16, .gate_up = gate_up, .out = activated, .rows = tokens, .width = 12288});
          });
        }, 3);
      };
      if (!is_awq) std::printf("%s M=%lld library alone %.2f us\n", type, static_cast<long long>(tokens), time(library_first));
      const Picks best = shortest_together(counts, is_awq ? std::vector<Picks>{first} : std::vector<Picks>{first, library_first}, time);
      std::printf("%s M=%lld layer, best of all %.2f us:", type, static_cast<long long>(tokens), time(best));
      for (int i = 0; i < 4; ++i) std::printf(" %s: %s%s", kProducts[i].name, ways[i][best[static_cast<std::size_t>(i)]].name.c_str(), i < 3 ? "," : "\n");
      Gemm alone(DType::f16, 64, is_awq ? 24576 * 4096 : 0), together(DType::f16, 64, is_awq ? 24576 * 4096 : 0);
      std::vector<GemmArgs> products;
      for (const int i : kOrder) products.push_back(args(i, 0));
      for (const GemmArgs& a : products) alone.prepare(stream, a);
      const auto run = [&](Gemm& gemm, int layer) {
        launch_layer(layer, [&](int, const GemmArgs& a) { gemm.run(stream, a); });
      };
      Event begin, end;
      begin.record(stream);
      together.prepare_together(stream, products, [&] {
        for (int layer = 0; layer < kLayers; ++layer) run(together, layer);
      });
      end.record(stream);
      std::printf("%s M=%lld chosen together in %.2f s\n", type, static_cast<long long>(tokens), end.milliseconds_since(begin) * 1e-3);
      for (int round = 0; round < 3; ++round) {
        std::printf("%s M=%lld layer, Gemm's choices one by one %.2f us", type, static_cast<long long>(tokens), time_of(stream, kLayers, [&](int layer) { run(alone, layer); }));
        std::printf(", together %.2f us\n", time_of(stream, kLayers, [&](int layer) { run(together, layer); }));
      }
      std::fflush(stdout);
    }
  }

  // cuBLASLt's algorithms as they fare for a third of a second each, the GPU warm: what prefill meets, whose limit is power.
  void sustained() {
    char line[300];
    constexpr std::int64_t kRows = 57344;
    for (int i = 0; i < 4; ++i) {
      const Product& p = kProducts[i];
      const GemmArgs args = args_of(p, false, kRows, 0);
      int index = 0;
      const auto algorithms = library.algorithms(args, 12);
      for (int round = 0; round < 2; ++round) {
        index = 0;
        for (const auto& algorithm : algorithms) {
          if (!library.run(stream, args, algorithm)) continue;
          Event begin, end;
          begin.record(stream);
          library.run(stream, args, algorithm);
          end.record(stream);
          const double once = end.milliseconds_since(begin);
          const int launches = static_cast<int>(170 / once) + 1;
          begin.record(stream);
          for (int k = 0; k < launches; ++k) library.run(stream, args_of(p, false, kRows, k), algorithm);
          end.record(stream);
          const double t = end.milliseconds_since(begin) / launches;
          std::snprintf(line, sizeof(line), "sustained %-8s round %d algorithm %-2d %8.3f ms %5.0f TFLOP/s\n", p.name, round, index++, t, 2e-9 * static_cast<double>(kRows * p.rows * p.columns) / t);
          std::fputs(line, stdout);
          std::fflush(stdout);
        }
      }
    }
  }

  void prefill() {
    char line[300];
    Gemm gemm(DType::f16, 65536, 24576 * 4096);
    for (const bool is_awq : {false, true}) {
      for (int i = 0; i < 4; ++i) {
        const Product& p = kProducts[i];
        for (const std::int64_t tokens : {128, 256, 8192, 65536}) {
          if (is_awq && tokens == 65536) continue;
          gemm.prepare(stream, args_of(p, is_awq, tokens, 0));
          const double t = time_of(stream, tokens > 8192 ? 1 : 4, [&](int i) { gemm.run(stream, args_of(p, is_awq, tokens, i)); }, 5);
          std::snprintf(line, sizeof(line), "%-4s %-8s M=%-6lld %9.1f us %5.0f TFLOP/s\n", is_awq ? "awq" : "f16", p.name, static_cast<long long>(tokens), t,
                        2e-6 * static_cast<double>(tokens * p.rows * p.columns) / t);
          table += line;
          std::fputs(line, stdout);
          std::fflush(stdout);
        }
        if (is_awq) {
          const double t = time_of(stream, 8, [&](int copy) { expand_awq(stream, args_of(p, true, 1, copy).weights, scratch.data()); });
          std::snprintf(line, sizeof(line), "awq  %-8s expand %.1f us, %.0f GB/s\n", p.name, t, static_cast<double>(p.rows * p.columns) * 2.5 / t * 1e-3);
          table += line;
        }
      }
    }
  }
};

}  // namespace
}  // namespace keel::cuda

int main(int argc, char** argv) {
  using namespace keel::cuda;
  if (const FoundDevice device = find_device(); !device.usable) {
    std::printf("%s\n", device.reason.c_str());
    return 1;
  }
  std::set<std::string> wanted(argv + 1, argv + argc);
  if (wanted.empty()) wanted = {"dense", "awq", "prefill"};
  Bench bench;
  if (wanted.count("dense") != 0) bench.decode(false, wanted.count("plans") != 0);
  if (wanted.count("awq") != 0) bench.decode(true, wanted.count("plans") != 0);
  if (wanted.count("layer") != 0) bench.layer(false);
  if (wanted.count("awq_layer") != 0) bench.layer(true);
  if (wanted.count("prefill") != 0) bench.prefill();
  if (wanted.count("sustained") != 0) bench.sustained();
  std::printf("\n%s", bench.table.c_str());
}
