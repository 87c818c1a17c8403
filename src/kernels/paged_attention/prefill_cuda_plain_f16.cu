#include "kernels/paged_attention/prefill_cuda_plain.cuh"

namespace keel::cuda::plain {

void launch_f16(cudaStream_t stream, const PlainParameters& p, std::int64_t head_dim) {
  launch<__half, __half>(stream, p, head_dim);
}

}  // namespace keel::cuda::plain
