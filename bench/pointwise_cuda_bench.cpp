// Times CUDA's pointwise kernels at Qwen3-8B's shapes and prints microseconds and GB/s: the bytes that must move over the time
// that one launch takes within a graph. Inputs are random and rotate among sets past the L2 cache at the prefill sizes; at
// decode's they stay in it, as they do in a model's step. `--json FILE`: the figures also as JSON lines.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <vector>

#include "base/random.h"
#include "device/cuda.h"
#include "kernels/cuda_bench.h"
#include "kernels/embed/embed_cuda.h"
#include "kernels/kv_write/kv_write_cuda.h"
#include "kernels/rms_norm/rms_norm_cuda.h"
#include "kernels/sample/sample_cuda.h"
#include "kernels/silu_mul/silu_mul_cuda.h"

namespace keel::cuda {
namespace {

constexpr std::int64_t kHidden = 4096, kHeads = 32, kKvHeads = 8, kDim = 128, kIntermediate = 12288, kVocabulary = 151936;

template <class T>
DeviceBuffer<T> on_device(const std::vector<T>& host) {
  DeviceBuffer<T> device(host.size(), "a benchmark's array");
  check(cudaMemcpy(device.data(), host.data(), device.bytes(), cudaMemcpyHostToDevice), "copy to the device");
  return device;
}

// Random f16 in about [-2, 2]; a block of them, repeated.
DeviceBuffer<std::uint16_t> random_halves(std::int64_t count) {
  std::vector<std::uint16_t> block(std::min<std::int64_t>(count, 1 << 20));
  for (std::size_t i = 0; i < block.size(); ++i) block[i] = static_cast<std::uint16_t>(to_half(static_cast<float>(random_unit(1, i) * 4 - 2)));
  DeviceBuffer<std::uint16_t> device(count, "a benchmark's rows");
  for (std::int64_t at = 0; at < count; at += block.size()) {
    const auto part = std::min<std::int64_t>(block.size(), count - at);
    check(cudaMemcpy(device.data() + at, block.data(), part * 2, cudaMemcpyHostToDevice), "copy to the device");
  }
  return device;
}

// Median over graphs of `launches` launches.
void report(BenchRecords& records, const char* what, std::int64_t rows, std::int64_t bytes, const std::function<void(cudaStream_t)>& launch) {
  const int launches = bytes < (64 << 20) ? 50 : 4;
  const Stream stream;
  const StepGraph graph(stream, [&] {
    for (int i = 0; i < launches; ++i) launch(stream);
  });
  std::vector<float> microseconds;
  for (int i = 0; i < 15; ++i) {
    Event start, end;
    start.record(stream);
    graph.launch(stream);
    end.record(stream);
    const float time = end.milliseconds_since(start) * 1000 / static_cast<float>(launches);
    if (i >= 4) microseconds.push_back(time);
  }
  std::sort(microseconds.begin(), microseconds.end());
  const float median = microseconds[microseconds.size() / 2];
  fmt::print("{:34} {:6} rows {:9.2f} us (from {:.2f}) {:8.0f} GB/s\n", what, rows, median, microseconds[0], static_cast<double>(bytes) / median * 1e-3);
  records.add({{"kernel", what}, {"rows", rows}, {"us", median}, {"least_us", microseconds[0]}, {"gb_per_s", static_cast<double>(bytes) / median * 1e-3}});
  std::fflush(stdout);
}

void bench_rows(BenchRecords& records, std::int64_t rows) {
  {
    auto residual = random_halves(rows * kHidden), added = random_halves(rows * kHidden), out = random_halves(rows * kHidden);
    const auto weight = on_device(std::vector<float>(kHidden, 1.1f));
    AddRmsNormArgs args{.dtype = DType::f16, .residual = residual.data(), .added = added.data(), .weight = weight.data(), .out = out.data(),
                        .rows = rows, .width = kHidden, .epsilon = 1e-6f};
    report(records, "add_rms_norm", rows, 4 * rows * kHidden * 2, [&](cudaStream_t stream) { add_rms_norm(stream, args); });
    args.added = nullptr;
    report(records, "rms_norm", rows, 2 * rows * kHidden * 2, [&](cudaStream_t stream) { add_rms_norm(stream, args); });
    check(cudaMemcpy(out.data(), residual.data(), out.bytes(), cudaMemcpyDeviceToDevice), "warm up");
    report(records, "copy of the same rows", rows, 2 * rows * kHidden * 2, [&](cudaStream_t stream) {
      check(cudaMemcpyAsync(out.data(), residual.data(), out.bytes(), cudaMemcpyDeviceToDevice, stream), "copy");
    });
  }
  {
    const auto gate_up = random_halves(rows * 2 * kIntermediate);
    DeviceBuffer<std::uint16_t> out(rows * kIntermediate, "out");
    report(records, "silu_mul", rows, 3 * rows * kIntermediate * 2, [&](cudaStream_t stream) {
      silu_mul(stream, {.dtype = DType::f16, .gate_up = gate_up.data(), .out = out.data(), .rows = rows, .width = kIntermediate});
    });
  }
  const KvFormat formats[] = {{DType::f16, DType::f16}, {DType::f16, DType::e4m3}, {DType::e4m3, DType::e4m3}, {DType::f16, DType::u4}};
  for (const KvFormat& format : formats) {
    const KvLayout layout(format, {1, kKvHeads, kDim, 16}, PageOrder::cuda);
    const std::int64_t stride = (kHeads + 2 * kKvHeads) * kDim, pages = rows / 16 + 40;
    auto fused = random_halves(rows * stride);
    DeviceBuffer<std::byte> keys(pages * layout.key_page_bytes(), "keys"), values(pages * layout.value_page_bytes(), "values");
    std::vector<float> table(8192 * kDim);
    std::vector<double> frequencies(kDim / 2);
    for (std::int64_t i = 0; i < kDim / 2; ++i) frequencies[i] = std::pow(1e6, -2.0 * i / kDim);
    fill_rope_table(table.data(), 8192, kDim, frequencies.data(), 1);
    std::vector<std::int32_t> positions(rows);
    std::vector<std::int64_t> slots(rows);
    for (std::int64_t i = 0; i < rows; ++i) {
      positions[i] = static_cast<std::int32_t>(rows <= 64 ? random_u64(2, i) % 8192 : i % 8192);
      slots[i] = rows <= 64 ? i * 16 + 5 : i;
    }
    const std::int64_t decode_pages = rows <= 64 ? rows + 1 : 0;
    if (decode_pages > pages) throw Error("too few pages");
    const auto table_there = on_device(table);
    const auto positions_there = on_device(positions);
    const auto slots_there = on_device(slots);
    const auto norm = on_device(std::vector<float>(kDim, 1.0f)), scales = on_device(std::vector<float>(kKvHeads, 0.02f)),
               units = on_device(std::vector<float>(kKvHeads, 1.0f));
    for (const bool round : {false, true}) {
      const std::int64_t moved = rows * (2 * (kHeads + kKvHeads) * kDim * 2 + kKvHeads * kDim * 2 * (1 + round)) + rows * layout.bytes_per_token();
      report(records, fmt::format("rope_write {}{}", short_name(format), round ? " round" : "").c_str(), rows, moved, [&](cudaStream_t stream) {
        rope_write(stream, {.dtype = DType::f16,
                            .q = fused.data(),
                            .k = fused.data() + kHeads * kDim,
                            .v = fused.data() + (kHeads + kKvHeads) * kDim,
                            .stride = stride,
                            .tokens = rows,
                            .heads = kHeads,
                            .q_norm = norm.data(),
                            .k_norm = norm.data(),
                            .norm_epsilon = 1e-6f,
                            .rotary_dim = kDim,
                            .pairs = RopePairs::half,
                            .rope_table = table_there.data(),
                            .positions = positions_there.data(),
                            .slots = slots_there.data(),
                            .kv = {&layout, keys.data(), values.data(), (format.key == DType::e4m3 ? scales : units).data(),
                                   (format.value == DType::e4m3 ? scales : units).data()},
                            .round = round});
      });
    }
  }
  {
    const auto embedding = random_halves(kVocabulary * kHidden);
    std::vector<std::int32_t> tokens(rows);
    for (std::int64_t i = 0; i < rows; ++i) tokens[i] = static_cast<std::int32_t>(random_u64(3, i) % kVocabulary);
    const auto tokens_there = on_device(tokens);
    DeviceBuffer<std::uint16_t> out(rows * kHidden, "out");
    report(records, "embed", rows, 2 * rows * kHidden * 2, [&](cudaStream_t stream) {
      embed(stream, {.dtype = DType::f16, .embedding = embedding.data(), .tokens = tokens_there.data(), .out = out.data(), .rows = rows, .width = kHidden});
    });
  }
}

void bench_sampling(BenchRecords& records) {
  struct Setting {
    const char* what;
    RowSampling row;
  };
  const Setting settings[] = {{"greedy", {.temperature = 0, .top_p = 1, .min_p = 0, .top_k = 0}},
                              {"temperature 1", {.temperature = 1, .top_p = 1, .min_p = 0, .top_k = 0}},
                              {"0.6, top_k 20, top_p 0.95", {.temperature = 0.6, .top_p = 0.95, .min_p = 0, .top_k = 20}},
                              {"1, top_p 0.9", {.temperature = 1, .top_p = 0.9, .min_p = 0, .top_k = 0}},
                              {"1, top_k 1000", {.temperature = 1, .top_p = 1, .min_p = 0, .top_k = 1000}},
                              {"1, min_p 0.05", {.temperature = 1, .top_p = 1, .min_p = 0.05, .top_k = 0}}};
  for (const bool tied : {false, true}) {
    for (const std::int64_t rows : {1, 32, 256}) {
      std::vector<float> logits(rows * kVocabulary);
      for (std::size_t i = 0; i < logits.size(); ++i) {
        const std::uint64_t raw = random_u64(4, i);
        float sum = -2;
        for (int k = 0; k < 4; ++k) sum += static_cast<float>(raw >> (16 * k) & 0xffff) * 0x1p-16f;
        logits[i] = tied ? std::round(sum) : sum * 5;
      }
      const auto logits_there = on_device(logits);
      for (const auto& [what, row] : settings) {
        std::vector<RowSampling> all(rows, row);
        for (std::int64_t i = 0; i < rows; ++i) all[i].seed = i;
        const auto all_there = on_device(all);
        auto tokens = on_device(std::vector<std::int32_t>(rows, -1));
        report(records, fmt::format("sample {}{}", what, tied ? ", 5 values" : "").c_str(), rows, rows * kVocabulary * 4, [&](cudaStream_t stream) {
          sample(stream, {.logits = logits_there.data(), .rows = rows, .vocabulary = kVocabulary, .rows_sampling = all_there.data(), .tokens = tokens.data()});
        });
      }
    }
  }
}

}  // namespace
}  // namespace keel::cuda

int main(int argc, char** argv) {
  const auto found = keel::cuda::find_device();
  if (!found.usable) {
    fmt::print(stderr, "{}\n", found.reason);
    return 1;
  }
  fmt::print("{}, driver {}, runtime {}\n", found.info.name, found.info.driver, found.info.runtime);
  keel::cuda::BenchRecords records("pointwise_cuda_bench", argc, argv);
  for (const std::int64_t rows : {32, 8192, 65536}) keel::cuda::bench_rows(records, rows);
  keel::cuda::bench_sampling(records);
}
