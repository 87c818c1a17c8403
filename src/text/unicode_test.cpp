#include "text/unicode.h"

#include <gtest/gtest.h>
#include <utf8proc.h>

#include <chrono>
#include <vector>

#include "base/random.h"
#include "text/byte_level.h"
#include "text/regex.h"
#include "text/testdata/oracle_strings.h"

namespace keel {
namespace {

constexpr const char* kReplacement = "\xef\xbf\xbd";

std::string replacements(int count) {
  std::string text;
  for (int i = 0; i < count; ++i) text += kReplacement;
  return text;
}

// What CPython 3.11's bytes.decode("utf-8", "replace") gives.
TEST(Utf8, CutsBadSequencesIntoMaximalSubparts) {
  const struct {
    std::string bytes;
    int replaced;
  } cases[] = {{"\x80", 1},
               {"\xc0\xaf", 2},
               {"\xe0\x80\xaf", 3},
               {"\xe1\x80", 1},
               {"\xed\xa0\x80", 3},
               {"\xf0\x80\x80\xaf", 4},
               {"\xf0\x90\x80", 1},
               {"\xf1\x80\x80", 1},
               {"\xf4\x90\x80\x80", 4},
               {"\xf5\x80", 2},
               {"\xff", 1},
               {"\xe1\x80\xe1\x80", 2},
               {"\xf0\x9f\xf0\x9f", 2}};
  for (const auto& c : cases) {
    EXPECT_EQ(replace_invalid_utf8(c.bytes), replacements(c.replaced))
        << testing::PrintToString(c.bytes);
    EXPECT_EQ(replace_invalid_utf8(c.bytes + "b"), replacements(c.replaced) + "b");
    EXPECT_FALSE(is_valid_utf8(c.bytes));
  }
}

TEST(Utf8, DecodesWhatItEncodesForEveryCodePoint) {
  for (char32_t c = 0; c <= 0x10ffff; ++c) {
    if (c >= 0xd800 && c <= 0xdfff) continue;
    std::string text;
    append_utf8(text, c);
    const CodePoint point = decode_utf8(text, 0);
    ASSERT_TRUE(point.valid && point.value == c && point.length == static_cast<int>(text.size()))
        << static_cast<unsigned>(c);
    // Every proper prefix may still become the character.
    for (std::size_t n = 1; n < text.size(); ++n)
      ASSERT_TRUE(decode_utf8(text.substr(0, n), 0).unfinished) << static_cast<unsigned>(c);
  }
}

TEST(Unicode, NormalisesAsUtf8procDoes) {
  const struct {
    NormalForm form;
    int options;
  } forms[] = {{NormalForm::nfc, UTF8PROC_STABLE | UTF8PROC_COMPOSE},
               {NormalForm::nfd, UTF8PROC_STABLE | UTF8PROC_DECOMPOSE},
               {NormalForm::nfkc, UTF8PROC_STABLE | UTF8PROC_COMPOSE | UTF8PROC_COMPAT},
               {NormalForm::nfkd, UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT}};
  for (std::uint64_t seed = 0; seed < 500; ++seed) {
    std::string text;
    for (std::uint64_t i = 0; i < 20; ++i) {
      const std::uint64_t draw = random_u64(seed, i);
      // Half the characters are combining marks, so that their order matters.
      append_utf8(
          text,
          static_cast<char32_t>(draw & 1 ? 0x300 + draw / 2 % 0x70 : 0x20 + draw / 2 % 0xd7e0));
    }
    for (const auto& [form, options] : forms) {
      utf8proc_uint8_t* expected = nullptr;
      const auto length = utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                                       static_cast<utf8proc_ssize_t>(text.size()),
                                       &expected,
                                       static_cast<utf8proc_option_t>(options));
      ASSERT_GE(length, 0);
      EXPECT_EQ(normalize_unicode(text, form),
                std::string(reinterpret_cast<char*>(expected), static_cast<std::size_t>(length)));
      free(expected);
    }
  }
}

TEST(Unicode, KnowsTheFormsOfKnownCharacters) {
  EXPECT_EQ(normalize_unicode("e\xcc\x81", NormalForm::nfc), "\xc3\xa9");
  EXPECT_EQ(normalize_unicode("\xc3\xa9", NormalForm::nfd), "e\xcc\x81");
  EXPECT_EQ(normalize_unicode("\xef\xac\x81", NormalForm::nfkc), "fi");
  EXPECT_EQ(normalize_unicode("\xef\xac\x81", NormalForm::nfc), "\xef\xac\x81");
  EXPECT_EQ(lowercase("\xc3\x84\xc4\xb0X"), "\xc3\xa4i\xcc\x87x");
}

// As Rust's \w, which decides where a single_word token stands alone.
TEST(Unicode, KnowsWhatAWordIsMadeOf) {
  for (char32_t c : U"aZ0_\u00e9\u0301\u0663\u2167\u203f\u200d\u24b6\u4e2d")
    EXPECT_TRUE(c == 0 || is_word(c)) << static_cast<unsigned>(c);
  for (char32_t c : U" -.\u00b2\u00bd\u2581\u3000\U0001f999")
    EXPECT_FALSE(is_word(c)) << static_cast<unsigned>(c);
}

TEST(Unicode, OrdersLongRunsOfMarksWithoutGoingQuadratic) {
  std::string text = "a";
  for (int i = 0; i < 200'000; ++i)
    text += "\xcc\x81\xcc\xa3";  // classes 230 and 220: all out of order
  const auto start = std::chrono::steady_clock::now();
  const std::string normal = normalize_unicode(text, NormalForm::nfc);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(5));
  EXPECT_TRUE(normal.starts_with("\xe1\xba\xa1"));  // ạ: the dot below comes first and composes
}

std::vector<bool> matched_by(const char* pattern, const std::string& text) {
  std::vector<bool> matched(text.size());
  Regex(pattern, "test").for_each_match(text, [&](std::size_t begin, std::size_t) {
    matched[begin] = true;
  });
  return matched;
}

// The two libraries may know different versions of Unicode: a character that one of them does not know is let off.
TEST(Unicode, PropertiesAgreeWithTheRegularExpressions) {
  std::string all;
  for (char32_t c = 1; c < 0x20000; ++c)
    if (c < 0xd800 || c > 0xdfff) append_utf8(all, c);
  const std::vector<bool> unassigned = matched_by(R"(\p{Cn})", all);
  const struct {
    const char* pattern;
    bool (*property)(char32_t);
  } properties[] = {{R"(\p{L})", is_letter},
                    {R"(\p{N})", is_number},
                    {R"(\p{P})", is_punctuation},
                    {R"(\s)", is_white_space}};
  for (const auto& [pattern, property] : properties) {
    const std::vector<bool> matched = matched_by(pattern, all);
    int compared = 0, different = 0;
    for (std::size_t at = 0; at < all.size();) {
      const CodePoint point = decode_utf8(all, at);
      const bool known =
          !unassigned[at] &&
          utf8proc_category(static_cast<std::int32_t>(point.value)) != UTF8PROC_CATEGORY_CN;
      compared += known;
      if (known && matched[at] != property(point.value) && ++different <= 5)
        ADD_FAILURE() << pattern << ": U+" << std::hex << static_cast<unsigned>(point.value);
      at += static_cast<std::size_t>(point.length);
    }
    EXPECT_EQ(different, 0) << pattern;
    EXPECT_GT(compared, 80'000) << pattern;
  }
}

TEST(ByteLevel, GivesEveryByteItsOwnPrintableCharacter) {
  std::string bytes;
  for (int byte = 0; byte < 256; ++byte) bytes += static_cast<char>(byte);
  const std::string characters = bytes_to_characters(bytes);
  EXPECT_TRUE(is_valid_utf8(characters));
  EXPECT_EQ(characters_to_bytes(characters), bytes);
  EXPECT_EQ(bytes_to_characters(" \n"), "\xc4\xa0\xc4\x8a");  // Ġ Ċ
  EXPECT_FALSE(characters_to_bytes("a b"));
}

}  // namespace
}  // namespace keel
