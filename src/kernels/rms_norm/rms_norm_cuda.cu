#include <algorithm>

#include "device/launch.cuh"
#include "kernels/rms_norm/rms_norm_cuda.h"
#include "kernels/vector_cuda.h"

namespace keel::cuda {
namespace {

constexpr int kWarp = 32;
constexpr int kMostThreads = 1024;
constexpr int kMostVectors = 4;  // a thread keeps its part of the row in registers
constexpr std::int64_t kManyRows = 512;  // enough blocks that small ones, several loads a thread, keep memory busier

__device__ float warp_sum(float x) {
  for (int offset = kWarp / 2; offset > 0; offset /= 2) x += __shfl_xor_sync(~0u, x, offset);
  return x;
}

// A block a row. The norm is of the sum as it is stored, rounded.
template <class T, int kVectors>
__global__ void __launch_bounds__(kMostThreads) add_rms_norm_kernel(uint4* residual,
                                                                    const uint4* added,
                                                                    const float4* weight,
                                                                    uint4* out,
                                                                    const std::int32_t* gather,
                                                                    int vectors,
                                                                    float epsilon) {
  allow_next_kernel();  // before the wait: what follows reads only weights and tables ahead
  float4 weights_of_one[2];  // with one vector a thread, read while the kernel before ends
  if (kVectors == 1 && threadIdx.x < vectors) {
    weights_of_one[0] = weight[2 * threadIdx.x];
    weights_of_one[1] = weight[2 * threadIdx.x + 1];
  }
  wait_for_previous_kernel();
  const std::int64_t row = blockIdx.x;
  const std::int64_t source = (gather != nullptr ? gather[row] : row) * vectors;
  uint4 x[kVectors], more[kVectors];
#pragma unroll
  for (int k = 0; k < kVectors; ++k) {
    const int i = threadIdx.x + k * blockDim.x;
    if (i >= vectors) continue;
    x[k] = residual[source + i];
    if (added != nullptr) more[k] = added[source + i];
  }
  float squares = 0;
#pragma unroll
  for (int k = 0; k < kVectors; ++k) {
    const int i = threadIdx.x + k * blockDim.x;
    if (i >= vectors) continue;
    float values[kVector];
    unpack<T>(x[k], values);
    if (added != nullptr) {
      float increments[kVector];
      unpack<T>(more[k], increments);
#pragma unroll
      for (int j = 0; j < kVector; ++j) values[j] += increments[j];
      x[k] = pack<T>(values);
      residual[source + i] = x[k];
      unpack<T>(x[k], values);
    }
#pragma unroll
    for (int j = 0; j < kVector; ++j) squares += values[j] * values[j];
  }

  __shared__ float warp_squares[kMostThreads / kWarp];
  squares = warp_sum(squares);
  if (threadIdx.x % kWarp == 0) warp_squares[threadIdx.x / kWarp] = squares;
  __syncthreads();
  const int lane = threadIdx.x % kWarp;
  squares = warp_sum(lane < blockDim.x / kWarp ? warp_squares[lane] : 0.0f);
  const float inverse = 1.0f / sqrtf(squares / (vectors * kVector) + epsilon);

#pragma unroll
  for (int k = 0; k < kVectors; ++k) {
    const int i = threadIdx.x + k * blockDim.x;
    if (i >= vectors) continue;
    float values[kVector];
    unpack<T>(x[k], values);
    const float4 low = kVectors == 1 ? weights_of_one[0] : weight[2 * i];
    const float4 high = kVectors == 1 ? weights_of_one[1] : weight[2 * i + 1];
    const float weights[kVector] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
    for (int j = 0; j < kVector; ++j) values[j] = values[j] * inverse * weights[j];
    out[row * vectors + i] = pack<T>(values);
  }
}

template <class T, int kVectors>
void launch(cudaStream_t stream, const AddRmsNormArgs& args, int threads) {
  cuda::launch(
      "add_rms_norm", add_rms_norm_kernel<T, kVectors>, stream, static_cast<unsigned>(args.rows), threads, 0, Start::early,
      static_cast<uint4*>(args.residual),
      static_cast<const uint4*>(args.added),
      reinterpret_cast<const float4*>(args.weight),
      static_cast<uint4*>(args.out),
      args.gather,
      static_cast<int>(args.width / kVector),
      args.epsilon);
}

}  // namespace

void add_rms_norm(cudaStream_t stream, const AddRmsNormArgs& args) {
  if (args.rows == 0) return;
  keel::check(args.width % kVector == 0, "a row to be normed is whole 16-byte vectors");
  keel::check(args.gather == nullptr || args.added == nullptr, "gathered rows are normed as they are");
  const std::int64_t vectors = args.width / kVector;
  if (vectors > kMostThreads * kMostVectors) {
    throw Error("rms_norm on CUDA wants rows of at most " + std::to_string(kMostThreads * kMostVectors * kVector) + " elements, found " +
                std::to_string(args.width));
  }
  const std::int64_t per_thread = args.rows < kManyRows ? 1 : kMostVectors;
  const std::int64_t wanted = (vectors + per_thread - 1) / per_thread;
  const int threads = static_cast<int>(std::min<std::int64_t>((wanted + kWarp - 1) / kWarp * kWarp, kMostThreads));
  with_model_type(args.dtype, "rms_norm", [&]<class T>(T) {
    if (vectors <= threads) {
      launch<T, 1>(stream, args, threads);
    } else if (vectors <= 2 * threads) {
      launch<T, 2>(stream, args, threads);
    } else {
      launch<T, kMostVectors>(stream, args, threads);
    }
  });
}

}  // namespace keel::cuda
