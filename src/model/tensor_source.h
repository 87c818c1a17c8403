// Where a decoder's tensors come from. Each source owns what its views point into and must outlive them.
#pragma once

#include <cstdint>
#include <deque>
#include <filesystem>
#include <memory>
#include <string>

#include "device/buffer.h"
#include "files/gguf.h"
#include "kernels/matmul/weight_matrix.h"
#include "model/config.h"
#include "model/weights.h"

namespace keel {

class TensorSource {
 public:
  virtual ~TensorSource() = default;

  // `name` without ".weight". Error naming file and tensor where it is missing or has another shape or type.
  virtual WeightMatrix matrix(const std::string& name, std::int64_t rows, std::int64_t columns) = 0;
  // `name` in full, "….weight" or "….bias"; an f32 copy.
  virtual float* vector(const std::string& name, std::int64_t size) = 0;
  // Error naming a tensor that nobody asked for: it would have changed the result. A tied head's copy is let pass.
  virtual void refuse_unused(const ModelConfig& config) const = 0;

  virtual std::string format() const = 0;  // ModelWeights::format
  virtual std::int64_t bytes() const = 0;  // of what was asked for
  virtual void read_ahead() const = 0;     // brings what was asked for into memory

 protected:
  float* copy_of(std::int64_t size);  // an owned, uninitialised f32 vector

 private:
  std::deque<Buffer<float>> copies_;
};

// Names of a decoder's tensors in one file format, without ".weight".
struct TensorNames {
  std::string_view embedding, head, final_norm;
  std::string_view layers;  // followed by ".<index>."
  std::string_view attention_norm, q, k, v, o, qkv, q_norm, k_norm, mlp_norm, gate, up, gate_up,
      down;
};
extern const TensorNames kHfNames;
extern const TensorNames kGgufNames;

std::shared_ptr<TensorSource> open_safetensors(const std::filesystem::path& folder,
                                               const ModelConfig& config);
std::shared_ptr<TensorSource> open_gguf(std::shared_ptr<const GgufFile> file);
std::shared_ptr<TensorSource> make_dummy(const ModelConfig& config,
                                         DType type,
                                         std::uint64_t seed,
                                         float scale);

}  // namespace keel
