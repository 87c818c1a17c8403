#include "kernels/embed/embed_cuda.h"

#include "device/launch.cuh"

namespace keel::cuda {
namespace {

__global__ void embed_kernel(const uint4* embedding, const std::int32_t* tokens, uint4* out, std::int64_t chunks) {
  allow_next_kernel();  // before the wait: what follows reads only weights and tables ahead
  wait_for_previous_kernel();
  const std::int64_t row = blockIdx.x;
  const uint4* source = embedding + tokens[row] * chunks;
  for (std::int64_t chunk = threadIdx.x; chunk < chunks; chunk += blockDim.x) out[row * chunks + chunk] = source[chunk];
}

}  // namespace

void embed(cudaStream_t stream, const EmbedArgs& args) {
  if (args.rows == 0) return;
  keel::check(args.width % 8 == 0, "an embedding row is whole 16-byte chunks");
  launch("embed", embed_kernel, stream, static_cast<unsigned>(args.rows), 128, 0, Start::early,
         static_cast<const uint4*>(args.embedding), args.tokens, static_cast<uint4*>(args.out), args.width / 8);
}

}  // namespace keel::cuda
