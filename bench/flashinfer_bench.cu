// FlashInfer's decode attention beside keel's: the same values, queries, page ids and pool sizes in one process, in turns.
//
// Wants FlashInfer's headers, which are not part of keel: the folder include/ of the PyPI package flashinfer-python, and the
// setting -DKEEL_FLASHINFER_INCLUDE=FOLDER. Its tensor-core path is measured (the kernel for prompts, query heads packed into
// 16 rows; its decode kernel without tensor cores is slower for 4 query heads a KV head), planned once on the host for the
// exact lengths, its pages in its own order [page, slot, head, dim]. It serves one type for keys and values.
//
//   flashinfer_bench [ROUNDS]     medians of a round's graph replays, one line a round (default 3)
#include <flashinfer/attention/default_prefill_params.cuh>
#include <flashinfer/attention/prefill.cuh>
#include <flashinfer/attention/scheduler.cuh>
#include <flashinfer/attention/variants.cuh>

#include <cmath>
#include <cstdlib>

#include "kernels/paged_attention/decode_cuda_workload.cuh"
#include "kv/cuda_page.h"

namespace keel::cuda {
namespace {

constexpr float kSoftmaxScale = 0.08838834764f;

// One array's pages from keel's order to FlashInfer's, 16 bytes a thread.
__global__ void to_slot_order(const uint4* from, uint4* to, std::int64_t chunks, int row_bytes) {
  const int chunks_a_row = row_bytes / 16;
  for (std::int64_t i = blockIdx.x * std::int64_t{blockDim.x} + threadIdx.x; i < chunks; i += std::int64_t{gridDim.x} * blockDim.x) {
    const int chunk = static_cast<int>(i % chunks_a_row), head = static_cast<int>(i / chunks_a_row % kKvHeads);
    const int slot = static_cast<int>(i / chunks_a_row / kKvHeads % 16);
    const std::int64_t page = i / chunks_a_row / kKvHeads / 16;
    to[i] = from[((page * kKvHeads + head) * 16 + slot) * chunks_a_row + swizzled_chunk(row_bytes, slot, chunk)];
  }
}

template <class Element>
class FlashInfer {
  using Params = flashinfer::BatchPrefillPagedParams<half, Element, half, std::int32_t>;
  using Variant = flashinfer::DefaultAttention<false, false, false, false>;

 public:
  FlashInfer(cudaStream_t stream, const Pool& pool)
      : stream_(stream), keys_(pool.keys.size(), "keys"), values_(pool.values.size(), "values"), floats_(256 << 20, "workspace"),
        integers_(16 << 20, "workspace"), pinned_(16 << 20, "workspace") {
    const auto convert = [&](const DeviceBuffer<std::uint8_t>& from, DeviceBuffer<std::uint8_t>& to) {
      const std::int64_t page_bytes = kKvHeads * 16 * kDim * sizeof(Element);
      to_slot_order<<<2048, 256, 0, stream>>>(reinterpret_cast<const uint4*>(from.data()), reinterpret_cast<uint4*>(to.data()),
                                              pool.pages * page_bytes / 16, kDim * sizeof(Element));
      check_launch("pages");
    };
    convert(pool.keys, keys_);
    convert(pool.values, values_);
    check(cudaStreamSynchronize(stream), "pages");
  }

  void plan(Workload workload, std::int64_t pages_a_sequence) {
    workload_ = workload;
    const int sequences = workload.sequences;
    std::vector<std::int32_t> rows(sequences + 1), pages(sequences + 1);
    for (int i = 0; i <= sequences; ++i) {
      rows[i] = i;
      pages[i] = static_cast<std::int32_t>(i * pages_a_sequence);
    }
    rows_ = DeviceBuffer<std::int32_t>(rows.size(), "rows");
    pages_ = DeviceBuffer<std::int32_t>(pages.size(), "pages");
    last_page_ = DeviceBuffer<std::int32_t>(sequences, "last pages");
    const std::vector<std::int32_t> full(sequences, 16);
    copy_to_device(stream_, rows_.data(), rows.data(), rows.size());
    copy_to_device(stream_, pages_.data(), pages.data(), pages.size());
    copy_to_device(stream_, last_page_.data(), full.data(), full.size());
    check(flashinfer::PrefillPlan<std::int32_t>(floats_.data(), floats_.bytes(), integers_.data(), pinned_.data(), integers_.bytes(),
                                                info_, rows.data(), pages.data(), sequences, sequences, kHeads, kKvHeads, kDim, kDim, 16,
                                                false, 2, -1, -1, false, 0, stream_),
          "FlashInfer's plan");
    check(cudaStreamSynchronize(stream_), "plan");
    keel::check(info_.cta_tile_q == 16, "FlashInfer's plan: a tile of 16 rows");
  }

  void launch(const DecodeAttentionArgs& args, bool early) {
    auto* const q = const_cast<half*>(static_cast<const half*>(args.q));
    flashinfer::paged_kv_t<Element, std::int32_t> kv(kKvHeads, 16, kDim, workload_.sequences, flashinfer::QKVLayout::kNHD,
                                                     reinterpret_cast<Element*>(keys_.data()), reinterpret_cast<Element*>(values_.data()),
                                                     const_cast<std::int32_t*>(args.page_table), pages_.data(), last_page_.data());
    Params params(q, kv, nullptr, rows_.data(), nullptr, nullptr, static_cast<half*>(args.out), nullptr, nullptr, kHeads,
                  kHeads * kDim, kDim, -1, 0.0f, kSoftmaxScale, 1.0f, 1e4f);
    const auto at = [&](std::int64_t offset) { return reinterpret_cast<std::int32_t*>(integers_.data() + offset); };
    params.request_indices = at(info_.request_indices_offset);
    params.qo_tile_indices = at(info_.qo_tile_indices_offset);
    params.kv_tile_indices = at(info_.kv_tile_indices_offset);
    params.o_indptr = at(info_.o_indptr_offset);
    params.kv_chunk_size_ptr = at(info_.kv_chunk_size_ptr_offset);
    half* partial_values = nullptr;
    float* partial_sums = nullptr;
    if (info_.split_kv) {
      params.merge_indptr = at(info_.merge_indptr_offset);
      partial_values = reinterpret_cast<half*>(floats_.data() + info_.v_offset);
      partial_sums = reinterpret_cast<float*>(floats_.data() + info_.s_offset);
    }
    params.padded_batch_size = info_.padded_batch_size;
    params.max_total_num_rows = info_.total_num_rows;
    check(flashinfer::BatchPrefillWithPagedKVCacheDispatched<16, kDim, kDim, flashinfer::PosEncodingMode::kNone, false,
                                                             flashinfer::MaskMode::kNone, Variant, Params>(
              params, partial_values, partial_sums, early, stream_),
          "FlashInfer's kernel");
  }

 private:
  cudaStream_t stream_;
  Workload workload_{};
  DeviceBuffer<std::uint8_t> keys_, values_, floats_, integers_;
  PinnedBuffer<std::uint8_t> pinned_;
  DeviceBuffer<std::int32_t> rows_, pages_, last_page_;
  flashinfer::PrefillPlanInfo info_;
};

std::vector<float> read(cudaStream_t stream, const DecodeAttentionArgs& args) {
  std::vector<half> raw(args.sequences * kHeads * kDim);
  copy_to_host(stream, raw.data(), static_cast<const half*>(args.out), raw.size());
  check(cudaStreamSynchronize(stream), "outputs");
  return {raw.begin(), raw.end()};
}

// Both answer the same question: the largest difference as a part of the largest output. Their roundings differ.
double difference(cudaStream_t stream, const DecodeAttentionArgs& args, const auto& ours, const auto& theirs) {
  ours();
  const std::vector<float> a = read(stream, args);
  check(cudaMemsetAsync(args.out, 0xff, args.sequences * kHeads * kDim * 2, stream), "poison");
  theirs();
  const std::vector<float> b = read(stream, args);
  double largest = 0, most = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double apart = std::abs(double{a[i]} - b[i]);
    largest = std::isfinite(apart) ? std::max(largest, apart) : INFINITY;
    most = std::max<double>(most, std::abs(a[i]));
  }
  return largest / most;
}

template <DType kType, class Element>
void compare(cudaStream_t stream, const char* name, int rounds) {
  const Pool pool(stream, {kType, kType});
  FlashInfer<Element> theirs(stream, pool);
  for (const Workload& workload : kWorkloads) {
    Batches batches(stream, pool, workload);
    theirs.plan(workload, batches.pages_a_sequence());
    decode_attention_plan(stream, batches.args(0, false));
    const double apart = difference(stream, batches.args(0, false), [&] { decode_attention(stream, batches.args(0, false)); },
                                    [&] { theirs.launch(batches.args(0, false), false); });
    keel::check(apart < 0.02, "FlashInfer and keel answer differently");
    for (int round = 0; round < rounds; ++round) {
      double us[2][2];
      for (const bool early : {false, true}) {
        us[0][early] = batches.product(early);
        us[1][early] = batches.measure([&](std::int64_t batch) { theirs.launch(batches.args(batch, false), early); });
      }
      std::printf("%-7s %2d x %5d  keel %6.1f us, early %6.1f   FlashInfer %6.1f, early %6.1f   keel / FlashInfer %.3f, early %.3f   apart %.1e\n",
                  name, workload.sequences, workload.context, us[0][0], us[0][1], us[1][0], us[1][1], us[0][0] / us[1][0], us[0][1] / us[1][1], apart);
      std::fflush(stdout);
    }
  }
}

int run(int rounds) {
  const FoundDevice device = find_device();
  if (!device.usable) {
    std::fprintf(stderr, "flashinfer_bench: %s\n", device.reason.c_str());
    return 1;
  }
  const Stream stream;
  compare<DType::f16, half>(stream, "k16v16", rounds);
  compare<DType::e4m3, __nv_fp8_e4m3>(stream, "k8v8", rounds);
  return 0;
}

}  // namespace
}  // namespace keel::cuda

int main(int argc, char** argv) { return keel::cuda::run(argc > 1 ? std::atoi(argv[1]) : 3); }
