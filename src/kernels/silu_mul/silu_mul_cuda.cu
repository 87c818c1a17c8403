#include "device/launch.cuh"
#include "kernels/silu_mul/silu.cuh"
#include "kernels/silu_mul/silu_mul_cuda.h"
#include "kernels/vector_cuda.h"

namespace keel::cuda {
namespace {

constexpr int kThreads = 256;

template <class T>
__global__ void __launch_bounds__(kThreads) silu_mul_kernel(const uint4* gate_up, uint4* out, std::int64_t vectors) {
  allow_next_kernel();  // before the wait: what follows reads only weights and tables ahead
  wait_for_previous_kernel();
  const std::int64_t row = blockIdx.x;
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.y) * kThreads + threadIdx.x;
  if (i >= vectors) return;
  const uint4 gates = gate_up[(row * vectors + i) * 2];
  const uint4 ups = gate_up[(row * vectors + i) * 2 + 1];
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
    launch("silu_mul", silu_mul_kernel<T>, stream, grid, kThreads, 0, Start::early, static_cast<const uint4*>(args.gate_up), static_cast<uint4*>(args.out), vectors);
  });
}

}  // namespace keel::cuda
