// The host's side of CUDA's products: the search among choices, their file, AWQ's packing.
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "kernels/gemm/gemm_choice.h"
#include "kernels/gemm/gemm_cuda.h"
#include "kernels/gemm/skinny_gemm.h"
#include "kernels/gemm/together.h"
#include "kernels/matmul/random_weights.h"

namespace keel::cuda {
namespace {

TEST(ShortestTogether, LeavesAValleyThatNoProductLeavesAlone) {
  // Products 1 and 2 are best with candidate 3 both, and worse with it one of them; every other candidate costs its number.
  int times = 0;
  const auto time = [&](const Picks& picks) {
    ++times;
    const bool a = picks[1] == 3, b = picks[2] == 3;
    return 10.0 + static_cast<double>(picks[0]) + (a && b ? -5 : static_cast<double>(picks[1] + picks[2]));
  };
  EXPECT_EQ(shortest_together({6, 4, 5, 1}, {{5, 0, 0, 0}}, time), (Picks{0, 3, 3, 0}));
  EXPECT_LT(times, 120);
}

TEST(ShortestTogether, TakesTheBestOfItsStarts) {
  // All products alike are fast, the more so the higher the number; what differs from its neighbour costs.
  const auto time = [](const Picks& picks) {
    double sum = 100;
    for (std::size_t i = 0; i < picks.size(); ++i) sum += i > 0 && picks[i] != picks[i - 1] ? 50 : -static_cast<double>(picks[i]);
    return sum;
  };
  EXPECT_EQ(shortest_together({9, 9, 9}, {{1, 1, 1}, {8, 8, 8}, {2, 2, 2}}, time), (Picks{8, 8, 8}));
}

TEST(GemmChoices, ALineThatIsNoChoiceIsIgnored) {
  const std::string path = testing::TempDir() + "keel_gemm_lines/gemm";
  std::filesystem::remove(path);
  const GemmChoice choice{.skinny = {.warpgroups = 2, .splits = 4, .share = SkinnyShare::pair, .streams_x = true}, .launch_tokens = 32};
  GemmChoices(path).add("good", choice);
  std::string line;
  std::getline(std::ifstream(path), line);
  const std::string begin = line.substr(0, line.find("good")), values = line.substr(line.find("|2 4 2 1 32") + 11);
  std::ofstream(path, std::ios::app) << begin << "warpgroups|4 4 2 1 32" << values << '\n' << begin << "splits|2 3 2 1 32" << values << '\n' << begin << "share|2 4 3 1 32" << values << '\n'
                                     << begin << "flag|2 4 2 2 32" << values << '\n' << begin << "tokens|2 4 2 1 0" << values << '\n' << begin << "short|2 4 2 1 32\n" << begin << "no values\n"
                                     << begin << "again|2 4 2 1 32" << values << '\n';
  const GemmChoices read(path);
  for (const char* key : {"warpgroups", "splits", "share", "flag", "tokens", "short"}) EXPECT_EQ(read.find(key), nullptr) << key;
  for (const char* key : {"good", "again"}) {
    ASSERT_NE(read.find(key), nullptr) << key;
    EXPECT_EQ(read.find(key)->skinny, choice.skinny);
    EXPECT_EQ(read.find(key)->launch_tokens, 32);
    EXPECT_TRUE(read.find(key)->unchecked);  // against the product that has the key
  }
}

TEST(PackAwq, FusedPartsAndSlicesKeepTheirRows) {
  const RandomWeights a(WeightType::awq4, 72, 256, 1), b(WeightType::awq4, 64, 256, 2);
  const PackedAwq fused = pack_awq({a.view().row_slice(8, 40), b.view(), a.view().row_slice(0, 8)});
  ASSERT_EQ(fused.packed.size(), 128u * 256 / 2);
  ASSERT_EQ(fused.group_scales.size(), 128u * 2 * 4);
  const auto at = [&](const std::vector<std::byte>& bytes, std::int64_t index) {
    std::uint32_t word;
    std::memcpy(&word, bytes.data() + index * 4, 4);
    return word;
  };
  const auto code = [](const RandomWeights& w, const std::byte* words, std::int64_t line, std::int64_t n) {
    constexpr int kNibbleOfRow[8] = {0, 4, 1, 5, 2, 6, 3, 7};
    std::uint32_t word;
    std::memcpy(&word, words + (line * w.view().rows / 8 + n / 8) * 4, 4);
    return word >> (4 * kNibbleOfRow[n % 8]) & 15;
  };
  for (std::int64_t n = 0; n < 128; ++n) {
    const bool is_padding = n >= 112;
    const RandomWeights& source = n >= 40 && n < 104 ? b : a;
    const std::int64_t row = n < 40 ? n + 8 : n < 104 ? n - 40 : n - 104;
    for (std::int64_t k = 0; k < 256; ++k) {
      const std::int64_t tile = n / 64, group = k / 128, quarter = k % 128 / 32, i = k % 32 / 16, r = n % 64, c = k % 16;
      const std::int64_t thread = r / 16 * 32 + r % 8 * 4 + c % 8 / 2, nibble = r % 16 / 8 + c / 8 * 2 + c % 2 * 4;
      const std::uint32_t word = at(fused.packed, (((tile * 2 + group) * 4 + quarter) * 128 + thread) * 2 + i);
      ASSERT_EQ(word >> (4 * nibble) & 15, is_padding ? 0 : code(source, source.view().data, k, row)) << "row " << n << " column " << k;
      std::uint16_t scale = 0;
      if (!is_padding) std::memcpy(&scale, source.view().awq_scales + (group * source.view().rows + row) * 2, 2);
      const std::uint32_t zero = is_padding ? 0 : code(source, source.view().awq_zeros, group, row);
      ASSERT_EQ(at(fused.group_scales, (tile * 2 + group) * 64 + r), scale | zero << 16) << "row " << n << " group " << group;
    }
  }
}

}  // namespace
}  // namespace keel::cuda
