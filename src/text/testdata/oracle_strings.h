// The strings of tools/reference/tokenizer_oracle.py, by the same rule.
#pragma once

#include <cstdint>
#include <iterator>
#include <string>
#include <string_view>

#include "base/random.h"
#include "text/unicode.h"

namespace keel::oracle {

inline constexpr std::string_view kWords[] = {
    "the",
    "Hello",
    "world",
    "don't",
    "I'LL",
    "we've",
    "it's",
    "'tis",
    "Na\303\257ve",
    "F\303\274h",
    "rer",
    "tokenizer",
    "x86",
    "HTTP",
    "camelCase",
    "snake_case",
    "\303\274ber",
    "Vi\341\273\207t",
    "\320\275\320\265\321\211\320\276",
    "\320\221\321\212\320\273\320\263\320\260\321\200\321\201\320\272\320\270",
    "\316\263\316\273\317\216\317\203\317\203\316\261",
    "\327\251\327\234\327\225\327\235",
    "\331\205\330\261\330\255\330\250\330\247",
    "\340\244\250\340\244\256\340\244\270\340\245\215\340\244\244\340\245\207",
    "\341\236\201\341\237\222\341\236\230\341\237\202\341\236\232",
    "\344\275\240\345\245\275",
    "\344\270\226\347\225\214",
    "\346\227\245\346\234\254\350\252\236",
    "\343\201\213\343\201\252",
    "\355\225\234\352\265\255\354\226\264",
    "\340\271\204\340\270\227\340\270\242",
    "\360\237\246\231",
    "\360\237\230\266\342\200\215\360\237\214\253\357\270\217",
    "\342\234\205",
    "\302\275",
    "\302\262",
    "\342\205\247",
    "\331\243\331\244",
    "\357\254\201",
    "\303\205",
    "\305\277",
    "\303\237",
    "\304\260",
    "\307\205",
    "<|im_start|>",
    "<|im_end|>",
    "<|endoftext|>",
    "<s>",
    "</s>",
    "<unk>",
    "<0x41>",
    "<think>",
    "[MASK]",
    "<pad>",
    "\342\226\201",
    "_",
    "a",
    "b",
    "S",
    "\314\201",
    "\314\243",
    "e\314\201\314\243",
    "\342\200\215",
    "\357\273\277",
    "\302\255",
    std::string_view("\0", 1),
};
inline constexpr std::string_view kSpaces[] = {
    " ",
    "  ",
    "   ",
    "\012",
    "\012\012",
    "\015\012",
    "\011",
    " \012",
    "\012 ",
    "\302\240",
    "\343\200\200",
    "\342\200\203",
    "       ",
    "\302\205",
};
inline constexpr std::string_view kPunctuation[] = {
    ".",
    ",",
    "!",
    "\077!",
    "...",
    "'",
    "\042",
    "(",
    ")",
    "[]",
    "{};",
    "--",
    "=>",
    "$",
    "\342\202\254",
    "%",
    "^~",
    "`",
    "#",
    "\343\200\202",
    "\357\274\214",
    "\343\200\214",
    "\302\277",
    "\342\200\224",
    "\342\200\246",
    "/",
    "\134",
    "|",
    "&&",
    "<",
    ">",
};
inline constexpr std::uint32_t kRanges[][2] = {
    {0x20, 0x7e},
    {0xa0, 0x17f},
    {0x370, 0x3ff},
    {0x400, 0x4ff},
    {0x5d0, 0x5ea},
    {0x620, 0x64a},
    {0x905, 0x939},
    {0xe01, 0xe30},
    {0x1100, 0x1112},
    {0x1ea0, 0x1ef9},
    {0x3041, 0x3096},
    {0x4e00, 0x9fa5},
    {0xac00, 0xd7a3},
    {0xff01, 0xff5e},
    {0x1f300, 0x1f5ff},
    {0x10400, 0x1044f},
    {0x300, 0x36f},
};

struct Draws {
  std::uint64_t seed;
  std::uint64_t counter = 0;
  std::uint64_t below(std::uint64_t n) { return random_u64(seed, counter++) % n; }
};

inline std::string oracle_string(std::uint64_t number) {
  Draws draws{number};
  std::string text;
  const std::uint64_t parts = draws.below(16);
  for (std::uint64_t part = 0; part < parts; ++part) {
    const std::uint64_t kind = draws.below(8);
    if (kind < 3) {
      text += kWords[draws.below(std::size(kWords))];
      if (draws.below(2) == 1) text += ' ';
    } else if (kind == 3) {
      text += kSpaces[draws.below(std::size(kSpaces))];
    } else if (kind == 4) {
      text += kPunctuation[draws.below(std::size(kPunctuation))];
    } else if (kind == 5) {
      std::uint64_t limit = 10;
      for (std::uint64_t i = draws.below(7); i > 0; --i) limit *= 10;
      text += std::to_string(draws.below(limit));
    } else if (kind == 6) {
      const auto& [low, high] = kRanges[draws.below(std::size(kRanges))];
      for (std::uint64_t i = 1 + draws.below(6); i > 0; --i)
        append_utf8(text, static_cast<char32_t>(low + draws.below(high - low + 1)));
    } else {
      const char letter = static_cast<char>('a' + draws.below(26));
      text.append(1 + draws.below(40), letter);
    }
  }
  return text;
}

}  // namespace keel::oracle
