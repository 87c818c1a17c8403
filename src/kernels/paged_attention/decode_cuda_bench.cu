// Decode attention alone: 32 query heads over 8 KV heads of 128 dimensions, shuffled pages of 16 tokens, near-normal data.
// Medians of graph replays that go through pools larger than the L2 cache.
//
//   decode_cuda_bench           the product's kernels, beside copies alone of the same bytes by the same grid
//   decode_cuda_bench --sweep   every tuning below instead
#include <cuda_fp8.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "base/random.h"
#include "kernels/paged_attention/decode_cuda.h"
#include "kernels/paged_attention/decode_cuda_kernel.cuh"

namespace keel::cuda {
namespace {

constexpr int kHeads = 32, kKvHeads = 8, kDim = 128, kReplays = 25;
constexpr std::int64_t kPoolBytes = std::int64_t{2} << 30;

struct Workload {
  int sequences, context;
};
constexpr Workload kWorkloads[] = {{32, 8192}, {32, 1024}, {1, 8192}, {8, 32768}};

__global__ void fill_normal(std::uint8_t* data, std::int64_t elements, DType type, std::uint64_t seed) {
  for (std::int64_t i = blockIdx.x * std::int64_t{blockDim.x} + threadIdx.x; i < elements; i += std::int64_t{gridDim.x} * blockDim.x) {
    const std::uint64_t x = random_u64(seed, i);
    const float sum = static_cast<float>((x & 0xffff) + (x >> 16 & 0xffff) + (x >> 32 & 0xffff) + (x >> 48));
    const float normal = (sum / 65536 - 2) * 1.7320508f;
    if (type == DType::f16) {
      reinterpret_cast<__half*>(data)[i] = __float2half(normal);
    } else {
      data[i] = __nv_fp8_e4m3(normal).__x;
    }
  }
}
// Codes at random; scale 1/4, zero -15/8.
__global__ void fill_u4(std::uint8_t* data, std::int64_t pages, std::int64_t code_bytes, std::int64_t page_bytes) {
  const std::int64_t words = pages * page_bytes / 4;
  for (std::int64_t i = blockIdx.x * std::int64_t{blockDim.x} + threadIdx.x; i < words; i += std::int64_t{gridDim.x} * blockDim.x) {
    const bool parameters = i * 4 % page_bytes >= code_bytes;
    reinterpret_cast<std::uint32_t*>(data)[i] = parameters ? 0xbf803400u : static_cast<std::uint32_t>(random_u64(7, i));
  }
}

struct Pool {
  KvLayout layout;
  std::int64_t pages;
  DeviceBuffer<std::uint8_t> keys, values;
  DeviceBuffer<float> ones;

  Pool(cudaStream_t stream, KvFormat format)
      : layout(format, {1, kKvHeads, kDim, 16}, PageOrder::cuda),
        pages(kPoolBytes / layout.page_bytes()),
        keys(pages * layout.key_page_bytes(), "keys"),
        values(pages * layout.value_page_bytes(), "values"),
        ones(kKvHeads, "scales") {
    fill_normal<<<2048, 256, 0, stream>>>(keys.data(), keys.bytes() * 8 / bits(format.key), format.key, 1);
    if (format.value == DType::u4) {
      fill_u4<<<2048, 256, 0, stream>>>(values.data(), pages, kKvHeads * 16 * kDim / 2, layout.value_page_bytes());
    } else {
      fill_normal<<<2048, 256, 0, stream>>>(values.data(), values.bytes() * 8 / bits(format.value), format.value, 2);
    }
    check_launch("fill");
    const std::vector<float> host(kKvHeads, 1.0f);
    copy_to_device(stream, ones.data(), host.data(), host.size());
    check(cudaStreamSynchronize(stream), "fill");
  }
};

// One workload over one pool: as many disjoint batches as the pool holds.
class Batches {
 public:
  Batches(cudaStream_t stream, const Pool& pool, Workload workload)
      : stream_(stream),
        pool_(pool),
        workload_(workload),
        pages_a_sequence_(workload.context / 16),
        count_(std::min<std::int64_t>(64, pool.pages / (workload.sequences * pages_a_sequence_))),
        tables_(pool.pages, "page tables"),
        contexts_(workload.sequences, "contexts"),
        q_(workload.sequences * kHeads * kDim, "q"),
        out_(q_.size(), "out"),
        workspace_(64 << 20, "workspace") {
    std::vector<std::int32_t> order(pool.pages);
    for (std::int64_t i = 0; i < pool.pages; ++i) order[i] = static_cast<std::int32_t>(i);
    for (std::int64_t i = pool.pages - 1; i > 0; --i) std::swap(order[i], order[random_u64(3, i) % (i + 1)]);
    const std::vector<std::int32_t> contexts(workload.sequences, workload.context);
    copy_to_device(stream, tables_.data(), order.data(), order.size());
    copy_to_device(stream, contexts_.data(), contexts.data(), contexts.size());
    fill_normal<<<64, 256, 0, stream>>>(reinterpret_cast<std::uint8_t*>(q_.data()), static_cast<std::int64_t>(q_.size()), DType::f16, 4);
    check(cudaStreamSynchronize(stream), "batches");
  }

  std::int64_t bytes() const { return workload_.sequences * pages_a_sequence_ * pool_.layout.page_bytes(); }

  DecodeAttentionArgs args(std::int64_t batch) {
    return {.dtype = DType::f16,
            .q = q_.data(),
            .q_stride = kHeads * kDim,
            .out = out_.data(),
            .out_stride = kHeads * kDim,
            .heads = kHeads,
            .softmax_scale = 0.08838834764f,
            .kv = {&pool_.layout, reinterpret_cast<std::byte*>(const_cast<std::uint8_t*>(pool_.keys.data())),
                   reinterpret_cast<std::byte*>(const_cast<std::uint8_t*>(pool_.values.data())), pool_.ones.data(), pool_.ones.data()},
            .page_table = tables_.data() + batch * workload_.sequences * pages_a_sequence_,
            .page_table_stride = pages_a_sequence_,
            .contexts = contexts_.data(),
            .sequences = workload_.sequences,
            .rows = 1,
            .workspace = workspace_.data()};
  }

  // Microseconds a launch.
  template <class Launch>
  double measure(const Launch& launch) {
    const StepGraph graph(stream_, [&] {
      for (std::int64_t batch = 0; batch < count_; ++batch) launch(args(batch));
    });
    std::vector<double> times;
    Event begin, end;
    for (int replay = -3; replay < kReplays; ++replay) {
      begin.record(stream_);
      graph.launch(stream_);
      end.record(stream_);
      const double time = end.milliseconds_since(begin) * 1000.0 / count_;
      if (replay >= 0) times.push_back(time);
    }
    std::nth_element(times.begin(), times.begin() + kReplays / 2, times.end());
    return times[kReplays / 2];
  }

  double product() {
    decode_attention_plan(stream_, args(0));
    return measure([&](const DecodeAttentionArgs& a) { decode_attention(stream_, a); });
  }

  template <DecodeConfig kConfig>
  double tuned() {
    int ctas = 0;
    check(cudaDeviceGetAttribute(&ctas, cudaDevAttrMultiProcessorCount, 0), "multiprocessors");
    ctas *= kConfig.tuning.ctas_per_sm;
    const auto params = [&](const DecodeAttentionArgs& a) {
      const DecodeWorkspace workspace(a.workspace, a.sequences, ctas, kConfig.tuning.warps, kConfig.part_floats());
      keel::check(workspace.bytes <= workspace_.bytes(), "workspace of the sweep");
      return DecodeParams{.q = a.q,
                          .q_stride = a.q_stride,
                          .out = a.out,
                          .out_stride = a.out_stride,
                          .bf16 = false,
                          .keys = a.kv.keys,
                          .values = a.kv.values,
                          .key_page_bytes = a.kv.layout->key_page_bytes(),
                          .value_page_bytes = a.kv.layout->value_page_bytes(),
                          .key_scales = a.kv.key_scales,
                          .value_scales = a.kv.value_scales,
                          .page_table = a.page_table,
                          .page_table_stride = a.page_table_stride,
                          .contexts = a.contexts,
                          .sequences = static_cast<int>(a.sequences),
                          .rows = 1,
                          .group = kHeads / kKvHeads,
                          .blocks = 1,
                          .units = kKvHeads,
                          .scale_log2 = a.softmax_scale * 1.4426950408889634f,
                          .workspace = workspace};
    };
    plan_decode(stream_, params(args(0)), ctas, kConfig.tuning.warps);
    return measure([&](const DecodeAttentionArgs& a) { launch_decode<kConfig>(stream_, params(a), ctas); });
  }

 private:
  cudaStream_t stream_;
  const Pool& pool_;
  Workload workload_;
  std::int64_t pages_a_sequence_, count_;
  DeviceBuffer<std::int32_t> tables_, contexts_;
  DeviceBuffer<std::uint16_t> q_, out_;
  DeviceBuffer<std::uint8_t> workspace_;
};

constexpr DecodeConfig only_loads(DecodeConfig config) {
  config.load_only = true;
  return config;
}

template <DType kKey, DType kValue>
void print_product(cudaStream_t stream, const char* name) {
  const Pool pool(stream, {kKey, kValue});
  for (const Workload& workload : kWorkloads) {
    Batches batches(stream, pool, workload);
    const double time = batches.product(), again = batches.product();
    const double loads = batches.tuned<only_loads(decode_config(kKey, kValue, kDim, 1))>();
    std::printf("%-8s %3d x %5d  %7.1f %7.1f us  %5.0f GB/s   loads alone %7.1f us  %5.0f GB/s  %3.0f %%\n", name, workload.sequences,
                workload.context, time, again, batches.bytes() / time / 1e3, loads, batches.bytes() / loads / 1e3, 100 * loads / time);
    std::fflush(stdout);
  }
}

template <DecodeConfig kConfig>
void print_tuning(std::vector<Batches*> workloads) {
  std::printf("  %2d warps x %d stages x %d CTAs", kConfig.tuning.warps, kConfig.tuning.stages, kConfig.tuning.ctas_per_sm);
  for (Batches* batches : workloads) {
    std::printf("  %7.1f (%6.1f)", batches->tuned<kConfig>(), batches->tuned<only_loads(kConfig)>());
  }
  std::printf("\n");
  std::fflush(stdout);
}

template <DType kKey, DType kValue, DecodeTuning... kTunings>
void print_sweep(cudaStream_t stream, const char* name) {
  const Pool pool(stream, {kKey, kValue});
  std::vector<Batches> batches;
  for (const Workload& workload : kWorkloads) batches.emplace_back(stream, pool, workload);
  std::vector<Batches*> pointers;
  for (Batches& each : batches) pointers.push_back(&each);
  std::printf("%s: us at 32 x 8192, 32 x 1024, 1 x 8192, 8 x 32768 (loads alone)\n", name);
  (print_tuning<DecodeConfig{kKey, kValue, kDim, 1, kTunings}>(pointers), ...);
}

int run(bool sweep) {
  const FoundDevice device = find_device();
  if (!device.usable) {
    std::fprintf(stderr, "decode_cuda_bench: %s\n", device.reason.c_str());
    return 1;
  }
  const Stream stream;
  constexpr DType k16 = DType::f16, k8 = DType::e4m3, k4 = DType::u4;
  if (sweep) {
    print_sweep<k16, k16, DecodeTuning{12, 2, 1}, DecodeTuning{13, 2, 1}, DecodeTuning{8, 3, 1}>(stream, "k16v16");
    print_sweep<k16, k8, DecodeTuning{16, 2, 1}, DecodeTuning{11, 3, 1}, DecodeTuning{8, 4, 1}>(stream, "k16v8");
    print_sweep<k8, k8, DecodeTuning{16, 3, 1}, DecodeTuning{12, 4, 1}, DecodeTuning{8, 2, 2}>(stream, "k8v8");
    print_sweep<k16, k4, DecodeTuning{16, 2, 1}, DecodeTuning{13, 3, 1}, DecodeTuning{10, 4, 1}>(stream, "k16v4");
    return 0;
  }
  print_product<k16, k16>(stream, "k16v16");
  print_product<k16, k8>(stream, "k16v8");
  print_product<k8, k8>(stream, "k8v8");
  print_product<k16, k4>(stream, "k16v4");
  return 0;
}

}  // namespace
}  // namespace keel::cuda

int main(int argc, char** argv) { return keel::cuda::run(argc > 1 && std::strcmp(argv[1], "--sweep") == 0); }
