// A step's attention call by call, and rows stored from outside, for checks of what runs.
#include <algorithm>

#include "base/bytes.h"
#include "base/error.h"
#include "kernels/kv_write/kv_write_cuda.h"
#include "model/cuda_decoder.h"

namespace keel::cuda {

std::vector<std::uint16_t> CudaDecoder::host_rows(const DeviceBuffer<std::uint16_t>& buffer, std::int64_t count) {
  std::vector<std::uint16_t> rows(static_cast<std::size_t>(count));
  copy_to_host(stream_, rows.data(), buffer.data(), rows.size());
  stream_.synchronize();
  return rows;
}

// Of each row of `stride` numbers those from `from` on.
std::vector<float> CudaDecoder::widened(std::span<const std::uint16_t> rows, std::int64_t from, std::int64_t width, std::int64_t stride) const {
  std::vector<float> floats;
  for (std::size_t row = 0; row < rows.size(); row += static_cast<std::size_t>(stride)) {
    for (const std::uint16_t bits : rows.subspan(row + static_cast<std::size_t>(from), static_cast<std::size_t>(width))) {
      floats.push_back(dtype_ == DType::bf16 ? to_float(Bf16(bits)) : to_float(Half(bits)));
    }
  }
  return floats;
}

void CudaDecoder::launch_probed_attention(std::int64_t index, const StepRows& rows, AttentionPlan& plan) {
  const auto tokens = static_cast<std::int64_t>(rows.tokens.size());
  const std::int64_t q_width = config_.heads * config_.head_dim, kv_width = config_.kv_heads * config_.head_dim, stride = q_width + 2 * kv_width;
  std::vector<std::uint16_t> stored = host_rows(qkv_, tokens * stride);
  std::vector<float> q = widened(stored, 0, q_width, stride);
  const std::vector<float> k = widened(stored, q_width, kv_width, stride), v = widened(fresh_values_, q_width + kv_width, kv_width, stride);
  AttentionCall call{.layer = index, .rows = rows, .q = q, .k = k, .v = v, .read_layer = index};
  probe_->before(call);
  if (call.q_changed) {
    for (std::size_t i = 0; i < q.size(); ++i) {
      const auto width = static_cast<std::size_t>(q_width);
      stored[i / width * static_cast<std::size_t>(stride) + i % width] =
          dtype_ == DType::bf16 ? static_cast<std::uint16_t>(to_bf16(q[i])) : static_cast<std::uint16_t>(to_half(q[i]));
    }
    copy_to_device(stream_, qkv_.data(), stored.data(), stored.size());
  }
  faults_ = {.read_layer = call.read_layer, .values_are_keys = call.values_are_keys, .native_refuses = call.native_refuses};
  launch_attention(index, rows, plan);
  faults_ = {};
  const std::vector<float> out = widened(host_rows(attended_, tokens * q_width), 0, q_width, q_width);
  call.out = out;
  probe_->after(call);
}

void CudaDecoder::store(std::int64_t layer, std::span<const float> k, std::span<const float> v, std::span<const std::int64_t> slots) {
  const auto tokens = static_cast<std::int64_t>(slots.size());
  const std::int64_t q_width = config_.heads * config_.head_dim, kv_width = config_.kv_heads * config_.head_dim, stride = q_width + 2 * kv_width;
  keel::check(tokens <= limits_.max_tokens, "rows to store must fit the decoder's scratch");
  std::vector<std::uint16_t> rows(static_cast<std::size_t>(tokens * stride));
  const auto narrow = [&](float x) { return dtype_ == DType::bf16 ? static_cast<std::uint16_t>(to_bf16(x)) : static_cast<std::uint16_t>(to_half(x)); };
  for (std::int64_t i = 0; i < tokens * kv_width; ++i) {
    std::uint16_t* row = rows.data() + i / kv_width * stride + q_width + i % kv_width;
    row[0] = narrow(k[static_cast<std::size_t>(i)]);
    row[kv_width] = narrow(v[static_cast<std::size_t>(i)]);
  }
  std::copy(slots.begin(), slots.end(), slots_.host.data());
  std::fill_n(positions_.host.data(), tokens, 0);
  copy_to_device(stream_, qkv_.data(), rows.data(), rows.size());
  slots_.send(stream_, tokens);
  positions_.send(stream_, tokens);
  rope_write(stream_, {.dtype = dtype_, .q = qkv_.data(), .k = qkv_.data() + q_width, .v = qkv_.data() + q_width + kv_width, .stride = stride,
                       .tokens = tokens, .heads = config_.heads, .rotary_dim = 0, .pairs = config_.rope_pairs, .rope_table = rope_table_.data(),
                       .positions = positions_.device.data(), .slots = slots_.device.data(), .kv = cache(layer)});
  stream_.synchronize();
}
}  // namespace keel::cuda
