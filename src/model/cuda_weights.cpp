#include "model/cuda_weights.h"

#include <algorithm>
#include <cstring>
#include <initializer_list>
#include <map>
#include <mutex>

#include "base/error.h"
#include "base/log.h"
#include "kernels/matmul/matmul.h"

namespace keel::cuda {
namespace {

constexpr std::int64_t kStagingBytes = std::int64_t{64} << 20;

WeightType weight_type(DType dtype) { return dtype == DType::bf16 ? WeightType::bf16 : WeightType::f16; }

std::uint16_t to_16_bits(DType dtype, float value) {
  return dtype == DType::bf16 ? static_cast<std::uint16_t>(to_bf16(value)) : static_cast<std::uint16_t>(to_half(value));
}

class Uploader {
 public:
  Uploader(DType dtype, WorkerPool& workers, DeviceWeights& weights)
      : dtype_(dtype), workers_(workers), weights_(weights), staging_(kStagingBytes, "staging of the weights") {}

  std::byte* allocate(std::int64_t bytes, const char* what) {
    weights_.owners.emplace_back(static_cast<std::size_t>(bytes), what, MemoryUse::weights);
    weights_.bytes += bytes;
    return weights_.owners.back().data();
  }

  const float* vector(const float* values, std::int64_t size) {
    if (values == nullptr) return nullptr;
    std::byte* device = allocate(size * 4, "a norm's weights");
    copy(device, reinterpret_cast<const std::byte*>(values), size * 4);
    return reinterpret_cast<const float*>(device);
  }

  // Matrices that share their input, one under another; or, of two, eight rows of each in turn.
  GemmWeights matrices(std::initializer_list<WeightMatrix> parts, std::initializer_list<const float*> biases = {}, bool in_turn = false) {
    GemmWeights result{.dtype = dtype_, .columns = parts.begin()->columns};
    for (const WeightMatrix& part : parts) result.rows += part.rows;
    if (parts.begin()->type == WeightType::awq4) {
      const PackedAwq packed = pack_awq({parts.begin(), parts.end()}, in_turn);
      result.packed = bytes(packed.packed);
      result.group_scales = bytes(packed.group_scales);
      weights_.awq_scratch_elements = std::max(weights_.awq_scratch_elements, result.rows * result.columns);
    } else {
      std::byte* device = allocate(result.rows * result.columns * 2, "weights");
      result.dense = device;
      if (in_turn) {
        const WeightMatrix &first = parts.begin()[0], &second = parts.begin()[1];
        keel::check(parts.size() == 2 && first.rows == second.rows && first.rows % 8 == 0, "two matrices of equal size, whole eights of rows, take turns");
        dense(device, first, 16);
        dense(device + 8 * result.columns * 2, second, 16);
      } else {
        for (const WeightMatrix& part : parts) {
          dense(device, part, 8);
          device += part.rows * part.columns * 2;
        }
      }
    }
    if (biases.size() > 0 && *biases.begin() != nullptr) result.bias = bias(parts, biases, result.rows);
    return result;
  }

 private:
  void copy(std::byte* device, const std::byte* host, std::int64_t bytes) {
    for (std::int64_t done = 0; done < bytes; done += kStagingBytes) {
      const std::int64_t some = std::min(kStagingBytes, bytes - done);
      workers_.parallel_for((some + kPiece - 1) / kPiece, [&](std::int64_t piece, int) {
        const std::int64_t from = piece * kPiece;
        std::memcpy(staging_.data() + from, host + done + from, static_cast<std::size_t>(std::min(kPiece, some - from)));
      });
      flush(device + done, some);
    }
  }

  const void* bytes(const std::vector<std::byte>& host) {
    std::byte* device = allocate(static_cast<std::int64_t>(host.size()), "packed weights");
    copy(device, host.data(), static_cast<std::int64_t>(host.size()));
    return device;
  }

  // Every eight rows land `eight_stride` rows after those before; 8: without a gap.
  void dense(std::byte* device, const WeightMatrix& part, std::int64_t eight_stride) {
    const bool same_type = part.type == weight_type(dtype_);
    if (same_type && eight_stride == 8) return copy(device, part.data, part.rows * part.columns * 2);
    if (!same_type && !told_) log_info("weights of {} are held in {} on the device", name(part.type), name(dtype_));
    told_ = told_ || !same_type;
    const std::int64_t row_bytes = part.columns * 2, rows_at_once = kStagingBytes / row_bytes / 8 * 8;
    keel::check(rows_at_once > 0, "eight rows fit the staging buffer");
    std::vector<std::vector<float>> scratch(static_cast<std::size_t>(workers_.threads()), std::vector<float>(part.columns));
    for (std::int64_t first = 0; first < part.rows; first += rows_at_once) {
      const std::int64_t rows = std::min(rows_at_once, part.rows - first);
      workers_.parallel_for(rows, [&](std::int64_t row, int thread) {
        std::byte* to = staging_.data() + row * row_bytes;
        if (same_type) {
          std::memcpy(to, part.data + (first + row) * row_bytes, static_cast<std::size_t>(row_bytes));
          return;
        }
        float* values = scratch[static_cast<std::size_t>(thread)].data();
        dequantize_row(part, first + row, values);
        auto* out = reinterpret_cast<std::uint16_t*>(to);
        for (std::int64_t i = 0; i < part.columns; ++i) out[i] = to_16_bits(dtype_, values[i]);
      });
      flush_eights(device, first, rows, row_bytes, eight_stride);
    }
  }

  const void* bias(std::initializer_list<WeightMatrix> parts, std::initializer_list<const float*> biases, std::int64_t rows) {
    std::vector<std::uint16_t> values;
    const float* const* bias = biases.begin();
    for (const WeightMatrix& part : parts) {
      keel::check(*bias != nullptr, "fused matrices have biases all or none");
      for (std::int64_t i = 0; i < part.rows; ++i) values.push_back(to_16_bits(dtype_, (*bias)[i]));
      ++bias;
    }
    std::byte* device = allocate(rows * 2, "biases");
    copy(device, reinterpret_cast<const std::byte*>(values.data()), rows * 2);
    return device;
  }

  void flush_eights(std::byte* device, std::int64_t first, std::int64_t rows, std::int64_t row_bytes, std::int64_t eight_stride) {
    if (eight_stride == 8) return flush(device + first * row_bytes, rows * row_bytes);
    check(cudaMemcpy2DAsync(device + first / 8 * eight_stride * row_bytes, static_cast<std::size_t>(eight_stride * row_bytes), staging_.data(),
                            static_cast<std::size_t>(8 * row_bytes), static_cast<std::size_t>(8 * row_bytes), static_cast<std::size_t>(rows / 8),
                            cudaMemcpyHostToDevice, stream_),
          "copy of rows in turn");
    stream_.synchronize();
  }

  void flush(std::byte* device, std::int64_t bytes) {
    copy_to_device<std::byte>(stream_, device, staging_.data(), static_cast<std::size_t>(bytes));
    stream_.synchronize();
  }

  static constexpr std::int64_t kPiece = 1 << 20;
  DType dtype_;
  WorkerPool& workers_;
  DeviceWeights& weights_;
  PinnedBuffer<std::byte> staging_;
  Stream stream_;
  bool told_ = false;
};

DeviceWeights upload_weights(const LoadedModel& model, DType dtype, WorkerPool& workers) {
  const auto& [config, source] = model;
  DeviceWeights weights;
  Uploader upload(dtype, workers, weights);
  ProgressBar progress("to the GPU", config.layers + 2);
  const GemmWeights embedding = upload.matrices({source.embedding});
  weights.embedding = embedding.dense;
  progress.advance(1);
  weights.head = source.head.data == source.embedding.data ? embedding : upload.matrices({source.head});
  weights.final_norm = upload.vector(source.final_norm, config.hidden);
  progress.advance(1);
  for (const LayerWeights& layer : source.layers) {
    weights.layers.push_back({.attention_norm = upload.vector(layer.attention_norm, config.hidden),
                              .mlp_norm = upload.vector(layer.mlp_norm, config.hidden),
                              .q_norm = upload.vector(layer.q_norm, config.head_dim),
                              .k_norm = upload.vector(layer.k_norm, config.head_dim),
                              .qkv = upload.matrices({layer.q, layer.k, layer.v}, {layer.q_bias, layer.k_bias, layer.v_bias}),
                              .o = upload.matrices({layer.o}, {layer.o_bias}),
                              .gate_up = upload.matrices({layer.gate, layer.up}, {}, true),
                              .down = upload.matrices({layer.down})});
    progress.advance(1);
  }
  return weights;
}

}  // namespace

DType device_dtype(const ModelConfig& config) { return config.dtype == DType::bf16 ? DType::bf16 : DType::f16; }

std::shared_ptr<const DeviceWeights> device_weights(const LoadedModel& model, DType dtype, WorkerPool& workers) {
  // By what the host's weights are views of.
  static std::mutex mutex;
  static std::map<DType, std::map<std::weak_ptr<const void>, std::weak_ptr<const DeviceWeights>, std::owner_less<>>> uploaded;
  keel::check(!model.weights.owners.empty(), "a loaded model owns its weights");
  std::lock_guard lock(mutex);
  auto& of_type = uploaded[dtype];
  std::erase_if(of_type, [](const auto& entry) { return entry.second.expired(); });
  std::weak_ptr<const DeviceWeights>& known = of_type[model.weights.owners.front()];
  std::shared_ptr<const DeviceWeights> weights = known.lock();
  if (!weights) known = weights = std::make_shared<DeviceWeights>(upload_weights(model, dtype, workers));
  return weights;
}

}  // namespace keel::cuda
