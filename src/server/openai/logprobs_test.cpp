#include "server/openai/logprobs.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace keel {
namespace {

// Token 0 is "he", 1 "llo", 2 "é", 3 and 4 its two bytes, 5 "\"".
class SmallTokenizer : public Tokenizer {
 public:
  std::vector<TokenId> encode(std::string_view, EncodeOptions) const override { return {}; }
  std::string token_bytes(TokenId id, bool) const override {
    constexpr const char* kWords[] = {"he", "llo", "\xc3\xa9", "\xc3", "\xa9", "\""};
    return kWords[id];
  }
  bool is_special(TokenId) const override { return false; }
  TokenId size() const override { return 6; }
  std::optional<TokenId> id_of(std::string_view) const override { return std::nullopt; }
};

const SmallTokenizer kTokenizer;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

TEST(Logprobs, CountOffsetsInCharacters) {
  std::int64_t offset = 10;
  const std::vector<TokenReport> reports = {{{2, -1, 1}, {}}, {{1, -2, 1}, {}}, {{0, -3, 1}, {}}};
  const Json json = completion_logprobs(kTokenizer, reports, offset);
  EXPECT_EQ(json["text_offset"], Json::array({10, 11, 14}));
  EXPECT_EQ(offset, 16);
}

TEST(Logprobs, ListTheChosenTokenBesideTheTop) {
  std::int64_t offset = 0;
  const std::vector<TokenReport> reports = {{{1, -4, 9}, {{0, -0.5f, 1}, {2, -1, 2}}}};
  const Json json = completion_logprobs(kTokenizer, reports, offset);
  EXPECT_EQ(json["tokens"], Json::array({"llo"}));
  EXPECT_EQ(json["token_logprobs"], Json::array({-4.0}));
  EXPECT_EQ(json["top_logprobs"][0], Json({{"he", -0.5}, {"é", -1.0}, {"llo", -4.0}}));
}

TEST(Logprobs, AreNullForAPromptsFirstTokenAndFiniteElsewhere) {
  std::int64_t offset = 0;
  const std::vector<TokenReport> reports = {{{0, NAN, 0}, {}}, {{1, -kInfinity, 6}, {{0, -0.5f, 1}}}};
  const Json json = completion_logprobs(kTokenizer, reports, offset);
  EXPECT_TRUE(json["token_logprobs"][0].is_null());
  EXPECT_TRUE(json["top_logprobs"][0].is_null());
  EXPECT_EQ(json["token_logprobs"][1], -9999.0);
  const Json prompt = prompt_logprobs(kTokenizer, reports);
  EXPECT_TRUE(prompt[0].is_null());
  EXPECT_EQ(prompt[1]["1"]["rank"], 6);
  EXPECT_EQ(prompt[1]["0"]["decoded_token"], "he");
}

TEST(Logprobs, GiveBytesWhereATokenIsNoCharacter) {
  const Json json = chat_logprobs(kTokenizer, std::vector<TokenReport>{{{3, -1, 1}, {{4, -2, 2}}}});
  EXPECT_EQ(json["content"][0]["token"], "bytes:\\xc3");
  EXPECT_EQ(json["content"][0]["bytes"], Json::array({0xC3}));
  EXPECT_EQ(json["content"][0]["top_logprobs"][0]["token"], "bytes:\\xa9");
}

TEST(Logprobs, KnowUtf8) {
  for (const char* good : {"", "a", "\xc3\xa9", "\xe2\x82\xac", "\xf0\x9f\x98\x80", "\xed\x9f\xbf", "\xf4\x8f\xbf\xbf"}) {
    EXPECT_TRUE(is_utf8(good)) << good;
  }
  for (const char* bad : {"\x80", "\xc3", "\xc0\xaf", "\xe0\x80\x80", "\xed\xa0\x80", "\xf0\x80\x80\x80",
                          "\xf4\x90\x80\x80", "\xff", "a\xe2\x82"}) {
    EXPECT_FALSE(is_utf8(bad)) << bad;
  }
}

}  // namespace
}  // namespace keel
