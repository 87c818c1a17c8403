#include "kernels/paged_attention/decode_cuda_kernel.cuh"

namespace keel::cuda {

void launch_decode_f16_keys(cudaStream_t stream, const DecodeParams& params, DType value, int dim, int ctas) {
  switch (value) {
    case DType::f16: return launch_decode_pair<DType::f16, DType::f16>(stream, params, dim, ctas);
    case DType::e4m3: return launch_decode_pair<DType::f16, DType::e4m3>(stream, params, dim, ctas);
    case DType::u4: return launch_decode_pair<DType::f16, DType::u4>(stream, params, dim, ctas);
    default: keel::check(false, "refused values have reached decode attention");
  }
}

}  // namespace keel::cuda
