#include "kernels/paged_attention/decode_cuda_kernel.cuh"

namespace keel::cuda {

void launch_decode_bf16_keys(cudaStream_t stream, const DecodeParams& params, DType value, int dim, int ctas) {
  switch (value) {
    case DType::bf16: return launch_decode_pair<DType::bf16, DType::bf16>(stream, params, dim, ctas);
    case DType::e4m3: return launch_decode_pair<DType::bf16, DType::e4m3>(stream, params, dim, ctas);
    case DType::u4: return launch_decode_pair<DType::bf16, DType::u4>(stream, params, dim, ctas);
    default: keel::check(false, "refused values have reached decode attention");
  }
}

}  // namespace keel::cuda
