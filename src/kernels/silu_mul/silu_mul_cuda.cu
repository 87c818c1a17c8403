#include "device/cuda.h"
#include "kernels/silu_mul/silu_mul_cuda.h"
#include "kernels/vector_cuda.h"

namespace keel::cuda {
namespace {

constexpr int kThreads = 256;

// e^-x overflows to infinity for very negative x, where the quotient is the -0 that it should round to.
__device__ float silu(float x) { return __fdividef(x, 1.0f + __expf(-x)); }

template <class T>
__global__ void __launch_bounds__(kThreads) silu_mul_kernel(const uint4* gate_up, uint4* out, std::int64_t vectors) {
  const std::int64_t row = blockIdx.x;
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.y) * kThreads + threadIdx.x;
  if (i >= vectors) return;
  const uint4 gates = gate_up[row * 2 * vectors + i];
  const uint4 ups = gate_up[row * 2 * vectors + vectors + i];
  float gate[kVector], up[kVector];
  unpack<T>(gates, gate);
  unpack<T>(ups, up);
#pragma unroll
  for (int j = 0; j < kVector; ++j) gate[j] = silu(gate[j]) * up[j];
  out[row * vectors + i] = pack<T>(gate);
}

}  // namespace

void silu_mul(cudaStream_t stream, const SiluMulArgs& args) {
  if (args.rows == 0) return;
  keel::check(args.width % kVector == 0, "a gated row is whole 16-byte vectors");
  const std::int64_t vectors = args.width / kVector;
  const dim3 grid(static_cast<unsigned>(args.rows), static_cast<unsigned>((vectors + kThreads - 1) / kThreads));
  with_model_type(args.dtype, "silu_mul", [&]<class T>(T) {
    silu_mul_kernel<T><<<grid, kThreads, 0, stream>>>(static_cast<const uint4*>(args.gate_up), static_cast<uint4*>(args.out), vectors);
  });
  check_launch("silu_mul");
}

}  // namespace keel::cuda
