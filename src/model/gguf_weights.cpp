#include <algorithm>
#include <set>
#include <utility>
#include <vector>

#include "base/error.h"
#include "files/printable.h"
#include "model/stored_bytes.h"
#include "model/tensor_source.h"

namespace keel {
namespace {

constexpr std::pair<std::uint32_t, WeightType> kTypes[] = {
    {0, WeightType::f32},
    {1, WeightType::f16},
    {2, WeightType::q4_0},
    {3, WeightType::q4_1},
    {8, WeightType::q8_0},
    {12, WeightType::q4_k},
    {13, WeightType::q5_k},
    {14, WeightType::q6_k},
    {30, WeightType::bf16},
};

class GgufSource final : public TensorSource {
 public:
  explicit GgufSource(std::shared_ptr<const GgufFile> file) : file_(std::move(file)) {}

  WeightMatrix matrix(const std::string& name, std::int64_t rows, std::int64_t columns) override {
    const GgufTensor& tensor = take(name + ".weight", {rows, columns});
    const WeightType type = type_of(tensor);
    stored_.add(type, tensor.bytes);
    return {.type = type, .rows = rows, .columns = columns, .data = tensor.bytes.data()};
  }

  float* vector(const std::string& name, std::int64_t size) override {
    const GgufTensor& tensor = take(name, {size});
    const WeightType type = type_of(tensor);
    if (block_elements(type) != 1) {
      fail("{}: tensor {}: wanted F32, F16 or BF16 for a norm or bias, found {}",
           file_->label(),
           name,
           keel::name(type));
    }
    float* copy = copy_of(size);
    copy_floats(type, tensor.bytes, copy);
    stored_.add_vector(tensor.bytes);
    return copy;
  }

  void refuse_unused(const ModelConfig& config) const override {
    // Frequencies belong to the config, and contexts that need the long factors are refused.
    const auto is_rope = [](const std::string& name) {
      return name == "rope_freqs.weight" || name == "rope_factors_short.weight" ||
             name == "rope_factors_long.weight";
    };
    for (const auto& [name, tensor] : file_->tensors()) {
      if (!used_.contains(name) && !is_rope(name)) {
        fail("{}: tensor {} has no place in a {} of {} layers",
             file_->label(),
             printable(name),
             config.architecture,
             config.layers);
      }
    }
  }

  std::string format() const override { return "gguf " + stored_.types(); }
  std::int64_t bytes() const override { return stored_.bytes(); }
  void read_ahead() const override { stored_.read_ahead(); }

 private:
  const GgufTensor& take(const std::string& name, std::vector<std::int64_t> shape) {
    const auto found = file_->tensors().find(name);
    if (found == file_->tensors().end()) {
      fail("{}: tensor {}: wanted [{}], found no such tensor",
           file_->label(),
           name,
           fmt::join(shape, ", "));
    }
    const GgufTensor& tensor = found->second;
    if (tensor.shape != shape) {
      fail("{}: tensor {}: wanted [{}], found [{}]",
           file_->label(),
           name,
           fmt::join(shape, ", "),
           fmt::join(tensor.shape, ", "));
    }
    used_.insert(name);
    return tensor;
  }

  WeightType type_of(const GgufTensor& tensor) const {
    const auto* found =
        std::ranges::find(kTypes, tensor.type, &std::pair<std::uint32_t, WeightType>::first);
    if (found == std::end(kTypes)) {
      fail(
          "{}: tensor {}: its type number {} is not supported; supported: F32, F16, BF16, Q8_0, "
          "Q4_0, Q4_1, Q4_K, "
          "Q5_K, Q6_K",
          file_->label(),
          tensor.name,
          tensor.type);
    }
    return found->second;
  }

  std::shared_ptr<const GgufFile> file_;
  std::set<std::string, std::less<>> used_;
  StoredBytes stored_;
};

}  // namespace

std::shared_ptr<TensorSource> open_gguf(std::shared_ptr<const GgufFile> file) {
  return std::make_shared<GgufSource>(std::move(file));
}

}  // namespace keel
