// Decode attention alone (decode_cuda_workload.cuh): medians of graph replays that go through a pool.
//
//   decode_cuda_bench           the product's kernels, beside copies alone of the same bytes by the same grid: each launch after
//                               the one before it has ended, and starting early
//   decode_cuda_bench --sweep   every tuning below instead
//   --json FILE                 the product's figures also as JSON lines
#include <cstring>

#include "kernels/cuda_bench.h"
#include "kernels/paged_attention/decode_cuda_workload.cuh"

namespace keel::cuda {
namespace {

constexpr DecodeConfig only_loads(DecodeConfig config) {
  config.load_only = true;
  return config;
}

template <DType kKey, DType kValue>
void print_product(BenchRecords& records, cudaStream_t stream, const char* name) {
  const Pool pool(stream, {kKey, kValue});
  for (const Workload& workload : kWorkloads) {
    Batches batches(stream, pool, workload);
    constexpr DecodeConfig kLoads = only_loads(decode_config(kKey, kValue, kDim, 4));
    double times[2], loads[2];
    for (const bool early : {false, true}) {
      times[early] = batches.product(early);
      loads[early] = batches.tuned<kLoads>(early);
    }
    std::printf("%-8s %3d x %5d ", name, workload.sequences, workload.context);
    for (const bool early : {false, true}) {
      std::printf("  %s %7.1f us %5.0f GB/s  loads alone %7.1f us %3.0f %%", early ? "| early" : "", times[early],
                  batches.bytes() / times[early] / 1e3, loads[early], 100 * loads[early] / times[early]);
    }
    std::printf("\n");
    std::fflush(stdout);
    for (const bool early : {false, true}) {
      records.add({{"format", name}, {"sequences", workload.sequences}, {"context", workload.context}, {"early", early}, {"us", times[early]},
                   {"gb_per_s", batches.bytes() / times[early] / 1e3}, {"loads_us", loads[early]}});
    }
  }
}

template <DecodeConfig kConfig>
void print_tuning(std::vector<Batches*> workloads) {
  std::printf("  %2d warps x %d stages x %d CTAs", kConfig.tuning.warps, kConfig.tuning.stages, kConfig.tuning.ctas_per_sm);
  for (Batches* batches : workloads) {
    std::printf("  %6.1f %6.1f (%6.1f)", batches->tuned<kConfig>(false), batches->tuned<kConfig>(true), batches->tuned<only_loads(kConfig)>(false));
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
  std::printf("%s: us at 32 x 8192, 32 x 1024, 1 x 8192, 8 x 32768: after the launch before, early (loads alone)\n", name);
  (print_tuning<DecodeConfig{kKey, kValue, kDim, 1, true, kTunings}>(pointers), ...);
}

int run(int argc, char** argv) {
  const FoundDevice device = find_device();
  if (!device.usable) {
    std::fprintf(stderr, "decode_cuda_bench: %s\n", device.reason.c_str());
    return 1;
  }
  BenchRecords records("decode_cuda_bench", argc, argv);
  const bool sweep = argc > 1 && std::strcmp(argv[1], "--sweep") == 0;
  const Stream stream;
  constexpr DType k16 = DType::f16, k8 = DType::e4m3, k4 = DType::u4;
  if (sweep) {
    print_sweep<k16, k16, DecodeTuning{8, 3, 1}, DecodeTuning{8, 2, 1}, DecodeTuning{6, 3, 1}>(stream, "k16v16");
    print_sweep<k16, k8, DecodeTuning{8, 4, 1}, DecodeTuning{8, 3, 1}, DecodeTuning{12, 2, 1}, DecodeTuning{10, 3, 1}>(stream, "k16v8");
    print_sweep<k8, k8, DecodeTuning{12, 4, 1}, DecodeTuning{8, 6, 1}, DecodeTuning{8, 4, 1}>(stream, "k8v8");
    print_sweep<k16, k4, DecodeTuning{8, 5, 1}, DecodeTuning{8, 4, 1}, DecodeTuning{12, 3, 1}>(stream, "k16v4");
    return 0;
  }
  print_product<k16, k16>(records, stream, "k16v16");
  print_product<k16, k8>(records, stream, "k16v8");
  print_product<k8, k8>(records, stream, "k8v8");
  print_product<k16, k4>(records, stream, "k16v4");
  print_product<DType::bf16, DType::bf16>(records, stream, "bf16");
  print_product<DType::bf16, k8>(records, stream, "bf16/v8");
  return 0;
}

}  // namespace
}  // namespace keel::cuda

int main(int argc, char** argv) { return keel::cuda::run(argc, argv); }
