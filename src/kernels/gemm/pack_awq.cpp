// AWQ's words turned into the order in which the kernel's threads read them.
//
// packed: [row tile of 64][group of 128 columns][quarter of the group][thread of 128][2] words; word i of a quarter belongs to columns
// 32 · quarter + 16 · i … + 15 and holds its thread's m16n8k16 fragment of W: nibbles a and a + 4 are the even and odd column of
// register a.
// group_scales: [row tile][group][row] words: the f16 scale, the zero above it. Rows past the last have scale 0.
#include <array>
#include <cstring>

#include "base/error.h"
#include "base/worker_pool.h"
#include "kernels/gemm/gemm_cuda.h"
#include "kernels/gemm/skinny_gemm.h"

namespace keel::cuda {
namespace {

constexpr int kRowOfNibble[8] = {0, 2, 4, 6, 1, 3, 5, 7};

std::uint32_t word_at(const std::byte* words, std::int64_t index) {
  std::uint32_t word;
  std::memcpy(&word, words + index * 4, 4);
  return word;
}

// Codes of eight rows from `row` of `part`, one group: [8][128], the first of them at `codes`.
void unpack(const WeightMatrix& part, std::int64_t row, std::int64_t group, std::uint8_t* codes, std::uint32_t* scales) {
  const std::int64_t stride = part.awq_row_stride / 8;  // words
  for (std::int64_t k = 0; k < 128; ++k) {
    const std::uint32_t word = word_at(part.data, (group * 128 + k) * stride + row / 8);
    for (int nibble = 0; nibble < 8; ++nibble) codes[kRowOfNibble[nibble] * 128 + k] = word >> (4 * nibble) & 15;
  }
  const std::uint32_t zeros = word_at(part.awq_zeros, group * stride + row / 8);
  for (int nibble = 0; nibble < 8; ++nibble) {
    const int r = kRowOfNibble[nibble];
    std::uint16_t scale;
    std::memcpy(&scale, part.awq_scales + (group * part.awq_row_stride + row + r) * 2, 2);
    scales[r] = scale | (zeros >> (4 * nibble) & 15) << 16;
  }
}

void pack_tile(const std::uint8_t (&codes)[64][128], std::uint32_t* packed) {
  for (int quarter = 0; quarter < 4; ++quarter) {
    for (int thread = 0; thread < 128; ++thread) {
      const int row = thread / 32 * 16 + thread % 32 / 4, pair = thread % 4;
      for (int i = 0; i < 2; ++i) {
        std::uint32_t word = 0;
        for (int a = 0; a < 4; ++a) {
          const std::uint8_t* from = codes[row + (a & 1) * 8] + (quarter * 2 + i) * 16 + (a >> 1) * 8 + pair * 2;
          word |= static_cast<std::uint32_t>(from[0]) << (4 * a) | static_cast<std::uint32_t>(from[1]) << (4 * a + 16);
        }
        *packed++ = word;
      }
    }
  }
}

}  // namespace

PackedAwq pack_awq(const std::vector<WeightMatrix>& parts, bool in_turn) {
  check(!parts.empty(), "pack_awq is given a matrix");
  const std::int64_t columns = parts[0].columns, groups = columns / kAwqGroup;
  struct Eight {  // rows
    const WeightMatrix* part;
    std::int64_t row;
  };
  std::vector<Eight> eights;
  for (const WeightMatrix& part : parts) {
    check(part.type == WeightType::awq4 && part.columns == columns, "the parts of a fused matrix are AWQ's, of equal K");
    check(part.rows % 8 == 0 && part.awq_row_stride % 8 == 0 && columns % kAwqGroup == 0, "AWQ: whole words of 8 rows, whole groups of 128 columns");
    if (in_turn) continue;
    for (std::int64_t row = 0; row < part.rows; row += 8) eights.push_back({&part, row});
  }
  if (in_turn) {
    check(parts.size() == 2 && parts[0].rows == parts[1].rows, "two parts of equal size take turns");
    for (std::int64_t row = 0; row < parts[0].rows; row += 8) eights.insert(eights.end(), {{&parts[0], row}, {&parts[1], row}});
  }
  const auto row_tiles = static_cast<std::int64_t>(eights.size() + 7) / 8;
  PackedAwq out;
  out.packed.resize(static_cast<std::size_t>(row_tiles * kAwqTileRows * columns / 2));
  out.group_scales.resize(static_cast<std::size_t>(row_tiles * groups * kAwqTileRows * 4));
  WorkerPool pool(0);
  pool.parallel_for(row_tiles, [&](std::int64_t tile, int) {
    std::uint8_t codes[64][128] = {};
    std::array<std::uint32_t, 64> scales = {};
    std::array<std::uint32_t, 64 * 128 / 8> packed;
    for (std::int64_t group = 0; group < groups; ++group) {
      for (std::int64_t eight = 0; eight < 8 && tile * 8 + eight < static_cast<std::int64_t>(eights.size()); ++eight) {
        const Eight& from = eights[static_cast<std::size_t>(tile * 8 + eight)];
        unpack(*from.part, from.row, group, codes[eight * 8], scales.data() + eight * 8);
      }
      pack_tile(codes, packed.data());
      const auto at = static_cast<std::size_t>(tile * groups + group);
      std::memcpy(out.packed.data() + at * sizeof(packed), packed.data(), sizeof(packed));
      std::memcpy(out.group_scales.data() + at * sizeof(scales), scales.data(), sizeof(scales));
    }
  });
  return out;
}

}  // namespace keel::cuda
