// Weights drawn from a seed, for measuring any geometry without a checkpoint: uniform in ±scale, norms 1.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <thread>
#include <utility>
#include <vector>

#include "base/dtype.h"
#include "base/option_error.h"
#include "base/log.h"
#include "base/random.h"
#include "model/tensor_source.h"

namespace keel {
namespace {

constexpr std::int64_t kAwqGroup = 128;

// A number of the tensor's own from its name (FNV-1a), so that a tensor does not change with its neighbours.
std::uint64_t seed_of(std::uint64_t seed, std::string_view name) {
  std::uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return random_u64(seed, hash);
}

// fill(first, last) over [0, count) in pieces of whole words of `step`, on every processor: a large model is gigabytes.
template <class Fill>
void fill_in_pieces(std::int64_t count, std::int64_t step, const Fill& fill) {
  constexpr std::int64_t kWorthAThread = 1 << 20;
  const std::int64_t most = std::max<std::int64_t>(1, std::thread::hardware_concurrency());
  const std::int64_t pieces = std::clamp<std::int64_t>(count / kWorthAThread, 1, most);
  const std::int64_t piece = (count / pieces + step) / step * step;
  std::vector<std::jthread> threads;
  for (std::int64_t first = 0; first < count; first += piece) {
    threads.emplace_back([&fill, first, last = std::min(count, first + piece)] { fill(first, last); });
  }
}

class DummySource final : public TensorSource {
 public:
  DummySource(const ModelConfig& config, DType type, std::uint64_t seed, float scale)
      : config_(config), type_(type), seed_(seed), scale_(scale) {
    if (!std::isfinite(scale) || scale < 0)
      refuse_option("dummy weights: wanted a scale of 0 or more, found {}", scale);
    if (type_ == DType::f32) return;
    for (std::uint32_t code = 0; code < steps_.size(); ++code) {
      const float value = scale * (static_cast<float>(code) * 0x1p-15f - 1);
      steps_[code] = type_ == DType::f16 ? static_cast<std::uint16_t>(to_half(value))
                                         : static_cast<std::uint16_t>(to_bf16(value));
    }
  }

  WeightMatrix matrix(const std::string& name, std::int64_t rows, std::int64_t columns) override {
    const bool is_packed = config_.awq && name.find(".layers.") != std::string::npos;
    return is_packed ? awq_matrix(name, rows, columns) : plain_matrix(name, rows, columns);
  }

  float* vector(const std::string& name, std::int64_t size) override {
    float* values = copy_of(size);
    const std::uint64_t seed = seed_of(seed_, name);
    const bool is_bias = name.ends_with(".bias");
    for (std::int64_t i = 0; i < size; ++i) {
      const auto unit = static_cast<float>(random_unit(seed, static_cast<std::uint64_t>(i)));
      values[i] = is_bias ? scale_ * (2 * unit - 1) : 1;
    }
    bytes_ += size * static_cast<std::int64_t>(sizeof(float));
    return values;
  }

  void refuse_unused(const ModelConfig&) const override {}  // it makes what is asked for
  void read_ahead() const override {}
  std::int64_t bytes() const override { return bytes_; }
  std::string format() const override {
    return fmt::format("dummy {}", config_.awq ? "awq int4 g128" : keel::name(type_));
  }

 private:
  WeightMatrix plain_matrix(const std::string& name, std::int64_t rows, std::int64_t columns) {
    const std::int64_t count = rows * columns;
    std::byte* data = allocate(count * bits(type_) / 8);
    const std::uint64_t seed = mix64(seed_of(seed_, name));
    const auto at = [&](std::int64_t i) { return mix64(seed + static_cast<std::uint64_t>(i)); };
    if (type_ == DType::f32) {
      for (std::int64_t i = 0; i < count; i += 2) {
        const std::uint64_t random = at(i);
        const float pair[] = {to_unit(static_cast<std::uint32_t>(random)),
                              to_unit(static_cast<std::uint32_t>(random >> 32))};
        std::memcpy(
            data + i * 4, pair, static_cast<std::size_t>(std::min<std::int64_t>(2, count - i)) * 4);
      }
    } else {
      fill_in_pieces(count, 4, [&](std::int64_t first, std::int64_t last) {
        for (std::int64_t i = first; i < last; i += 4) {
          const std::uint64_t random = at(i);
          const std::uint16_t four[] = {steps_[random & 0xffff], steps_[random >> 16 & 0xffff], steps_[random >> 32 & 0xffff],
                                        steps_[random >> 48]};
          std::memcpy(data + i * 2, four, static_cast<std::size_t>(std::min<std::int64_t>(4, last - i)) * 2);
        }
      });
    }
    const WeightType type = type_ == DType::f32   ? WeightType::f32
                            : type_ == DType::f16 ? WeightType::f16
                                                  : WeightType::bf16;
    return {.type = type, .rows = rows, .columns = columns, .data = data};
  }

  // Random codes and zeros lie up to 15 apart, so scales of a tenth give weights of the plain ones' size.
  WeightMatrix awq_matrix(const std::string& name, std::int64_t rows, std::int64_t columns) {
    if (rows % 8 != 0 || columns % kAwqGroup != 0) {
      fail(
          "dummy weights: {} of [{}, {}] does not divide into AWQ groups of {} columns and words "
          "of 8 rows",
          name,
          rows,
          columns,
          kAwqGroup);
    }
    std::byte* codes = random_bits(name + ".qweight", columns * rows / 2);
    std::byte* zeros = random_bits(name + ".qzeros", columns / kAwqGroup * rows / 2);
    const std::int64_t scale_count = columns / kAwqGroup * rows;
    std::byte* scales = allocate(scale_count * 2);
    const std::uint64_t seed = seed_of(seed_, name + ".scales");
    for (std::int64_t i = 0; i < scale_count; ++i) {
      const double unit = random_unit(seed, static_cast<std::uint64_t>(i));
      const Half scale = to_half(scale_ * static_cast<float>(0.05 + 0.1 * unit));
      std::memcpy(scales + i * 2, &scale, 2);
    }
    return {.type = WeightType::awq4,
            .rows = rows,
            .columns = columns,
            .data = codes,
            .awq_zeros = zeros,
            .awq_scales = scales,
            .awq_row_stride = rows};
  }

  std::byte* random_bits(const std::string& name, std::int64_t bytes) {
    std::byte* data = allocate(bytes);
    const std::uint64_t seed = mix64(seed_of(seed_, name));
    fill_in_pieces(bytes, 8, [&](std::int64_t first, std::int64_t last) {
      for (std::int64_t i = first; i < last; i += 8) {
        const std::uint64_t random = mix64(seed + static_cast<std::uint64_t>(i));
        std::memcpy(data + i, &random, static_cast<std::size_t>(std::min<std::int64_t>(8, last - i)));
      }
    });
    return data;
  }

  std::byte* allocate(std::int64_t bytes) {
    bytes_ += bytes;
    matrices_.emplace_back(static_cast<std::size_t>(bytes), "dummy weights");
    return matrices_.back().data();
  }

  float to_unit(std::uint32_t random) const {
    return scale_ * (static_cast<float>(static_cast<std::int32_t>(random)) * 0x1p-31f);
  }

  ModelConfig config_;
  DType type_;
  std::uint64_t seed_;
  float scale_;
  std::vector<std::uint16_t> steps_ =
      std::vector<std::uint16_t>(65536);  // 16 random bits -> a stored value
  std::vector<Buffer<std::byte>> matrices_;
  std::int64_t bytes_ = 0;
};

}  // namespace

std::shared_ptr<TensorSource> make_dummy(const ModelConfig& config,
                                         DType type,
                                         std::uint64_t seed,
                                         float scale) {
  return std::make_shared<DummySource>(config, type, seed, scale);
}

}  // namespace keel
