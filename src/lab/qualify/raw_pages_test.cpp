#include "lab/qualify/raw_pages.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>

#include "base/random.h"

namespace keel {
namespace {

TEST(RawPages, KnowTheNumbersOfEveryCode) {
  EXPECT_EQ(decode_stored(DType::e4m3, 0x7e), 448);
  EXPECT_EQ(decode_stored(DType::e4m3, 0x01), 0x1p-9);
  EXPECT_EQ(decode_stored(DType::e4m3, 0xb8), -1);
  EXPECT_TRUE(std::isnan(decode_stored(DType::e4m3, 0xff)));
  EXPECT_EQ(decode_stored(DType::f16, 0x3c00), 1);
  EXPECT_EQ(decode_stored(DType::f16, 0x7bff), 65504);
  EXPECT_EQ(decode_stored(DType::f16, 0xfc00), -INFINITY);
  EXPECT_EQ(decode_stored(DType::f16, 0x0001), 0x1p-24);
  EXPECT_EQ(decode_stored(DType::bf16, 0x3fc0), 1.5);
  EXPECT_EQ(decode_stored(DType::f32, std::bit_cast<std::uint32_t>(0.1f)), 0.1f);
}

// The engine's own conversions are the other opinion.
TEST(RawPages, AgreeWithTheEngineOnEveryCodeAndOnNumbersBetween) {
  for (std::uint32_t code = 0; code < 65536; ++code) {
    const auto bits16 = static_cast<std::uint16_t>(code);
    const auto agrees = [&](double mine, float theirs) { return std::isnan(mine) ? std::isnan(theirs) : mine == theirs; };
    ASSERT_TRUE(agrees(decode_stored(DType::f16, code), to_float(Half(bits16)))) << code;
    ASSERT_TRUE(agrees(decode_stored(DType::bf16, code), to_float(Bf16(bits16)))) << code;
  }
  for (std::uint32_t code = 0; code < 256; ++code) {
    const double mine = decode_stored(DType::e4m3, code);
    const float theirs = to_float(E4m3(static_cast<std::uint8_t>(code)));
    ASSERT_TRUE(std::isnan(mine) ? std::isnan(theirs) : mine == theirs) << code;
  }
  for (std::uint64_t i = 0; i < 300'000; ++i) {
    const float x = i < 100'000   ? std::bit_cast<float>(static_cast<std::uint32_t>(random_u64(1, i)))
                    : i < 200'000 ? to_float(Half(static_cast<std::uint16_t>(random_u64(2, i)))) * (i % 2 == 0 ? 1.0f : 1.0625f)  // ties of e4m3
                                  : static_cast<float>(random_unit(3, i) * 900 - 450);
    ASSERT_TRUE(same_stored(DType::e4m3, encode_stored(DType::e4m3, x), static_cast<std::uint8_t>(to_e4m3(x)))) << x;
    ASSERT_TRUE(same_stored(DType::f16, encode_stored(DType::f16, x), static_cast<std::uint16_t>(to_half(x)))) << x;
    ASSERT_TRUE(same_stored(DType::bf16, encode_stored(DType::bf16, x), static_cast<std::uint16_t>(to_bf16(x)))) << x;
  }
}

TEST(RawPages, RoundTiesToEvenSaturateAndCutOff) {
  EXPECT_EQ(decode_stored(DType::e4m3, encode_stored(DType::e4m3, 400)), 384);
  EXPECT_EQ(decode_stored(DType::e4m3, encode_stored(DType::e4m3, 432)), 448);
  EXPECT_EQ(decode_stored(DType::e4m3, encode_stored(DType::e4m3, 1e9)), 448);
  EXPECT_EQ(decode_stored(DType::e4m3, encode_stored(DType::e4m3, -INFINITY)), -448);
  EXPECT_EQ(encode_stored(DType::e4m3, 0x1p-10), 0u);
  EXPECT_EQ(encode_stored(DType::e4m3, std::nextafter(0x1p-10, 1)), 1u);
  EXPECT_EQ(encode_stored(DType::f16, 65520), 0x7c00u);
  EXPECT_EQ(encode_stored(DType::f16, std::nextafter(65520, 0)), 0x7bffu);
  EXPECT_EQ(decode_stored(DType::e4m3, encode_truncated(DType::e4m3, 431.9)), 416);
  EXPECT_EQ(decode_stored(DType::f16, encode_truncated(DType::f16, -1.9999)), -1.9990234375);
}

// What is written lies where the layout's own address functions say, and nowhere else.
TEST(RawPages, PlaceElementsAsTheLayoutDoes) {
  for (const PageOrder order : {PageOrder::cpu, PageOrder::cuda}) {
    for (const KvFormat format : {KvFormat{DType::f16, DType::e4m3}, {DType::e4m3, DType::f16}, {DType::bf16, DType::u4}, {DType::e4m3, DType::e4m3}}) {
      for (const std::int64_t head_dim : {64, 96, 256}) {
        const KvLayout layout(format, {1, 3, head_dim, 16}, order);
        std::vector<std::byte> keys(layout.key_page_bytes()), values(layout.value_page_bytes());
        StoredToken token = read_token(layout, keys, values, 11);
        token.keys[2 * head_dim + 37] = (1u << bits(format.key)) - 1;
        token.values[1 * head_dim + 54] = (1u << bits(format.value)) - 1;
        if (format.value == DType::u4) token.value_parameters = {0, 0, 0xffff, 0xffff, 0, 0};
        write_token(layout, keys, values, 11, token);
        const auto expect_only = [](const std::vector<std::byte>& bytes, std::vector<std::int64_t> bits_from, std::vector<int> widths) {
          std::vector<std::byte> owed(bytes.size());
          for (std::size_t i = 0; i < bits_from.size(); ++i) {
            for (int bit = 0; bit < widths[i]; ++bit) owed[(bits_from[i] + bit) / 8] |= std::byte(1 << (bits_from[i] + bit) % 8);
          }
          EXPECT_EQ(bytes, owed);
        };
        expect_only(keys, {layout.key_element(2, 11, 37) * bits(format.key)}, {bits(format.key)});
        std::vector<std::int64_t> at{layout.value_element(1, 11, 54) * bits(format.value)};
        std::vector<int> widths{bits(format.value)};
        if (format.value == DType::u4) at.push_back(layout.value_parameters_offset(1, 11) * 8), widths.push_back(32);
        expect_only(values, at, widths);
        const StoredToken back = read_token(layout, keys, values, 11);
        EXPECT_EQ(back.keys, token.keys);
        EXPECT_EQ(back.values, token.values);
        EXPECT_EQ(back.value_parameters, token.value_parameters);
      }
    }
  }
}

}  // namespace
}  // namespace keel
