#include "device/cuda.h"
#include "kernels/paged_attention/prefill_cuda_bench_clock.h"

namespace keel::cuda {
namespace {

__global__ void __launch_bounds__(1024) read_clocks_kernel(ClockTick* ticks) {
  if (threadIdx.x != 0) return;
  unsigned multiprocessor;
  std::int64_t nanoseconds;
  asm volatile("mov.u32 %0, %%smid;" : "=r"(multiprocessor));
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(nanoseconds));
  ticks[multiprocessor] = {clock64(), nanoseconds};
}

}  // namespace

// So many large blocks that each multiprocessor gets one.
void read_clocks(cudaStream_t stream, ClockTick* ticks, int multiprocessors) {
  read_clocks_kernel<<<2 * multiprocessors, 1024, 0, stream>>>(ticks);
  check_launch("read_clocks");
}

}  // namespace keel::cuda
