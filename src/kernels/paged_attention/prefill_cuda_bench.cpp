// Prefill attention on CUDA, 32 query over 8 KV heads of 128, f16 model, K16/V8 cache, one set of random values for every arm:
//   bare    cuDNN on contiguous q, k, v, a plan for exactly these lengths, in the form of the mask that takes less time; of mixed prompts,
//           each as its share of eight of its length
//   same    the same on the fused rows that fresh reads
//   fresh   PrefillAttention::fresh on fused rows         gather  PrefillAttention::gather
//   write   rope_write with rounding, alone               turn    the same with nothing to store or round: norms and RoPE
//   both    write, then fresh                             pages   gather's kernel that expands the pages, alone
//   plain   PrefillAttention::plain, in a run of its own: what it heats would slow the others
// prefill_cuda_bench [SECONDS an arm [fresh | plain]] [--json FILE]; the latter gets a JSON line an arm
// The arms take turns of a few milliseconds, so that all run at one clock whatever the power limit does; longer turns differ by some 3 %
// with one and the same kernel. Times and clocks are read on the device between turns.
#include <cudnn.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "base/random.h"
#include "device/cuda.h"
#include "kernels/cuda_bench.h"
#include "kernels/gemm/gemm_kernels.h"
#include "kernels/kv_write/kv_write_cuda.h"
#include "kernels/paged_attention/cudnn_sdpa.h"
#include "kernels/paged_attention/prefill_cuda.h"
#include "kernels/paged_attention/prefill_cuda_bench_clock.h"
#include "kernels/paged_attention/prefill_cuda_gather.h"

namespace keel::cuda {
namespace {

constexpr std::int64_t kHeads = 32, kKvHeads = 8, kDim = 128, kStride = (kHeads + 2 * kKvHeads) * kDim;
constexpr std::int64_t kQWidth = kHeads * kDim, kKvWidth = kKvHeads * kDim;
constexpr std::int64_t kMostTokens = 65536, kWorkspace = 256 << 20;

float median(std::vector<float> values) {
  if (values.empty()) return 0;
  std::ranges::sort(values);
  return values[values.size() / 2];
}

struct Arm {
  std::string name;
  std::function<void()> call;
  double share = 1;  // of the call's time that is this arm's
  double bytes = 0;  // where they are what counts
  float ms = 0, least = 0, most = 0, mhz = 0;  // of a call: medians, and the ends
};

class Clock {
 public:
  explicit Clock(cudaStream_t stream) : stream_(stream), ticks_(kMostTicks * multiprocessors_, "clocks") {}

  // Rounds of some calls of each arm; the first tenth of them is not counted.
  void measure(std::vector<Arm>& arms, double seconds) {
    std::vector<int> calls;
    double round_ms = 0;
    for (const Arm& arm : arms) {
      for (int i = 0; i < 2; ++i) arm.call();
      Event begin, end;
      begin.record(stream_);
      for (int i = 0; i < 3; ++i) arm.call();
      end.record(stream_);
      const double ms = end.milliseconds_since(begin) / 3;
      calls.push_back(std::clamp(static_cast<int>(2.5 / ms), 1, 64));
      round_ms += ms * calls.back();
    }
    const int most = static_cast<int>(kMostTicks / arms.size()) - 1;
    const int rounds = std::clamp(static_cast<int>(seconds * 1e3 * static_cast<double>(arms.size()) / round_ms), 5, most), skipped = rounds / 10;
    std::int64_t at = 0;
    const auto tick = [&] { read_clocks(stream_, ticks_.data() + multiprocessors_ * at++, multiprocessors_); };
    tick();
    for (int round = 0; round < rounds; ++round) {
      for (std::size_t i = 0; i < arms.size(); ++i) {
        for (int call = 0; call < calls[i]; ++call) arms[i].call();
        tick();
      }
    }
    std::vector<ClockTick> ticks(static_cast<std::size_t>(at) * multiprocessors_);
    check(cudaStreamSynchronize(stream_), "the arms");
    check(cudaMemcpy(ticks.data(), ticks_.data(), ticks.size() * sizeof(ClockTick), cudaMemcpyDeviceToHost), "clocks");
    for (std::size_t i = 0; i < arms.size(); ++i) {
      std::vector<float> times, clocks;
      for (std::size_t turn = i + arms.size() * skipped; turn + 1 < static_cast<std::size_t>(at); turn += arms.size()) {
        std::vector<float> ms, mhz;
        for (int m = 0; m < multiprocessors_; ++m) {
          const ClockTick &from = ticks[turn * multiprocessors_ + m], &to = ticks[(turn + 1) * multiprocessors_ + m];
          ms.push_back(static_cast<float>(to.nanoseconds - from.nanoseconds) * 1e-6f);
          mhz.push_back(static_cast<float>(to.cycles - from.cycles) * 1e3f / static_cast<float>(to.nanoseconds - from.nanoseconds));
        }
        times.push_back(median(ms) / static_cast<float>(calls[i]) * static_cast<float>(arms[i].share));
        clocks.push_back(median(mhz));
      }
      arms[i].ms = median(times), arms[i].mhz = median(clocks);
      arms[i].least = *std::ranges::min_element(times), arms[i].most = *std::ranges::max_element(times);
    }
  }

 private:
  static constexpr std::int64_t kMostTicks = 8192;
  cudaStream_t stream_;
  int multiprocessors_ = find_device().info.multiprocessors;
  DeviceBuffer<ClockTick> ticks_;
};

struct Case {
  std::string name;
  std::vector<std::pair<std::int64_t, std::int64_t>> sequences;  // rows, context
};

Case even(std::int64_t count, std::int64_t rows, std::int64_t context) {
  return {fmt::format("{} x {}{}", count, rows, context > rows ? fmt::format(" on {}", context - rows) : ""), std::vector<std::pair<std::int64_t, std::int64_t>>(static_cast<std::size_t>(count), {rows, context})};
}

Case mixed(const std::vector<std::int64_t>& lengths) {
  Case c{fmt::format("{}", fmt::join(lengths, " ")), {}};
  for (const std::int64_t length : lengths) c.sequences.emplace_back(length, length);
  return c;
}

SdpaShape exact_shape(float scale, std::int64_t batch, std::int64_t rows, std::int64_t context, bool is_fused, bool top_left) {
  const std::int64_t q_stride = is_fused ? kStride : kQWidth, kv_stride = is_fused ? kStride : kKvWidth;
  return {.dtype = DType::f16,
          .heads = kHeads,
          .kv_heads = kKvHeads,
          .head_dim = kDim,
          .softmax_scale = scale,
          .square = top_left,
          .batch = batch,
          .q_tokens = rows,
          .kv_tokens = context,
          .q_stride = q_stride,
          .kv_stride = kv_stride,
          .out_stride = kQWidth,
          .q_sequence = rows * q_stride,
          .kv_sequence = context * kv_stride,
          .out_sequence = rows * kQWidth};
}

void run(BenchRecords& records, double seconds, const std::string& only) {
  const Stream stream;
  const KvLayout layout({DType::f16, DType::e4m3}, {1, kKvHeads, kDim, 16}, PageOrder::cuda);
  const std::int64_t pages = kMostTokens / 16;
  DeviceBuffer<std::uint16_t> fused(kMostTokens * kStride, "fused rows"), contiguous(kMostTokens * kStride, "contiguous rows"), out(kMostTokens * kQWidth, "the output");
  DeviceBuffer<std::byte> keys(pages * layout.key_page_bytes(), "keys"), values(pages * layout.value_page_bytes(), "values"), gathered(kWorkspace, "gathered rows");
  fill_random(stream, fused.data(), DType::f16, kMostTokens * kStride, 1);
  const auto on_device = [&]<class T>(const std::vector<T>& host) {
    DeviceBuffer<T> device(host.size(), "a benchmark's array");
    copy_to_device(stream, device.data(), host.data(), host.size());
    stream.synchronize();
    return device;
  };
  const auto ones = on_device(std::vector<float>(kDim, 1.0f));
  std::vector<std::int32_t> table(pages);
  std::iota(table.begin(), table.end(), 0);
  for (std::int64_t i = pages - 1; i > 0; --i) std::swap(table[i], table[random_u64(5, i) % (i + 1)]);
  const auto page_table = on_device(table);
  std::vector<std::int32_t> positions(kMostTokens);
  std::vector<std::int64_t> slots(kMostTokens);
  for (std::int64_t i = 0; i < kMostTokens; ++i) positions[i] = static_cast<std::int32_t>(i % 8192), slots[i] = i;
  const auto positions_there = on_device(positions);
  const auto slots_there = on_device(slots), no_slots = on_device(std::vector<std::int64_t>(kMostTokens, -1));
  std::vector<float> turns(8192 * kDim);
  std::vector<double> frequencies(kDim / 2);
  for (std::int64_t i = 0; i < kDim / 2; ++i) frequencies[i] = std::pow(1e6, -2.0 * static_cast<double>(i) / kDim);
  fill_rope_table(turns.data(), 8192, kDim, frequencies.data(), 1);
  const auto turns_there = on_device(turns);
  const KvLayerView view{&layout, keys.data(), values.data(), ones.data(), ones.data()};
  const auto write = [&](std::int64_t tokens, bool stores) {
    rope_write(stream, {.dtype = DType::f16,
                        .q = fused.data(),
                        .k = fused.data() + kQWidth,
                        .v = fused.data() + kQWidth + kKvWidth,
                        .stride = kStride,
                        .tokens = tokens,
                        .heads = kHeads,
                        .q_norm = ones.data(),
                        .k_norm = ones.data(),
                        .norm_epsilon = 1e-6f,
                        .rotary_dim = kDim,
                        .pairs = RopePairs::half,
                        .rope_table = turns_there.data(),
                        .positions = positions_there.data(),
                        .slots = stores ? slots_there.data() : no_slots.data(),
                        .kv = view,
                        .round = stores});
  };
  // Pages, and rows as a step has them at attention: q and k of unit size, v rounded. The contiguous arm reads the same values.
  write(kMostTokens, true);
  std::uint16_t* parts = contiguous.data();
  for (const std::int64_t width : {kQWidth, kKvWidth, kKvWidth}) {
    const std::int64_t column = parts == contiguous.data() ? 0 : parts == contiguous.data() + kMostTokens * kQWidth ? kQWidth : kQWidth + kKvWidth;
    check(cudaMemcpy2DAsync(parts, width * 2, fused.data() + column, kStride * 2, width * 2, kMostTokens, cudaMemcpyDeviceToDevice, stream), "contiguous rows");
    parts += kMostTokens * width;
  }

  PrefillAttention attention(layout, DType::f16, kHeads, kMostTokens, kWorkspace);
  CudnnSdpa sdpa;
  Clock clock(stream);
  const float scale = 1.0f / std::sqrt(static_cast<float>(kDim));
  const auto args_of = [&](std::span<const PrefillSequence> sequences) {
    return PrefillAttentionArgs{.dtype = DType::f16,
                                .q = fused.data(),
                                .q_stride = kStride,
                                .out = out.data(),
                                .out_stride = kQWidth,
                                .heads = kHeads,
                                .softmax_scale = scale,
                                .kv = view,
                                .page_table = page_table.data(),
                                .page_table_stride = 512,
                                .sequences = sequences,
                                .k = fused.data() + kQWidth,
                                .v = fused.data() + kQWidth + kKvWidth,
                                .kv_stride = kStride};
  };
  std::vector<Case> cases = {even(8, 8192, 8192), even(7, 8192, 8192), even(1, 8192, 8192), even(8, 1024, 1024), even(8, 8100, 8100), even(8, 1000, 1000),
                             mixed({8100, 7000, 6500, 4100, 3000, 1500, 700, 300}), mixed({8191, 8100, 7999, 7801, 7777, 7650, 7500, 7301}),
                             mixed({1100, 900, 850, 700, 613, 411, 350, 201})};
  if (only != "fresh") {
    for (const Case& c : {even(1, 4096, 8192), even(4, 512, 8192), even(4, 256, 8192), even(4, 64, 8192), even(4, 16, 8192), even(1, 256, 8192), even(1, 64, 8192)}) cases.push_back(c);
  }
  if (only == "plain") cases = {even(4, 8192, 8192), even(4, 256, 8192)};
  attention.choose_mask(args_of({}), 8192);
  for (const Case& c : cases) {
    std::vector<PrefillSequence> sequences;
    std::string forms_told;
    std::int64_t rows = 0;
    double flop = 0;  // of the scores that the mask leaves, and of their values
    for (const auto& [n, context] : c.sequences) {
      sequences.push_back({rows, n, context, static_cast<std::int64_t>(sequences.size())});
      rows += n;
      flop += 4.0 * kQWidth * (static_cast<double>(context - n) * static_cast<double>(n) + 0.5 * static_cast<double>(n * (n + 1)));
    }
    const PrefillAttentionArgs args = args_of(sequences);
    const auto [first_rows, first_context] = c.sequences.front();
    const bool is_fresh = first_rows == first_context, is_even = std::ranges::count(c.sequences, c.sequences.front()) == std::ssize(c.sequences);
    const std::int64_t batch = is_even ? std::ssize(c.sequences) : 8;
    const auto exact_shapes = [&](bool is_fused, bool top_left) {
      std::vector<SdpaShape> shapes;
      for (std::size_t i = 0; i < (is_even ? 1 : c.sequences.size()); ++i) shapes.push_back(exact_shape(scale, batch, c.sequences[i].first, c.sequences[i].second, is_fused, top_left));
      sdpa.prepare(shapes);
      return shapes;
    };
    const SdpaArgs bare_args{.q = contiguous.data(), .k = contiguous.data() + kMostTokens * kQWidth, .v = contiguous.data() + kMostTokens * (kQWidth + kKvWidth), .out = out.data()};
    const SdpaArgs same_args{.q = args.q, .k = args.k, .v = args.v, .out = out.data()};
    const double share = is_even ? 1 : 1.0 / 8;
    const auto exact = [&](std::string name, std::vector<SdpaShape> shapes, const SdpaArgs& tensors) {
      return Arm{std::move(name), [&, shapes = std::move(shapes)] { for (const SdpaShape& s : shapes) sdpa.run(stream, s, tensors); }, share};
    };
    std::vector<Arm> arms;
    bool top_left = false;
    if (is_fresh && only != "plain") {
      std::vector<Arm> forms = {exact("bottom-right", exact_shapes(false, false), bare_args), exact("top-left", exact_shapes(false, true), bare_args)};
      clock.measure(forms, seconds / 2);
      top_left = forms[1].ms < forms[0].ms;
      forms_told = fmt::format(", bare {}: {:.4f} ms, {} {:.4f}", forms[top_left].name, forms[top_left].ms, forms[!top_left].name, forms[!top_left].ms);
    }
    arms.push_back(exact("bare", exact_shapes(false, top_left), bare_args));
    GatherArgs expand{.dtype = DType::f16, .kv = view, .page_table = args.page_table, .page_table_stride = args.page_table_stride, .keys = gathered.data(), .values = gathered.data() + kWorkspace / 2};
    if (is_fresh) {
      attention.prepare_fresh(args);
      arms.push_back(exact("same", exact_shapes(true, top_left), same_args));
      arms.push_back({"fresh", [&] { attention.fresh(stream, args); }});
      arms.push_back({"write", [&] { write(rows, true); }});
      arms.push_back({"turn", [&] { write(rows, false); }});
      arms.push_back({"both", [&] { write(rows, true), attention.fresh(stream, args); }});
    } else {
      attention.prepare_gather(args);
      for (const PrefillSequence& s : sequences) expand.sequence[expand.count++] = {s.table_row, 0, s.context, s.table_row * s.context};
      arms.push_back({"gather", [&] { attention.gather(stream, args); }});
      arms.push_back({"pages", [&] { gather_pages(stream, expand); }, 1, static_cast<double>(std::ssize(sequences) * first_context * kKvWidth * (2 + 1 + 4))});
    }
    if (only == "plain") arms = {{"plain", [&] { attention.plain(stream, args); }}};
    clock.measure(arms, seconds);
    std::printf("%s%s\n", c.name.c_str(), forms_told.c_str());
    for (const Arm& arm : arms) {
      std::printf("  %-6s %8.4f ms (%.4f-%.4f) %5.0f MHz", arm.name.c_str(), arm.ms, arm.least, arm.most, arm.mhz);
      if (arm.bytes > 0) std::printf(" %7.1f GB/s", arm.bytes * 1e-6 / arm.ms);
      if (arm.bytes == 0 && arm.name != "write" && arm.name != "turn") std::printf(" %6.1f TFLOP/s %.3f of bare", flop * 1e-9 / arm.ms, arms[0].ms / arm.ms);
      std::printf("\n");
      records.add({{"case", c.name}, {"arm", arm.name}, {"ms", arm.ms}, {"least_ms", arm.least}, {"most_ms", arm.most}, {"arm_mhz", arm.mhz}, {"flop", flop}, {"bytes", arm.bytes}});
    }
    if (is_fresh && arms.size() > 1) {
      const float bare = arms[0].ms, fresh = arms[2].ms, write_ms = arms[3].ms, turn = arms[4].ms, both = arms[5].ms;
      std::printf("  of bare: fresh and what write has beyond turn %.3f, both %.3f; of bare and turn: both %.3f\n", bare / (fresh + write_ms - turn), bare / both, (bare + turn) / both);
    }
    std::fflush(stdout);
  }
}

}  // namespace
}  // namespace keel::cuda

int main(int argc, char** argv) {
  keel::cuda::BenchRecords records("prefill_cuda_bench", argc, argv);
  const double seconds = argc > 1 ? std::atof(argv[1]) : 0.5;
  const keel::cuda::FoundDevice found = keel::cuda::find_device();
  if (!found.usable) {
    std::printf("%s\n", found.reason.c_str());
    return 0;
  }
  std::printf("%s, cuDNN %zu; f16, 32/8 heads of 128, K16/V8 pages, random; %g s an arm\n", found.info.name.c_str(), cudnnGetVersion(), seconds);
  keel::cuda::run(records, seconds, argc > 2 ? argv[2] : "");
}
