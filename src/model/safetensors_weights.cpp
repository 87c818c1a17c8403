#include <algorithm>
#include <cstring>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "base/dtype.h"
#include "base/error.h"
#include "files/printable.h"
#include "files/safetensors.h"
#include "model/stored_bytes.h"
#include "model/tensor_source.h"

namespace keel {
namespace {

constexpr std::int64_t kAwqGroup = 128;      // columns that share a scale and a zero
constexpr std::int64_t kAwqRowsPerWord = 8;  // 4-bit codes of an int32

class SafetensorsSource final : public TensorSource {
 public:
  SafetensorsSource(const std::filesystem::path& folder, bool awq)
      : label_(folder.string()), folder_(folder), awq_(awq) {}

  WeightMatrix matrix(const std::string& name, std::int64_t rows, std::int64_t columns) override {
    if (awq_ && folder_.tensors().contains(name + ".qweight"))
      return awq_matrix(name, rows, columns);
    const SafetensorsTensor& tensor = take(name + ".weight", {rows, columns});
    WeightMatrix matrix{.rows = rows, .columns = columns, .data = tensor.bytes.data()};
    matrix.type = plain_type(tensor);
    stored_.add(matrix.type, tensor.bytes);
    return matrix;
  }

  float* vector(const std::string& name, std::int64_t size) override {
    const SafetensorsTensor& tensor = take(name, {size});
    float* copy = copy_of(size);
    copy_floats(plain_type(tensor), tensor.bytes, copy);
    stored_.add_vector(tensor.bytes);
    return copy;
  }

  void refuse_unused(const ModelConfig& config) const override {
    for (const auto& [name, tensor] : folder_.tensors()) {
      const bool known = used_.contains(name) || name.ends_with("rotary_emb.inv_freq") ||
                         (config.tied_head && name == "lm_head.weight");
      if (!known) {
        fail("{}: tensor {} has no place in a {} of {} layers{}",
             tensor.file,
             printable(name),
             config.architecture,
             config.layers,
             name.ends_with(".bias") ? " without this bias" : "");
      }
    }
  }

  std::string format() const override {
    return awq_ ? "awq int4 g128" : "safetensors " + stored_.types();
  }
  std::int64_t bytes() const override { return stored_.bytes(); }
  void read_ahead() const override { stored_.read_ahead(); }

 private:
  const SafetensorsTensor& take(const std::string& name, std::vector<std::int64_t> shape) {
    const auto found = folder_.tensors().find(name);
    if (found == folder_.tensors().end()) {
      fail(
          "{}: tensor {}: wanted [{}], found no such tensor", label_, name, fmt::join(shape, ", "));
    }
    const SafetensorsTensor& tensor = found->second;
    if (tensor.shape != shape) {
      fail("{}: tensor {}: wanted [{}], found [{}]",
           tensor.file,
           name,
           fmt::join(shape, ", "),
           fmt::join(tensor.shape, ", "));
    }
    used_.insert(name);
    return tensor;
  }

  static void want_dtype(const SafetensorsTensor& tensor, std::string_view dtype) {
    if (tensor.dtype != dtype) {
      fail("{}: tensor {}: wanted {}, found {}", tensor.file, tensor.name, dtype, tensor.dtype);
    }
  }

  static WeightType plain_type(const SafetensorsTensor& tensor) {
    if (tensor.dtype == "F32") return WeightType::f32;
    if (tensor.dtype == "F16") return WeightType::f16;
    if (tensor.dtype == "BF16") return WeightType::bf16;
    fail(
        "{}: tensor {}: wanted F32, F16 or BF16, found {}", tensor.file, tensor.name, tensor.dtype);
  }

  WeightMatrix awq_matrix(const std::string& name, std::int64_t rows, std::int64_t columns) {
    if (rows % kAwqRowsPerWord != 0 || columns % kAwqGroup != 0) {
      fail(
          "{}: tensor {}.qweight: [{}, {}] does not divide into groups of {} columns and words of "
          "{} rows",
          label_,
          name,
          rows,
          columns,
          kAwqGroup,
          kAwqRowsPerWord);
    }
    const SafetensorsTensor& codes = take(name + ".qweight", {columns, rows / kAwqRowsPerWord});
    const SafetensorsTensor& zeros =
        take(name + ".qzeros", {columns / kAwqGroup, rows / kAwqRowsPerWord});
    const SafetensorsTensor& scales = take(name + ".scales", {columns / kAwqGroup, rows});
    want_dtype(codes, "I32");
    want_dtype(zeros, "I32");
    want_dtype(scales, "F16");
    stored_.add(WeightType::awq4, codes.bytes);
    stored_.add(WeightType::awq4, zeros.bytes);
    stored_.add(WeightType::awq4, scales.bytes);
    return {.type = WeightType::awq4,
            .rows = rows,
            .columns = columns,
            .data = codes.bytes.data(),
            .awq_zeros = zeros.bytes.data(),
            .awq_scales = scales.bytes.data(),
            .awq_row_stride = rows};
  }

  std::string label_;
  SafetensorsFolder folder_;
  bool awq_;
  std::set<std::string, std::less<>> used_;
  StoredBytes stored_;
};

}  // namespace

std::shared_ptr<TensorSource> open_safetensors(const std::filesystem::path& folder,
                                               const ModelConfig& config) {
  return std::make_shared<SafetensorsSource>(folder, config.awq);
}

}  // namespace keel
