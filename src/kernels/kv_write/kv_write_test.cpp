#include "kernels/kv_write/kv_write.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <vector>

#include "base/random.h"
#include "kernels/cpu_features.h"

namespace keel {
namespace {

constexpr std::int64_t kHeads = 2;
constexpr std::int64_t kDim = 64;

std::vector<std::byte> encoded(DType type, float x) {
  std::vector<std::byte> bytes(bits(type) / 8);
  const auto put = [&](auto stored) { std::memcpy(bytes.data(), &stored, sizeof(stored)); };
  if (type == DType::f32) put(x);
  if (type == DType::f16) put(to_half(x));
  if (type == DType::bf16) put(to_bf16(x));
  if (type == DType::e4m3) put(to_e4m3(x));
  return bytes;
}

// A cache of random bytes, and what it must look like after a write: addresses by the layout's description.
struct Cache {
  KvLayout layout;
  std::vector<std::byte> keys;
  std::vector<std::byte> values;
  std::vector<float> key_scales;
  std::vector<float> value_scales;

  Cache(KvFormat format, std::int64_t page_size, std::int64_t pages, float scale)
      : layout(format, {1, kHeads, kDim, page_size}),
        keys(pages * layout.key_page_bytes()),
        values(pages * layout.value_page_bytes()),
        key_scales{scale, scale * 3},
        value_scales{scale * 5, scale} {
    for (std::size_t i = 0; i < keys.size(); ++i) keys[i] = static_cast<std::byte>(random_u64(1, i));
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<std::byte>(random_u64(2, i));
  }
  KvLayerView view() {
    return {&layout, keys.data(), values.data(), key_scales.data(), value_scales.data()};
  }

  void expect_token(std::int64_t slot, const float* k, const float* v) {
    const std::int64_t page_size = layout.geometry().page_size;
    const std::int64_t page = slot / page_size;
    const std::int64_t place = slot % page_size;
    const int key_bytes = bits(layout.format().key) / 8;
    for (std::int64_t head = 0; head < kHeads; ++head) {
      for (std::int64_t dim = 0; dim < kDim; ++dim) {
        const float scale = key_scales[head];
        const float x = k[head * kDim + dim];
        const auto bytes = encoded(layout.format().key, scale == 1.0f ? x : x / scale);
        const std::int64_t element = ((page * kHeads + head) * kDim + dim) * page_size + place;
        std::copy(bytes.begin(), bytes.end(), keys.begin() + element * key_bytes);
      }
      if (layout.format().value == DType::u4) {
        expect_u4(page, head, place, v + head * kDim);
        continue;
      }
      for (std::int64_t dim = 0; dim < kDim; ++dim) {
        const float scale = value_scales[head];
        const float x = v[head * kDim + dim];
        const auto bytes = encoded(layout.format().value, scale == 1.0f ? x : x / scale);
        const std::int64_t element = ((page * kHeads + head) * page_size + place) * kDim + dim;
        std::copy(bytes.begin(), bytes.end(), values.begin() + element * bytes.size());
      }
    }
  }

  void expect_u4(std::int64_t page, std::int64_t head, std::int64_t place, const float* v) {
    const std::int64_t page_size = layout.geometry().page_size;
    const std::int64_t page_bytes = kHeads * page_size * (kDim / 2 + 4);
    const bool finite = std::all_of(v, v + kDim, [](float x) { return std::isfinite(x); });
    const float min = *std::min_element(v, v + kDim) + 0.0f;
    const float max = *std::max_element(v, v + kDim) + 0.0f;
    Half parameters[2] = {to_half((max - min) / 15.0f), to_half(min)};
    if (!finite) parameters[0] = Half(0), parameters[1] = Half(0x7e00);
    const float scale = to_float(parameters[0]);
    std::byte* codes = values.data() + page * page_bytes + (head * page_size + place) * kDim / 2;
    std::fill_n(codes, kDim / 2, std::byte{0});
    for (std::int64_t dim = 0; dim < kDim && scale > 0; ++dim) {
      const float code = std::clamp(std::nearbyint((v[dim] - to_float(parameters[1])) / scale), 0.0f, 15.0f);
      codes[dim / 2] |= static_cast<std::byte>(static_cast<int>(code) << (dim % 2 * 4));
    }
    std::memcpy(values.data() + page * page_bytes + kHeads * page_size * kDim / 2 + (head * page_size + place) * 4,
                parameters,
                4);
  }
};

std::string first_difference(const std::vector<std::byte>& got, const std::vector<std::byte>& wanted) {
  const auto at = std::mismatch(got.begin(), got.end(), wanted.begin()).first - got.begin();
  if (at == static_cast<std::ptrdiff_t>(got.size())) return {};
  return fmt::format("byte {}: {:02x} where {:02x} was due", at, static_cast<int>(got[at]), static_cast<int>(wanted[at]));
}

// Writes `numbers`, in as many tokens as they fill, to shuffled slots with holes, and compares every byte of the cache.
void expect_written(KvFormat format, std::int64_t page_size, float scale, const std::vector<float>& numbers) {
  SCOPED_TRACE(std::string(name(format.key)) + "/" + std::string(name(format.value)) + " scale " + std::to_string(scale));
  const auto tokens = static_cast<std::int64_t>(numbers.size()) / (kHeads * kDim);
  const std::int64_t pages = tokens / page_size + 2;
  std::vector<std::int64_t> slots(pages * page_size);
  std::iota(slots.begin(), slots.end(), 0);
  for (std::size_t i = slots.size() - 1; i > 0; --i) std::swap(slots[i], slots[random_u64(3, i) % (i + 1)]);
  slots.resize(tokens);
  for (std::int64_t i = 5; i < tokens; i += 7) slots[i] = -1;
  std::vector<float> reversed(numbers.rbegin(), numbers.rend());

  Cache expected(format, page_size, pages, scale);
  for (std::int64_t i = 0; i < tokens; ++i) {
    if (slots[i] < 0) continue;
    expected.expect_token(slots[i], &numbers[i * kHeads * kDim], &reversed[i * kHeads * kDim]);
  }
  WorkerPool pool(2);
  const std::string before = chosen_target();
  for (const std::string& target : supported_targets()) {
    force_target(target);
    Cache cache(format, page_size, pages, scale);
    kv_write(Stream{&pool}, {.k = numbers.data(), .v = reversed.data(), .slots = slots, .kv = cache.view()});
    EXPECT_EQ(first_difference(cache.keys, expected.keys), "") << target << " keys";
    EXPECT_EQ(first_difference(cache.values, expected.values), "") << target << " values";
  }
  force_target(before);
}

std::vector<float> all_16_bit_values(DType type) {
  std::vector<float> numbers(65536);
  for (std::uint32_t i = 0; i < 65536; ++i) {
    const auto raw = static_cast<std::uint16_t>(i);
    numbers[i] = type == DType::f16 ? to_float(Half(raw)) : to_float(Bf16(raw));
  }
  return numbers;
}

// Every exponent equally often, and near each grid point of e4m3 and f16 the point, its ties and their neighbours.
std::vector<float> difficult_numbers() {
  std::vector<float> numbers;
  for (std::uint64_t i = 0; i < 20000; ++i) {
    numbers.push_back(std::bit_cast<float>(static_cast<std::uint32_t>(random_u64(4, i))));
  }
  const auto add = [&](float x) {
    for (const float y : {x, std::nextafter(x, 1e30f), std::nextafter(x, -1e30f)}) {
      numbers.push_back(y);
      numbers.push_back(-y);
    }
  };
  for (int code = 0; code < 126; ++code) {
    const float a = to_float(E4m3(static_cast<std::uint8_t>(code)));
    const float b = to_float(E4m3(static_cast<std::uint8_t>(code + 1)));
    add(a);
    add((a + b) / 2);
  }
  for (std::uint32_t i = 0; i < 4000; ++i) {
    const auto code = static_cast<std::uint16_t>(i < 40 ? i : i < 2080 ? 0x0400 - 20 + i % 40 : random_u64(5, i) % 0x7bff);
    const float a = to_float(Half(code));
    add((a + to_float(Half(static_cast<std::uint16_t>(code + 1)))) / 2);
  }
  for (const float x : {0.0f, 448.0f, 464.0f, 480.0f, 65504.0f, 65519.0f, 65520.0f, 1e-45f, 1e-38f, 3e38f}) add(x);
  numbers.push_back(std::numeric_limits<float>::infinity());
  numbers.push_back(-std::numeric_limits<float>::infinity());
  numbers.push_back(std::numeric_limits<float>::quiet_NaN());
  numbers.push_back(-std::numeric_limits<float>::quiet_NaN());
  numbers.push_back(std::bit_cast<float>(0x7f800001u));
  numbers.push_back(std::bit_cast<float>(0xff8fffffu));
  numbers.resize((numbers.size() + kHeads * kDim - 1) / (kHeads * kDim) * kHeads * kDim, 1.0f);
  return numbers;
}

constexpr KvFormat kAllTypes[] = {{DType::f32, DType::f32},
                                  {DType::f16, DType::f16},
                                  {DType::bf16, DType::bf16},
                                  {DType::e4m3, DType::e4m3}};

TEST(KvWrite, StoresEvery16BitInputAsTheReferenceDoes) {
  for (const KvFormat& format : kAllTypes) {
    for (const DType input : {DType::f16, DType::bf16}) {
      expect_written(format, 16, 1.0f, all_16_bit_values(input));
    }
  }
  for (const float scale : {0.125f, 0.0371f, 3.0f}) {
    expect_written({DType::e4m3, DType::e4m3}, 16, scale, all_16_bit_values(DType::f16));
    expect_written({DType::e4m3, DType::e4m3}, 16, scale, all_16_bit_values(DType::bf16));
  }
}

TEST(KvWrite, RoundsTiesSubnormalsAndSpecialsAsTheReferenceDoes) {
  const std::vector<float> numbers = difficult_numbers();
  for (const KvFormat& format : kAllTypes) {
    for (const float scale : {1.0f, 0.7f}) expect_written(format, 32, format.key == DType::e4m3 ? scale : 1.0f, numbers);
  }
  expect_written({DType::f16, DType::e4m3}, 64, 1.0f, numbers);
}

TEST(KvWrite, StoresFourBitCodesWithTheirScaleAndZero) {
  std::vector<float> numbers;
  for (std::uint64_t i = 0; i < 200 * kHeads * kDim; ++i) {
    numbers.push_back(static_cast<float>(random_unit(6, i) * 8 - 3));
  }
  std::fill_n(numbers.begin(), kDim, 0.75f);          // a constant head: scale 0
  std::fill_n(numbers.begin() + 3 * kDim, kDim, 0.0f);
  numbers[3 * kDim + 1] = -0.0f;
  numbers[9 * kDim + 40] = std::numeric_limits<float>::quiet_NaN();
  numbers[11 * kDim + 3] = std::numeric_limits<float>::infinity();
  for (const std::int64_t page_size : {16, 48}) {
    expect_written({DType::f16, DType::u4}, page_size, 1.0f, numbers);
  }
}

TEST(KvWrite, ReadsBackWhatWasStored) {
  for (const DType value : {DType::f32, DType::f16, DType::bf16, DType::e4m3, DType::u4}) {
    Cache cache({DType::e4m3, value}, 16, 3, value == DType::e4m3 ? 0.01f : 1.0f);
    std::vector<float> x(kHeads * kDim);
    for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(random_unit(7, i) * 2 - 1);
    const std::int64_t slot = 37;
    WorkerPool pool(1);
    kv_write(Stream{&pool}, {.k = x.data(), .v = x.data(), .slots = {&slot, 1}, .kv = cache.view()});
    // Half a step at |x| <= 1: E4M3's is 2^-4 relative, u4's 2/15 over the head's range, the rest far finer.
    const float bound = value == DType::u4 ? 0.07f : value == DType::e4m3 ? 0x1p-4f : 0x1p-8f;
    for (std::int64_t i = 0; i < kHeads * kDim; ++i) {
      EXPECT_NEAR(read_value(cache.view(), slot, i / kDim, i % kDim), x[i], bound);
      EXPECT_NEAR(read_key(cache.view(), slot, i / kDim, i % kDim), x[i], 0x1p-4f);
    }
  }
}

}  // namespace
}  // namespace keel
