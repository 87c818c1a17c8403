#include "kernels/paged_attention/decode_cuda_kernel.cuh"

namespace keel::cuda {

void launch_decode_e4m3_keys(cudaStream_t stream, const DecodeParams& params, DType value, int dim, int ctas) {
  switch (value) {
    case DType::f16: return launch_decode_pair<DType::e4m3, DType::f16>(stream, params, dim, ctas);
    case DType::bf16: return launch_decode_pair<DType::e4m3, DType::bf16>(stream, params, dim, ctas);
    case DType::e4m3: return launch_decode_pair<DType::e4m3, DType::e4m3>(stream, params, dim, ctas);
    case DType::u4: return launch_decode_pair<DType::e4m3, DType::u4>(stream, params, dim, ctas);
    default: keel::check(false, "refused values have reached decode attention");
  }
}

}  // namespace keel::cuda
