// What the tests of CUDA's kernels share: a device or a skip, arrays there and back, 16-bit inputs.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "base/dtype.h"
#include "base/random.h"
#include "device/cuda.h"

namespace keel::cuda {

class CudaKernel : public testing::Test {
 protected:
  void SetUp() override {
    if (const FoundDevice found = find_device(); !found.usable) GTEST_SKIP() << found.reason;
  }
};

template <class T>
DeviceBuffer<T> on_device(const std::vector<T>& host) {
  DeviceBuffer<T> device(host.size(), "a test's array");
  check(cudaMemcpy(device.data(), host.data(), host.size() * sizeof(T), cudaMemcpyHostToDevice), "copy to the device");
  check(cudaDeviceSynchronize(), "copy to the device");  // one from pageable memory may still be under way, and no test's stream waits for it
  return device;
}

template <class T>
std::vector<T> on_host(const DeviceBuffer<T>& device) {
  std::vector<T> host(device.size());
  check(cudaMemcpy(host.data(), device.data(), host.size() * sizeof(T), cudaMemcpyDeviceToHost), "copy to the host");
  return host;
}

inline std::uint16_t to_bits(DType dtype, float x) {
  return dtype == DType::f16 ? static_cast<std::uint16_t>(to_half(x)) : static_cast<std::uint16_t>(to_bf16(x));
}
inline float from_bits(DType dtype, std::uint16_t raw) { return dtype == DType::f16 ? to_float(Half(raw)) : to_float(Bf16(raw)); }

inline float roundoff(DType dtype) { return dtype == DType::f16 ? 0x1p-11f : 0x1p-8f; }
// Half the step of the smallest numbers.
inline float least_error(DType dtype) { return dtype == DType::f16 ? 0x1p-25f : 0x1p-134f; }

// Roughly normal, of deviation `scale`.
inline float random_normal(std::uint64_t seed, std::uint64_t i) {
  double sum = -6;
  for (int k = 0; k < 12; ++k) sum += random_unit(seed, 12 * i + k);
  return static_cast<float>(sum);
}

inline std::vector<std::uint16_t> random_bits(DType dtype, std::size_t count, std::uint64_t seed, float scale = 1) {
  std::vector<std::uint16_t> raw(count);
  for (std::size_t i = 0; i < count; ++i) raw[i] = to_bits(dtype, scale * random_normal(seed, i));
  return raw;
}

constexpr DType kModelTypes[] = {DType::f16, DType::bf16};

}  // namespace keel::cuda
