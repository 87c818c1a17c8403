#include "kernels/kv_write/kv_write_cuda.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include "kernels/cuda_test.h"
#include "kernels/kv_write/kv_write.h"

namespace keel::cuda {
namespace {

using RopeWriteCuda = CudaKernel;

constexpr std::int64_t kPad = 8;
constexpr std::int64_t kPositions = 5000;

struct Scene {
  DType dtype;
  KvFormat format;
  std::int64_t head_dim;
  std::int64_t rotary_dim = 0;
  RopePairs pairs = RopePairs::half;
  bool norm = false;
  float scale = 1;   // of E4M3's heads: scale, 3 · scale, …
  float magnitude = 1;
  std::int64_t heads = 3, kv_heads = 2;

  std::int64_t stride() const { return (heads + 2 * kv_heads) * head_dim + kPad; }
  std::int64_t k_at() const { return heads * head_dim; }
  std::int64_t v_at() const { return (heads + kv_heads) * head_dim; }
  std::int64_t kv_width() const { return kv_heads * head_dim; }
  std::vector<float> scales(DType type) const {
    std::vector<float> found(kv_heads, 1.0f);
    for (std::int64_t head = 0; head < kv_heads && type == DType::e4m3; ++head) found[head] = scale * static_cast<float>(1 + 2 * head);
    return found;
  }
  std::vector<double> frequencies() const {
    std::vector<double> found(rotary_dim / 2);
    for (std::size_t i = 0; i < found.size(); ++i) found[i] = std::pow(10000.0, -2.0 * i / rotary_dim);
    return found;
  }
};

std::ostream& operator<<(std::ostream& out, const Scene& scene) {
  return out << name(scene.dtype) << " " << to_string(scene.format) << " heads " << scene.heads << ":" << scene.kv_heads << " D " << scene.head_dim << " rotary " << scene.rotary_dim
             << (scene.pairs == RopePairs::half ? " half" : " interleaved") << (scene.norm ? " norm" : "") << " scale " << scene.scale;
}

struct Pool {
  KvLayout layout;
  std::vector<std::byte> keys, values;
  std::vector<float> key_scales, value_scales;

  Pool(const Scene& scene, PageOrder order, std::int64_t pages)
      : layout(scene.format, {1, scene.kv_heads, scene.head_dim, 16}, order),
        keys(pages * layout.key_page_bytes()),
        values(pages * layout.value_page_bytes()),
        key_scales(scene.scales(scene.format.key)),
        value_scales(scene.scales(scene.format.value)) {
    for (std::size_t i = 0; i < keys.size(); ++i) keys[i] = static_cast<std::byte>(random_u64(1, i));
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<std::byte>(random_u64(2, i));
  }
  KvLayerView view() { return {&layout, keys.data(), values.data(), key_scales.data(), value_scales.data()}; }
};

// One token's K and V from a pool of the CPU's order to one of CUDA's, element by element.
void copy_token(Pool& from, std::int64_t from_slot, Pool& to, std::int64_t to_slot) {
  const KvLayout &source = from.layout, &target = to.layout;
  const std::int64_t a = from_slot % 16, b = to_slot % 16;
  std::byte* from_keys = from.view().key_page(static_cast<PageId>(from_slot / 16));
  std::byte* to_keys = to.view().key_page(static_cast<PageId>(to_slot / 16));
  std::byte* from_values = from.view().value_page(static_cast<PageId>(from_slot / 16));
  std::byte* to_values = to.view().value_page(static_cast<PageId>(to_slot / 16));
  const auto copy = [](const std::byte* source, std::byte* target, int bits, std::int64_t from, std::int64_t to) {
    std::memcpy(target + to * bits / 8, source + from * bits / 8, std::max(bits / 8, 1));
  };
  const int key_bits = bits(source.format().key), value_bits = bits(source.format().value);
  for (std::int64_t head = 0; head < source.geometry().kv_heads; ++head) {
    for (std::int64_t dim = 0; dim < source.geometry().head_dim; ++dim) {
      copy(from_keys, to_keys, key_bits, source.key_element(head, a, dim), target.key_element(head, b, dim));
      if (value_bits == 4 && dim % 2 == 1) continue;  // came with its even neighbour
      copy(from_values, to_values, value_bits, source.value_element(head, a, dim), target.value_element(head, b, dim));
    }
    if (value_bits == 4) {
      std::memcpy(to_values + target.value_parameters_offset(head, b), from_values + source.value_parameters_offset(head, a), 4);
    }
  }
}

std::vector<std::int32_t> positions_of(std::int64_t tokens) {
  std::vector<std::int32_t> positions(tokens);
  for (std::int64_t i = 0; i < tokens; ++i) positions[i] = static_cast<std::int32_t>(random_u64(5, i) % kPositions);
  return positions;
}

// Shuffled slots with holes; every seventh token has none.
std::vector<std::int64_t> slots_of(std::int64_t tokens, std::int64_t pages) {
  std::vector<std::int64_t> slots(pages * 16);
  std::iota(slots.begin(), slots.end(), 0);
  for (std::size_t i = slots.size() - 1; i > 0; --i) std::swap(slots[i], slots[random_u64(3, i) % (i + 1)]);
  slots.resize(tokens);
  for (std::int64_t i = 5; i < tokens; i += 7) slots[i] = -1;
  return slots;
}

// q and k of the fused rows `before` and `after`, against double.
void expect_rotated(const Scene& scene, const std::vector<std::uint16_t>& before, const std::vector<std::uint16_t>& after,
                    const std::vector<float>& q_norm, const std::vector<float>& k_norm, const std::vector<std::int32_t>& positions) {
  const auto frequencies = scene.frequencies();
  const std::int64_t pairs = scene.rotary_dim / 2;
  std::vector<double> x(scene.head_dim);
  for (std::size_t token = 0; token < positions.size(); ++token) {
    for (std::int64_t head = 0; head < scene.heads + scene.kv_heads; ++head) {
      const std::int64_t at = token * scene.stride() + head * scene.head_dim;
      double squares = 0;
      for (std::int64_t i = 0; i < scene.head_dim; ++i) x[i] = from_bits(scene.dtype, before[at + i]), squares += x[i] * x[i];
      if (scene.norm) {
        const auto& weight = head < scene.heads ? q_norm : k_norm;
        for (std::int64_t i = 0; i < scene.head_dim; ++i) x[i] *= weight[i] / std::sqrt(squares / scene.head_dim + 1e-6f);
      }
      for (std::int64_t i = 0; i < scene.head_dim; ++i) {
        double exact = x[i], magnitude = std::abs(x[i]);
        if (i < scene.rotary_dim) {
          const bool half = scene.pairs == RopePairs::half;
          const std::int64_t pair = half ? i % pairs : i / 2;
          const std::int64_t first = half ? pair : 2 * pair, second = half ? pair + pairs : first + 1;
          const double angle = positions[token] * frequencies[pair];
          const double c = std::cos(angle) * scene.magnitude, s = std::sin(angle) * scene.magnitude;
          exact = i == first ? x[first] * c - x[second] * s : x[second] * c + x[first] * s;
          magnitude = (std::abs(x[first]) + std::abs(x[second])) * scene.magnitude;
        }
        const double bound = magnitude * 0x1p-20 + std::abs(exact) * roundoff(scene.dtype) + least_error(scene.dtype);
        ASSERT_NEAR(from_bits(scene.dtype, after[at + i]), exact, bound) << "token " << token << " head " << head << " dim " << i;
      }
    }
  }
}

std::string first_difference(const std::vector<std::byte>& got, const std::vector<std::byte>& wanted) {
  const auto at = std::mismatch(got.begin(), got.end(), wanted.begin()).first - got.begin();
  if (at == static_cast<std::ptrdiff_t>(got.size())) return {};
  return fmt::format("byte {}: {:02x} where {:02x} was due", at, static_cast<int>(got[at]), static_cast<int>(wanted[at]));
}

// Runs the kernel on fused rows, without and with rounding in place, and compares every byte it may and may not write.
void expect_written(const Scene& scene, const std::vector<std::uint16_t>& rows, bool finite) {
  SCOPED_TRACE(testing::Message() << scene);
  const auto tokens = static_cast<std::int64_t>(rows.size()) / scene.stride();
  const std::int64_t pages = tokens / 16 + 3;
  const auto positions = positions_of(tokens);
  const auto slots = slots_of(tokens, pages);
  std::vector<float> q_norm(scene.head_dim), k_norm(scene.head_dim);
  for (std::int64_t i = 0; i < scene.head_dim; ++i) q_norm[i] = random_normal(6, i), k_norm[i] = random_normal(7, i);
  std::vector<float> table(std::max<std::int64_t>(kPositions * scene.rotary_dim, 1));
  fill_rope_table(table.data(), kPositions, scene.rotary_dim, scene.frequencies().data(), scene.magnitude);

  Pool expected(scene, PageOrder::cuda, pages);
  const auto key_scales_there = on_device(expected.key_scales);
  const auto value_scales_there = on_device(expected.value_scales);
  const auto q_norm_there = on_device(q_norm), k_norm_there = on_device(k_norm), table_there = on_device(table);
  const auto positions_there = on_device(positions);
  const auto slots_there = on_device(slots);
  struct Written {
    std::vector<std::uint16_t> rows;
    std::vector<std::byte> keys, values;
  };
  const auto run = [&](bool round) {
    auto rows_there = on_device(rows);
    auto keys_there = on_device(expected.keys), values_there = on_device(expected.values);
    const Stream stream;
    rope_write(stream, {.dtype = scene.dtype,
                        .q = rows_there.data(),
                        .k = rows_there.data() + scene.k_at(),
                        .v = rows_there.data() + scene.v_at(),
                        .stride = scene.stride(),
                        .tokens = tokens,
                        .heads = scene.heads,
                        .q_norm = scene.norm ? q_norm_there.data() : nullptr,
                        .k_norm = scene.norm ? k_norm_there.data() : nullptr,
                        .norm_epsilon = 1e-6f,
                        .rotary_dim = scene.rotary_dim,
                        .pairs = scene.pairs,
                        .rope_table = table_there.data(),
                        .positions = positions_there.data(),
                        .slots = slots_there.data(),
                        .kv = {&expected.layout, keys_there.data(), values_there.data(), key_scales_there.data(), value_scales_there.data()},
                        .round = round});
    stream.synchronize();
    return Written{on_host(rows_there), on_host(keys_there), on_host(values_there)};
  };
  const Written exact = run(false), rounded = run(true);
  if (finite) expect_rotated(scene, rows, exact.rows, q_norm, k_norm, positions);

  // The CPU's writer, given the rotated keys, on a pool of its own order.
  const std::int64_t width = scene.kv_width();
  std::vector<float> k(tokens * width), v(k.size());
  for (std::int64_t token = 0; token < tokens; ++token) {
    for (std::int64_t i = 0; i < width; ++i) {
      k[token * width + i] = from_bits(scene.dtype, exact.rows[token * scene.stride() + scene.k_at() + i]);
      v[token * width + i] = from_bits(scene.dtype, rows[token * scene.stride() + scene.v_at() + i]);
    }
  }
  Pool reference(scene, PageOrder::cpu, pages);
  std::vector<std::int64_t> own_slots(tokens);
  std::iota(own_slots.begin(), own_slots.end(), 0);
  WorkerPool workers(1);
  kv_write(keel::Stream{&workers}, {.k = k.data(), .v = v.data(), .slots = own_slots, .kv = reference.view()});
  for (std::int64_t token = 0; token < tokens; ++token) {
    if (slots[token] >= 0) copy_token(reference, token, expected, slots[token]);
  }
  for (const Written& written : {exact, rounded}) {
    ASSERT_EQ(first_difference(written.keys, expected.keys), "") << "keys";
    ASSERT_EQ(first_difference(written.values, expected.values), "") << "values";
  }

  const auto is_stored = [&](std::uint16_t got, float stored) {
    return std::isnan(stored) ? std::isnan(from_bits(scene.dtype, got)) : got == to_bits(scene.dtype, stored);
  };
  for (std::int64_t token = 0; token < tokens; ++token) {
    for (std::int64_t i = 0; i < scene.stride(); ++i) {
      const std::int64_t at = token * scene.stride() + i;
      if (i >= scene.v_at()) {
        ASSERT_EQ(exact.rows[at], rows[at]) << "token " << token << " element " << i;
      }
      if (i < scene.k_at() || i >= scene.v_at() + width) {
        ASSERT_EQ(rounded.rows[at], exact.rows[at]) << "token " << token << " element " << i;
        continue;
      }
      const std::int64_t element = (i - scene.k_at()) % width, head = element / scene.head_dim, dim = element % scene.head_dim;
      const float stored = i < scene.v_at() ? read_key(reference.view(), token, head, dim) : read_value(reference.view(), token, head, dim);
      ASSERT_TRUE(is_stored(rounded.rows[at], stored)) << "token " << token << " element " << i << ": " << rounded.rows[at] << ", stored " << stored;
    }
  }
}

std::vector<KvFormat> formats_of(DType dtype, std::int64_t head_dim) {
  std::vector<KvFormat> formats;
  for (const DType key : {dtype, DType::e4m3}) {
    for (const DType value : {dtype, DType::e4m3, DType::u4}) {
      if (value != DType::u4 || head_dim % 32 == 0) formats.push_back({key, value});
    }
  }
  return formats;
}

constexpr std::int64_t kHeadDims[] = {64, 80, 96, 128, 256};

// K and V take the 16-bit codes from `first` on, in opposite orders.
std::vector<std::uint16_t> rows_of_codes(const Scene& scene, std::int64_t first, std::int64_t tokens) {
  const std::int64_t width = scene.kv_width();
  std::vector<std::uint16_t> rows(tokens * scene.stride(), 0x1234);
  for (std::int64_t i = 0; i < tokens * width; ++i) {
    const std::int64_t row = i / width * scene.stride();
    rows[row + scene.k_at() + i % width] = static_cast<std::uint16_t>(65535 - first - i);
    rows[row + scene.v_at() + i % width] = static_cast<std::uint16_t>(first + i);
  }
  return rows;
}

TEST_F(RopeWriteCuda, StoresTheCpusBytesForEvery16BitInput) {
  constexpr std::int64_t kCodes = 65536, kRingTokens = 512;  // from which the ring serves
  for (const DType dtype : kModelTypes) {
    for (const std::int64_t head_dim : kHeadDims) {
      for (const KvFormat& format : formats_of(dtype, head_dim)) {
        for (const float scale : {1.0f, 0.125f, 0.0371f, 3.0f}) {
          if (scale != 1 && format.value != DType::e4m3 && format.key != DType::e4m3) continue;
          const Scene scene{.dtype = dtype, .format = format, .head_dim = head_dim, .scale = scale};
          const std::int64_t width = scene.kv_width(), half = (kCodes / 2 + width - 1) / width;
          ASSERT_LT(half, kRingTokens);
          expect_written(scene, rows_of_codes(scene, 0, half), false);
          expect_written(scene, rows_of_codes(scene, kCodes / 2, half), false);
          expect_written(scene, rows_of_codes(scene, 0, std::max(kRingTokens, 2 * half)), false);
        }
      }
    }
  }
}

TEST_F(RopeWriteCuda, RotatesNormsAndStoresAtEveryShape) {
  for (const DType dtype : kModelTypes) {
    for (const std::int64_t head_dim : kHeadDims) {
      for (const KvFormat& format : formats_of(dtype, head_dim)) {
        for (const std::int64_t rotary_dim : {head_dim, head_dim / 2, std::int64_t{24}, std::int64_t{0}}) {
          for (const RopePairs pairs : {RopePairs::half, RopePairs::interleaved}) {
            for (const bool norm : {false, true}) {
              Scene scene{.dtype = dtype, .format = format, .head_dim = head_dim, .rotary_dim = rotary_dim, .pairs = pairs, .norm = norm, .scale = 0.02f};
              scene.magnitude = norm ? 1.0f : 1.19f;
              expect_written(scene, random_bits(dtype, 37 * scene.stride(), 8), true);
            }
          }
        }
      }
    }
  }
}

TEST_F(RopeWriteCuda, GivesTheSameForManyTokens) {
  for (const DType dtype : kModelTypes) {
    for (const std::int64_t head_dim : kHeadDims) {
      for (const KvFormat& format : formats_of(dtype, head_dim)) {
        const Scene scene{.dtype = dtype, .format = format, .head_dim = head_dim, .rotary_dim = head_dim, .norm = true, .scale = 0.02f};
        expect_written(scene, random_bits(dtype, 530 * scene.stride(), 9), true);
      }
    }
  }
}

TEST_F(RopeWriteCuda, GivesTheSameForEveryNumberOfHeads) {
  const std::pair<std::int64_t, std::int64_t> kNumbers[] = {{1, 1}, {8, 1}, {5, 5}, {14, 2}, {32, 8}, {64, 16}};
  std::uint64_t seed = 20;
  for (const auto& [heads, kv_heads] : kNumbers) {
    for (const std::int64_t head_dim : {64, 128}) {
      for (const std::int64_t tokens : {3, 520}) {
        for (const DType value : {DType::f16, DType::e4m3, DType::u4}) {
          const Scene scene{.dtype = DType::f16, .format = {seed % 2 ? DType::f16 : DType::e4m3, value}, .head_dim = head_dim, .rotary_dim = head_dim,
                            .norm = seed % 3 == 0, .scale = 0.02f, .heads = heads, .kv_heads = kv_heads};
          expect_written(scene, random_bits(scene.dtype, tokens * scene.stride(), seed++), true);
        }
      }
    }
  }
}

// So many tokens that every block's ring of at most three stages goes round twice, as many blocks as a multiprocessor may hold.
TEST_F(RopeWriteCuda, GivesTheSameWhereTheRingGoesRound) {
  constexpr std::int64_t kMostBlocks = 2048 / 160, kMostStages = 3;  // threads of a multiprocessor, and of a block
  const std::int64_t tokens = find_device().info.multiprocessors * kMostBlocks * (2 * kMostStages + 1) + 37;
  const Scene scenes[] = {{.dtype = DType::f16, .format = {DType::f16, DType::e4m3}, .head_dim = 128, .rotary_dim = 128, .norm = true, .scale = 0.02f},
                          {.dtype = DType::f16, .format = {DType::f16, DType::u4}, .head_dim = 64, .rotary_dim = 24, .pairs = RopePairs::interleaved},
                          {.dtype = DType::bf16, .format = {DType::bf16, DType::bf16}, .head_dim = 128, .rotary_dim = 128, .norm = true},
                          {.dtype = DType::bf16, .format = {DType::e4m3, DType::e4m3}, .head_dim = 256, .rotary_dim = 256, .scale = 0.02f}};
  for (const Scene& scene : scenes) expect_written(scene, random_bits(scene.dtype, tokens * scene.stride(), 12), true);
}

TEST_F(RopeWriteCuda, StoresFourBitCodesOfSpecialRows) {
  for (const DType dtype : kModelTypes) {
    const Scene scene{.dtype = dtype, .format = {dtype, DType::u4}, .head_dim = 128};
    auto rows = random_bits(dtype, 64 * scene.stride(), 10);
    const auto v = [&](std::int64_t token, std::int64_t i) -> std::uint16_t& { return rows[token * scene.stride() + scene.v_at() + i]; };
    for (std::int64_t i = 0; i < 128; ++i) {
      v(0, i) = to_bits(dtype, 0.75f);                      // constant: scale 0
      v(1, i) = to_bits(dtype, i % 2 == 0 ? 0.0f : -0.0f);  // both zeros
      v(2, i) = static_cast<std::uint16_t>(i);              // subnormal
      v(3, i) = to_bits(dtype, i % 3 == 0 ? 65504.0f : -65504.0f);
      v(4, i) = to_bits(dtype, 60000.0f + static_cast<float>(i) * 100);
      v(5, i) = to_bits(dtype, static_cast<float>(i) * 3e36f);  // bf16: past f16's range
      v(6, i) = static_cast<std::uint16_t>(0x8000 + i);
      v(7, i) = to_bits(dtype, 1 + static_cast<float>(i % 31) / 30);  // codes on ties
    }
    v(8, 40) = 0x7fff, v(9, 3) = to_bits(dtype, -INFINITY), v(10, 127) = 0xffc1;
    expect_written(scene, rows, false);
  }
}

TEST_F(RopeWriteCuda, ReachesPagesPastTwoGigabytes) {
  constexpr std::int64_t kPages = 140'000, kDim = 128, kManyHeads = 8;  // keys 4.6 GB, values 2.3 GB
  const DType dtype = DType::f16;
  const KvLayout layout({dtype, DType::e4m3}, {1, kManyHeads, kDim, 16}, PageOrder::cuda);
  DeviceBuffer<std::byte> keys(kPages * layout.key_page_bytes(), "keys"), values(kPages * layout.value_page_bytes(), "values");
  const std::vector<std::int64_t> slots = {16 * (kPages - 1) + 15, 16 * 65536 + 3, 16 * 131072 + 9, 2};
  const auto tokens = static_cast<std::int64_t>(slots.size());
  const std::int64_t stride = 3 * kManyHeads * kDim;
  const auto rows = random_bits(dtype, tokens * stride, 11);
  auto rows_there = on_device(rows);
  const auto slots_there = on_device(slots);
  const auto positions_there = on_device(std::vector<std::int32_t>(tokens, 0));
  const auto scales_there = on_device(std::vector<float>(kManyHeads, 1.0f));
  const Stream stream;
  rope_write(stream, {.dtype = dtype,
                      .q = rows_there.data(),
                      .k = rows_there.data() + kManyHeads * kDim,
                      .v = rows_there.data() + 2 * kManyHeads * kDim,
                      .stride = stride,
                      .tokens = tokens,
                      .heads = kManyHeads,
                      .rotary_dim = 0,
                      .pairs = RopePairs::half,
                      .rope_table = nullptr,
                      .positions = positions_there.data(),
                      .slots = slots_there.data(),
                      .kv = {&layout, keys.data(), values.data(), scales_there.data(), scales_there.data()}});
  stream.synchronize();
  std::vector<std::uint16_t> key_page(layout.key_page_bytes() / 2);
  std::vector<E4m3> value_page(layout.value_page_bytes());
  for (std::int64_t token = 0; token < tokens; ++token) {
    const std::int64_t page = slots[token] / 16, place = slots[token] % 16;
    check(cudaMemcpy(key_page.data(), keys.data() + page * layout.key_page_bytes(), layout.key_page_bytes(), cudaMemcpyDeviceToHost), "keys");
    check(cudaMemcpy(value_page.data(), values.data() + page * layout.value_page_bytes(), layout.value_page_bytes(), cudaMemcpyDeviceToHost), "values");
    for (std::int64_t i = 0; i < kManyHeads * kDim; ++i) {
      const std::int64_t at = token * stride + kManyHeads * kDim + i;
      ASSERT_EQ(key_page[layout.key_element(i / kDim, place, i % kDim)], rows[at]) << "token " << token;
      ASSERT_EQ(value_page[layout.value_element(i / kDim, place, i % kDim)], to_e4m3(from_bits(dtype, rows[at + kManyHeads * kDim]))) << "token " << token;
    }
  }
}

TEST_F(RopeWriteCuda, GivesEqualBytesInEveryReplay) {
  const Scene scene{.dtype = DType::bf16, .format = {DType::bf16, DType::e4m3}, .head_dim = 128, .rotary_dim = 128, .norm = true, .scale = 0.02f};
  constexpr std::int64_t kTokens = 600, kPages = 40;
  const auto rows = random_bits(scene.dtype, kTokens * scene.stride(), 12);
  Pool pool(scene, PageOrder::cuda, kPages);
  std::vector<float> table(kPositions * scene.rotary_dim), norm(scene.head_dim, 1.5f);
  fill_rope_table(table.data(), kPositions, scene.rotary_dim, scene.frequencies().data(), 1);
  const auto rows_there = on_device(rows);
  auto work_there = on_device(rows);
  auto keys_there = on_device(pool.keys), values_there = on_device(pool.values);
  const auto scales_there = on_device(pool.value_scales), table_there = on_device(table), norm_there = on_device(norm);
  const auto positions_there = on_device(positions_of(kTokens));
  const auto slots_there = on_device(slots_of(kTokens, kPages));
  const Stream stream;
  const StepGraph graph(stream, [&] {
    check(cudaMemcpyAsync(work_there.data(), rows_there.data(), rows_there.bytes(), cudaMemcpyDeviceToDevice, stream), "fresh rows");
    rope_write(stream, {.dtype = scene.dtype,
                        .q = work_there.data(),
                        .k = work_there.data() + scene.k_at(),
                        .v = work_there.data() + scene.v_at(),
                        .stride = scene.stride(),
                        .tokens = kTokens,
                        .heads = scene.heads,
                        .q_norm = norm_there.data(),
                        .k_norm = norm_there.data(),
                        .norm_epsilon = 1e-6f,
                        .rotary_dim = scene.rotary_dim,
                        .pairs = scene.pairs,
                        .rope_table = table_there.data(),
                        .positions = positions_there.data(),
                        .slots = slots_there.data(),
                        .kv = {&pool.layout, keys_there.data(), values_there.data(), scales_there.data(), scales_there.data()},
                        .round = true});
  });
  std::vector<std::uint16_t> first_rows;
  std::vector<std::byte> first_keys, first_values;
  for (int replay = 0; replay < 100; ++replay) {
    graph.launch(stream);
    stream.synchronize();
    const auto after = on_host(work_there);
    const auto keys = on_host(keys_there), values = on_host(values_there);
    if (replay == 0) first_rows = after, first_keys = keys, first_values = values;
    ASSERT_TRUE(after == first_rows && keys == first_keys && values == first_values) << "replay " << replay;
  }
}

TEST_F(RopeWriteCuda, RefusesWhatItDoesNotStoreByName) {
  const KvLayout layout({DType::f16, DType::f16}, {1, 2, 64, 16}, PageOrder::cuda);
  RopeWriteArgs args{.dtype = DType::bf16, .q = nullptr, .k = nullptr, .v = nullptr, .stride = 512, .tokens = 1, .heads = 4, .rotary_dim = 64,
                     .pairs = RopePairs::half, .rope_table = nullptr, .positions = nullptr, .slots = nullptr, .kv = {&layout, nullptr, nullptr, nullptr, nullptr}};
  EXPECT_THROW(rope_write(nullptr, args), Error);
  args.dtype = DType::f16;
  args.rotary_dim = 20;
  EXPECT_THROW(rope_write(nullptr, args), Error);
}

}  // namespace
}  // namespace keel::cuda
