// Workloads for benchmarks of decode attention: 32 query heads over 8 KV heads of 128 dimensions, shuffled pages of 16 tokens,
// near-normal data, in pools larger than the L2 cache.
#pragma once

#include <cuda_fp8.h>

#include <algorithm>
#include <cstdio>
#include <vector>

#include "base/random.h"
#include "kernels/paged_attention/decode_cuda.h"
#include "kernels/paged_attention/decode_cuda_kernel.cuh"

namespace keel::cuda {

inline constexpr int kHeads = 32, kKvHeads = 8, kDim = 128, kReplays = 25;
inline constexpr std::int64_t kPoolBytes = std::int64_t{2} << 30;

struct Workload {
  int sequences, context;
};
inline constexpr Workload kWorkloads[] = {{32, 8192}, {32, 1024}, {1, 8192}, {8, 32768}};

static __global__ void fill_normal(std::uint8_t* data, std::int64_t elements, DType type, std::uint64_t seed) {
  for (std::int64_t i = blockIdx.x * std::int64_t{blockDim.x} + threadIdx.x; i < elements; i += std::int64_t{gridDim.x} * blockDim.x) {
    const std::uint64_t x = random_u64(seed, i);
    const float sum = static_cast<float>((x & 0xffff) + (x >> 16 & 0xffff) + (x >> 32 & 0xffff) + (x >> 48));
    const float normal = (sum / 65536 - 2) * 1.7320508f;
    if (type == DType::f16) {
      reinterpret_cast<__half*>(data)[i] = __float2half(normal);
    } else if (type == DType::bf16) {
      reinterpret_cast<__nv_bfloat16*>(data)[i] = __float2bfloat16(normal);
    } else {
      data[i] = __nv_fp8_e4m3(normal).__x;
    }
  }
}
// Codes at random; scale 1/4, zero -15/8.
static __global__ void fill_u4(std::uint8_t* data, std::int64_t pages, std::int64_t code_bytes, std::int64_t page_bytes) {
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
    fill_normal<<<64, 256, 0, stream>>>(reinterpret_cast<std::uint8_t*>(q_.data()), static_cast<std::int64_t>(q_.size()), dtype(), 4);
    check(cudaStreamSynchronize(stream), "batches");
  }

  // Of queries and outputs.
  DType dtype() const { return pool_.layout.format().key == DType::bf16 ? DType::bf16 : DType::f16; }
  std::int64_t count() const { return count_; }
  std::int64_t pages_a_sequence() const { return pages_a_sequence_; }
  std::int64_t bytes() const { return workload_.sequences * pages_a_sequence_ * pool_.layout.page_bytes(); }

  DecodeAttentionArgs args(std::int64_t batch, bool early) {
    return {.dtype = dtype(),
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
            .early = early,
            .workspace = workspace_.data()};
  }

  // Microseconds a launch of launch(batch).
  template <class Launch>
  double measure(const Launch& launch) {
    // About as many as a step's layers, so that the graph's own launch weighs as little as there.
    const std::int64_t launches = std::max(count_, 32 / count_ * count_);
    const StepGraph graph(stream_, [&] {
      for (std::int64_t i = 0; i < launches; ++i) launch(i % count_);
    });
    std::vector<double> times;
    Event begin, end;
    for (int replay = -3; replay < kReplays; ++replay) {
      begin.record(stream_);
      graph.launch(stream_);
      end.record(stream_);
      const double time = end.milliseconds_since(begin) * 1000.0 / launches;
      if (replay >= 0) times.push_back(time);
    }
    std::nth_element(times.begin(), times.begin() + kReplays / 2, times.end());
    return times[kReplays / 2];
  }

  // The product's kernel; `early`: each launch may start while the one before it drains.
  double product(bool early) {
    decode_attention_plan(stream_, args(0, false));
    return measure([&](std::int64_t batch) { decode_attention(stream_, args(batch, early)); });
  }

  template <DecodeConfig kConfig>
  double tuned(bool early) {
    int ctas = 0;
    check(cudaDeviceGetAttribute(&ctas, cudaDevAttrMultiProcessorCount, 0), "multiprocessors");
    ctas *= kConfig.tuning.ctas_per_sm;
    const auto params = [&](const DecodeAttentionArgs& a) {
      const DecodeWorkspace workspace(a.workspace, a.sequences, ctas, kConfig);
      keel::check(workspace.bytes <= workspace_.bytes(), "workspace of the sweep");
      return DecodeParams{.q = a.q,
                          .q_stride = a.q_stride,
                          .out = a.out,
                          .out_stride = a.out_stride,
                          .bf16 = a.dtype == DType::bf16,
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
                          .early = a.early,
                          .workspace = workspace};
    };
    plan_decode(stream_, params(args(0, false)), ctas, kConfig.tuning.warps);
    return measure([&](std::int64_t batch) { launch_decode<kConfig>(stream_, params(args(batch, early)), ctas); });
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

}  // namespace keel::cuda
