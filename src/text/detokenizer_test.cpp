#include "text/detokenizer.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "base/random.h"
#include "text/testdata/oracle_strings.h"
#include "text/testdata/small_json.h"
#include "text/unicode.h"

namespace keel {
namespace {

std::vector<TokenId> byte_tokens(std::string_view bytes) {
  std::vector<TokenId> ids;
  for (unsigned char byte : bytes) ids.push_back(3 + byte);
  return ids;
}

TEST(Detokenizer, NeverSplitsACharacter) {
  const auto tokenizer = parse(small_json());
  for (const std::string text : {"\xc3\xa9", "\xe4\xbd\xa0", "\xf0\x9f\xa6\x99"}) {
    Detokenizer detokenizer(*tokenizer);
    const auto ids = byte_tokens(text);
    for (std::size_t i = 0; i + 1 < ids.size(); ++i) EXPECT_EQ(detokenizer.push(ids[i]), "");
    EXPECT_EQ(detokenizer.push(ids.back()), text);
    EXPECT_EQ(detokenizer.finish(), "");
  }
}

TEST(Detokenizer, ReplacesWhatIsLeftUnfinished) {
  const auto tokenizer = parse(small_json());
  Detokenizer detokenizer(*tokenizer);
  EXPECT_EQ(detokenizer.push(3 + 0xf0), "");
  EXPECT_EQ(detokenizer.push(3 + 0x9f), "");
  EXPECT_EQ(detokenizer.finish(), "\xef\xbf\xbd");
  EXPECT_EQ(detokenizer.finish(), "");
}

TEST(Detokenizer, GoesOnAfterABadByte) {
  const auto tokenizer = parse(small_json());
  Detokenizer detokenizer(*tokenizer);
  EXPECT_EQ(detokenizer.push(3 + 0xe4), "");
  EXPECT_EQ(detokenizer.push(3 + 'x'), "\xef\xbf\xbdx");
  EXPECT_EQ(detokenizer.push(3 + 0xff), "\xef\xbf\xbd");
  EXPECT_EQ(detokenizer.push(3 + 'y'), "y");
}

// Any bytes, in any order: the stream's text is that of the whole.
TEST(Detokenizer, GivesTheTextOfTheWholeForRandomBytes) {
  const auto tokenizer = parse(small_json());
  for (std::uint64_t seed = 0; seed < 2000; ++seed) {
    std::string bytes;
    for (std::uint64_t i = 0; i < 12; ++i) {
      const std::uint64_t draw = random_u64(seed, i);
      bytes += static_cast<char>(draw % 4 == 0   ? 0xe0 + draw / 4 % 32
                                 : draw % 4 == 1 ? draw / 4
                                                 : 0x80 + draw / 4 % 64);
    }
    Detokenizer detokenizer(*tokenizer);
    std::string text;
    for (TokenId id : byte_tokens(bytes)) {
      const std::string part = detokenizer.push(id);
      EXPECT_TRUE(is_valid_utf8(part));
      text += part;
    }
    text += detokenizer.finish();
    // Only the leading space goes.
    const std::string whole = replace_invalid_utf8(bytes);
    EXPECT_EQ(text, whole.starts_with(' ') ? whole.substr(1) : whole) << "seed " << seed;
  }
}

TEST(Detokenizer, LeavesSpecialTokensOutUnlessAsked) {
  const auto tokenizer = parse(small_json());
  const auto hello = *tokenizer->id_of("\u2581hello");
  const std::vector<TokenId> ids = {1, hello, 2, hello};
  EXPECT_EQ(tokenizer->decode(ids), "hello hello");
  EXPECT_EQ(tokenizer->decode(ids, true), "<s> hello</s> hello");
}

TEST(Detokenizer, StripsTheLeadingSpaceOnceATextOnly) {
  const auto tokenizer = parse(small_json());
  const auto hello = *tokenizer->id_of("\u2581hello"), space = *tokenizer->id_of("\u2581");
  EXPECT_EQ(tokenizer->decode(std::vector{hello, hello}), "hello hello");
  EXPECT_EQ(tokenizer->decode(std::vector{space, hello}), " hello");
  Detokenizer detokenizer(*tokenizer);
  EXPECT_EQ(detokenizer.push(hello), "hello");
  EXPECT_EQ(detokenizer.push(hello), " hello");
}

TEST(Detokenizer, IgnoresIdsThatAreNoTokens) {
  const auto tokenizer = parse(small_json());
  Detokenizer detokenizer(*tokenizer);
  EXPECT_EQ(detokenizer.push(-1), "");
  EXPECT_EQ(detokenizer.push(tokenizer->size()), "");
  EXPECT_EQ(detokenizer.push(*tokenizer->id_of("\u2581hello")), "hello");
}

void expect_round_trips(const Tokenizer& tokenizer) {
  for (std::uint64_t number = 100'000; number < 102'000; ++number) {
    const std::string text = normalize_unicode(oracle::oracle_string(number), NormalForm::nfc);
    const auto ids = tokenizer.encode(text, {});
    EXPECT_EQ(tokenizer.decode(ids), text) << number;
    Detokenizer detokenizer(tokenizer);
    std::string streamed;
    for (TokenId id : ids) streamed += detokenizer.push(id);
    EXPECT_EQ(streamed + detokenizer.finish(), text) << number;
  }
  for (std::uint64_t seed = 0; seed < 500; ++seed) {
    std::string text;
    for (std::uint64_t i = 0; i < 30; ++i) {
      const auto c = static_cast<char32_t>(random_u64(seed, i) % 0x110000);
      append_utf8(text, c >= 0xd800 && c <= 0xdfff ? U'x' : c);
    }
    text = normalize_unicode(text, NormalForm::nfc);
    EXPECT_EQ(tokenizer.decode(tokenizer.encode(text, {})), text) << seed;
  }
}

TEST(RoundTrip, TinyGivesBackRandomUnicode) {
  expect_round_trips(*load_tokenizer(std::filesystem::path(KEEL_SOURCE_DIR) / "models" / "tiny"));
}

TEST(RoundTrip, Qwen3GivesBackRandomUnicode) {
  const auto folder = std::filesystem::path(KEEL_SHARED_DIR) / "data" / "tokenizers" / "qwen3";
  if (!std::filesystem::exists(folder)) GTEST_SKIP() << folder << " is absent";
  expect_round_trips(*load_tokenizer(folder));
}

}  // namespace
}  // namespace keel
