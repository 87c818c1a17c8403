// Prefill attention on CUDA, 32 query over 8 KV heads of 128, f16 model, K16/V8 cache, random data, sustained and interleaved:
//   bare    cuDNN on contiguous q, k, v        fresh   PrefillAttention::fresh on fused rows
//   gather  PrefillAttention::gather           pages   its kernel that expands the pages, alone (GB/s of pages and rows)
//   plain   PrefillAttention::plain, by itself after the others: what it heats would slow them
// prefill_cuda_bench [SECONDS an arm [plain]]
#include <algorithm>
#include <chrono>
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
#include "kernels/paged_attention/prefill_cuda_gather.h"

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
  double bytes = 0;  // where they are what counts
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

  constexpr std::int64_t kWorkspace = 256 << 20;
  PrefillAttention attention(layout, DType::f16, kHeads, kMostTokens, kWorkspace);
  DeviceBuffer<std::byte> gathered(kWorkspace, "gathered rows");
  CudnnSdpa bare;
  std::vector<std::string> lines;
  struct Case {
    const char* name;
    std::int64_t batch, rows, context;
  };
  std::vector<Case> cases = {{"B1 8192", 1, 8192, 8192},         {"B4 8192", 4, 8192, 8192},        {"B8 8192", 8, 8192, 8192},
                             {"B8 1024", 8, 1024, 1024},         {"B8 8100", 8, 8100, 8100},        {"B8 1000", 8, 1000, 1000},
                             {"B1 4096 on 4096", 1, 4096, 8192}, {"B4 512 on 7680", 4, 512, 8192},  {"B4 256 on 7936", 4, 256, 8192},
                             {"B4 64 on 8128", 4, 64, 8192},     {"B4 16 on 8176", 4, 16, 8192},    {"B1 256 on 7936", 1, 256, 8192},
                             {"B1 64 on 8128", 1, 64, 8192}};
  const bool plain_only = argc > 2;
  if (plain_only) cases = {cases[1], cases[8]};
  for (const Case& c : cases) {
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
    std::vector<Arm> arms = {{"bare", [&] { bare.run(stream, shape, tensors); }}};
    GatherArgs expand{.dtype = DType::f16,
                      .kv = args.kv,
                      .page_table = args.page_table,
                      .page_table_stride = args.page_table_stride,
                      .keys = gathered.data(),
                      .values = gathered.data() + kWorkspace / 2};
    const auto start = std::chrono::steady_clock::now();
    if (is_fresh) {
      attention.prepare_fresh(args);
      arms.push_back({"fresh", [&] { attention.fresh(stream, args); }});
    } else {
      attention.prepare_gather(args);
      for (const PrefillSequence& s : sequences) expand.sequence[expand.count++] = {s.table_row, 0, s.context, s.table_row * s.context};
      arms.push_back({"gather", [&] { attention.gather(stream, args); }});
      arms.push_back({"pages", [&] { gather_pages(stream, expand); }, static_cast<double>(c.batch * c.context * kKvHeads * kDim * (2 + 1 + 4))});
    }
    const double built_ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
    bare.prepare({&shape, 1});
    if (!plain_only) measure(arms, seconds, stream);
    std::vector<Arm> alone = {{"plain", [&] { attention.plain(stream, args); }}};
    measure(alone, seconds, stream);
    arms.push_back(alone[0]);
    // Multiply-adds of the scores that the mask leaves, and of their values.
    const double seen = static_cast<double>(c.context - c.rows) * c.rows + 0.5 * c.rows * (c.rows + 1);
    const double flop = 4.0 * kHeads * kDim * seen * c.batch;
    for (const Arm& arm : arms) {
      if (arm.milliseconds.empty()) continue;
      const auto middle = [](const Arm& a) { return a.milliseconds[a.milliseconds.size() / 2]; };
      char line[240];
      std::snprintf(line, sizeof line, "%-16s %-6s %8.4f ms (%.4f-%.4f) %7.1f %s", c.name, arm.name.c_str(), middle(arm), arm.milliseconds.front(),
                    arm.milliseconds.back(), (arm.bytes > 0 ? arm.bytes * 1e3 : flop) / middle(arm) * 1e-9, arm.bytes > 0 ? "GB/s" : "TFLOP/s");
      lines.push_back(line);
      if (!plain_only && arm.bytes == 0 && arm.name != "bare") {
        std::snprintf(line, sizeof line, "  %.3f of bare", middle(arms[0]) / middle(arm));
        lines.back() += line;
      }
      if (arm.name == "fresh" || arm.name == "gather") {
        std::snprintf(line, sizeof line, "  plans built in %.0f ms", built_ms);
        lines.back() += line;
      }
    }
  }
  std::printf("%s; f16, 32/8 heads of 128, K16/V8 pages, random; %g s an arm, arms in turn\n", found.info.name.c_str(), seconds);
  for (const std::string& line : lines) std::printf("%s\n", line.c_str());
}
