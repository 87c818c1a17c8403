// Launches that overlap: a kernel starts while the one before it on the stream drains (programmatic dependent launch).
//
// The rule for every kernel launched with Start::early, and for every kernel before one:
// - before it calls wait_for_previous_kernel() it reads nothing but constants (weights, tables) and what was copied to the device
//   before the step's first kernel, and writes nothing. So a kernel that has ended implies that all before it have;
// - it may call allow_next_kernel() at any place if the next one keeps to that, else only after its own wait. Then, when the next
//   one starts, all kernels but its predecessor have ended: what those wrote may be
//   read before the wait, past L1 (__ldcg, bulk copies), which may hold what it held for an earlier kernel. Decode attention
//   reads so; rope_write comes before it.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>

#include "device/cuda.h"

namespace keel::cuda {

// Returns when the kernel before has ended and what it wrote is visible; at once in a kernel that did not start early.
__device__ inline void wait_for_previous_kernel() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
// The next kernel may start once every CTA has called this or ended.
__device__ inline void allow_next_kernel() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }

enum class Start { after_previous, early };

template <class... Parameters, class... Arguments>
void launch(const char* name, void (*kernel)(Parameters...), cudaStream_t stream, dim3 grid, dim3 block, std::size_t shared_bytes,
            Start start, Arguments&&... arguments) {
  cudaLaunchAttribute overlap = {};
  overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  overlap.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = &overlap;
  config.numAttrs = start == Start::early ? 1 : 0;
  check(cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...), name);
}

}  // namespace keel::cuda
