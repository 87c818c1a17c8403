#include "model/stored_bytes.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <utility>

#include "base/dtype.h"
#include "base/error.h"
#include "base/log.h"
#include "files/mapped_file.h"

namespace keel {

void StoredBytes::add(WeightType type, std::span<const std::byte> matrix) {
  bytes_ += static_cast<std::int64_t>(matrix.size());
  bytes_of_type_[type] += static_cast<std::int64_t>(matrix.size());
  matrices_.push_back(matrix);
}

std::string StoredBytes::types() const {
  std::vector<std::pair<WeightType, std::int64_t>> types(bytes_of_type_.begin(),
                                                         bytes_of_type_.end());
  std::ranges::stable_sort(
      types, std::ranges::greater(), &std::pair<WeightType, std::int64_t>::second);
  std::vector<std::string_view> names;
  for (const auto& [type, bytes] : types) names.push_back(name(type));
  return fmt::format("{}", fmt::join(names, "/"));
}

void StoredBytes::read_ahead() const {
  constexpr std::size_t kStep = std::size_t{16} << 20;  // bytes between two looks at the bar
  ProgressBar bar("reading weights", bytes_);
  for (const std::span<const std::byte> matrix : matrices_) {
    for (std::size_t at = 0; at < matrix.size(); at += kStep) {
      const auto part = matrix.subspan(at, std::min(kStep, matrix.size() - at));
      bring_into_memory(part);
      bar.advance(static_cast<std::int64_t>(part.size()));
    }
  }
}

void copy_floats(WeightType type, std::span<const std::byte> bytes, float* out) {
  const auto widen = [&]<class T>(T) {
    for (std::size_t i = 0; i < bytes.size() / sizeof(T); ++i) {
      T value;
      std::memcpy(&value, bytes.data() + i * sizeof(T), sizeof(T));
      out[i] = to_float(value);
    }
  };
  switch (type) {
    case WeightType::f32:
      return widen(float{});
    case WeightType::f16:
      return widen(Half{});
    case WeightType::bf16:
      return widen(Bf16{});
    default:
      check(false, "only plain types are widened");
  }
}

}  // namespace keel
