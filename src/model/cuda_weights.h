// A model's tensors in device memory: 16-bit matrices in the model's type, AWQ's packed, vectors in f32.
#pragma once

#include <memory>
#include <vector>

#include "base/worker_pool.h"
#include "device/cuda.h"
#include "kernels/gemm/gemm_cuda.h"
#include "model/weights.h"

namespace keel::cuda {

struct DeviceLayer {
  const float* attention_norm;
  const float* mlp_norm;
  const float* q_norm = nullptr;  // or null
  const float* k_norm = nullptr;
  GemmWeights qkv, o, gate_up, down;  // gate_up: eight rows of each in turn
};

struct DeviceWeights {
  const void* embedding = nullptr;  // [vocabulary, hidden]
  const float* final_norm = nullptr;
  GemmWeights head;
  std::vector<DeviceLayer> layers;
  std::int64_t bytes = 0;                 // of device memory
  std::int64_t awq_scratch_elements = 0;  // the largest packed matrix, 0 for none

  std::vector<DeviceBuffer<std::byte>> owners;
};

// The type that activations and dense weights have on the device: the model's own 16-bit type; f16 for f32 and quantised ones.
DType device_dtype(const ModelConfig& config);

// The model's weights on the device, uploaded once for all executors that use them at the same time: those of one loaded model and of
// its copies, whose tensors must then be the same. Block-quantised and f32 matrices are expanded to `dtype`, which the log says.
std::shared_ptr<const DeviceWeights> device_weights(const LoadedModel& model, DType dtype, WorkerPool& workers);

}  // namespace keel::cuda
