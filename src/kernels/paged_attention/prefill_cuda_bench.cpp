// Prefill attention on CUDA, 32 query over 8 KV heads of 128, f16 model, K16/V8 cache, random data, sustained and interleaved:
//   bare    cuDNN on contiguous q, k, v        fresh   PrefillAttention::fresh on fused rows
//   plain   from the pages                     gather  4,096 new rows on 4,096 cached tokens, against bare cuDNN on such tensors
// prefill_cuda_bench [SECONDS an arm]
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include "base/random.h"
#include "device/cuda.h"
#include "kernels/paged_attention/cudnn_sdpa.h"
#include "kernels/paged_attention/prefill_cuda.h"

using namespace keel;
using namespace keel::cuda;

namespace {

constexpr std::int64_t kHeads = 32, kKvHeads = 8, kDim = 128, kStride = (kHeads + 2 * kKvHeads) * kDim;
constexpr std::int64_t kMostTokens = 65536;

// Random f16 of size 1/4 to 2, or E4M3 without NaN: 16 MiB of them, over and over.
DeviceBuffer<std::byte> random_bytes(std::int64_t bytes, bool halves, std::uint64_t seed) {
  constexpr std::int64_t kPiece = 16 << 20;
  static std::vector<std::uint16_t> piece(kPiece / 2);
  for (std::size_t i = 0; i < piece.size(); ++i) {
    const std::uint64_t r = random_u64(seed, i);
    piece[i] = static_cast<std::uint16_t>(halves ? (r & 0x83ff) | (13 + (r >> 20) % 3) << 10 : r & 0xbfbf);
  }
  DeviceBuffer<std::byte> buffer(bytes, "random data");
  for (std::int64_t at = 0; at < bytes; at += kPiece) {
    check(cudaMemcpy(buffer.data() + at, piece.data(), std::min(kPiece, bytes - at), cudaMemcpyHostToDevice), "random data");
  }
  return buffer;
}

struct Arm {
  std::string name;
  std::function<void()> call;
  std::vector<float> milliseconds = {};
};

// Rounds of a few calls of each arm in turn, until each has had its seconds. Medians of the rounds' means.
void measure(std::vector<Arm>& arms, double seconds, cudaStream_t stream) {
  Event begin, end;
  for (Arm& arm : arms) {
    for (int i = 0; i < 3; ++i) arm.call();
  }
  for (double spent = 0; spent < seconds * 1e3 * arms.size();) {
    for (Arm& arm : arms) {
      constexpr int kCalls = 8;
      begin.record(stream);
      for (int i = 0; i < kCalls; ++i) arm.call();
      end.record(stream);
      const float elapsed = end.milliseconds_since(begin);
      arm.milliseconds.push_back(elapsed / kCalls);
      spent += elapsed;
    }
  }
  for (Arm& arm : arms) std::ranges::sort(arm.milliseconds);
}

}  // namespace

int main(int argc, char** argv) {
  const double seconds = argc > 1 ? std::atof(argv[1]) : 0.6;
  const FoundDevice found = find_device();
  if (!found.usable) {
    std::printf("%s\n", found.reason.c_str());
    return 0;
  }
  Stream stream;
  const KvLayout layout({DType::f16, DType::e4m3}, {1, kKvHeads, kDim, 16}, PageOrder::cuda);
  const std::int64_t pages = kMostTokens / 16;
  auto fused = random_bytes(kMostTokens * kStride * 2, true, 1);
  auto contiguous = random_bytes(kMostTokens * kStride * 2, true, 2);
  auto keys = random_bytes(pages * layout.key_page_bytes(), true, 3);
  auto values = random_bytes(pages * layout.value_page_bytes(), false, 4);
  DeviceBuffer<std::byte> out(kMostTokens * kHeads * kDim * 2, "the output");
  const std::vector<float> ones(kKvHeads, 1.0f);
  DeviceBuffer<float> scales(kKvHeads, "scales");
  copy_to_device(stream, scales.data(), ones.data(), kKvHeads);
  std::vector<std::int32_t> table(pages);
  std::iota(table.begin(), table.end(), 0);
  for (std::int64_t i = pages - 1; i > 0; --i) std::swap(table[i], table[random_u64(5, i) % (i + 1)]);
  DeviceBuffer<std::int32_t> device_table(pages, "a page table");
  copy_to_device(stream, device_table.data(), table.data(), table.size());
  stream.synchronize();

  PrefillAttention attention(layout, DType::f16, kHeads, kMostTokens, 256 << 20);
  CudnnSdpa bare;
  std::vector<std::string> lines;
  struct Case {
    const char* name;
    std::int64_t batch, rows, context;
    bool even;
  };
  for (const Case& c : {Case{"B1 T8192", 1, 8192, 8192, true}, Case{"B4 T8192", 4, 8192, 8192, true}, Case{"B8 T8192", 8, 8192, 8192, true},
                        Case{"B8 T1024", 8, 1024, 1024, true}, Case{"B8 T8100 ragged", 8, 8100, 8100, false}, Case{"B1 4096 on 4096", 1, 4096, 8192, true},
                        Case{"B8 256 on 7936", 8, 256, 8192, true}}) {
    std::vector<PrefillSequence> sequences;
    for (std::int64_t i = 0; i < c.batch; ++i) sequences.push_back({i * c.rows, c.rows, c.context, i});
    const auto* rows = reinterpret_cast<const std::uint16_t*>(fused.data());
    const PrefillAttentionArgs args{.dtype = DType::f16,
                                    .q = rows,
                                    .q_stride = kStride,
                                    .out = out.data(),
                                    .out_stride = kHeads * kDim,
                                    .heads = kHeads,
                                    .softmax_scale = 0.08838835f,
                                    .kv = {&layout, keys.data(), values.data(), scales.data(), scales.data()},
                                    .page_table = device_table.data(),
                                    .page_table_stride = 512,
                                    .sequences = sequences,
                                    .k = rows + kHeads * kDim,
                                    .v = rows + (kHeads + kKvHeads) * kDim,
                                    .kv_stride = kStride};
    const SdpaShape shape{.dtype = DType::f16,
                          .heads = kHeads,
                          .kv_heads = kKvHeads,
                          .head_dim = kDim,
                          .softmax_scale = args.softmax_scale,
                          .batch = c.batch,
                          .q_tokens = c.rows,
                          .kv_tokens = c.context,
                          .q_stride = kHeads * kDim,
                          .kv_stride = kKvHeads * kDim,
                          .out_stride = kHeads * kDim,
                          .q_sequence = c.rows * kHeads * kDim,
                          .kv_sequence = c.context * kKvHeads * kDim,
                          .out_sequence = c.rows * kHeads * kDim};
    const auto* q = reinterpret_cast<const std::uint16_t*>(contiguous.data());
    const SdpaArgs tensors{.q = q, .k = q + kMostTokens * kHeads * kDim, .v = q + kMostTokens * (kHeads + kKvHeads) * kDim, .out = out.data()};
    const bool is_fresh = c.rows == c.context;
    bare.prepare(shape);
    std::vector<Arm> arms = {{"bare", [&] { bare.run(stream, shape, tensors); }}, {"plain", [&] { attention.plain(stream, args); }}};
    if (is_fresh) {
      attention.prepare_fresh(args);
      arms.push_back({"fresh", [&] { attention.fresh(stream, args); }});
    } else {
      attention.prepare_gather(args);
      arms.push_back({"gather", [&] { attention.gather(stream, args); }});
    }
    measure(arms, seconds, stream);
    // Multiply-adds of the scores that the mask leaves, and of their values.
    const double seen = static_cast<double>(c.context - c.rows) * c.rows + 0.5 * c.rows * (c.rows + 1);
    const double flop = 4.0 * kHeads * kDim * seen * c.batch;
    const float bare_ms = arms[0].milliseconds[arms[0].milliseconds.size() / 2];
    for (const Arm& arm : arms) {
      const float ms = arm.milliseconds[arm.milliseconds.size() / 2];
      char line[200];
      std::snprintf(line, sizeof line, "%-16s %-7s %9.4f ms (%.4f-%.4f)  %6.1f TFLOP/s  %.3f of bare", c.name, arm.name.c_str(), ms,
                    arm.milliseconds.front(), arm.milliseconds.back(), flop / ms * 1e-9, bare_ms / ms);
      lines.push_back(line);
    }
  }
  std::printf("%s; f16, 32/8 heads of 128, K16/V8 pages, random; %g s an arm, arms in turn\n", found.info.name.c_str(), seconds);
  for (const std::string& line : lines) std::printf("%s\n", line.c_str());
}
