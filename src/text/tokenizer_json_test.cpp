#include "text/tokenizer_json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <fstream>

#include "base/error.h"
#include "base/random.h"
#include "text/file_fields.h"
#include "text/testdata/small_json.h"

namespace keel {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::HasSubstr;

using Ids = std::vector<TokenId>;

std::string error_of(const json& document, const TokenizerConfig& config = {}) {
  try {
    parse(document, config);
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(TokenizerJson, MergesByRankAndFallsBackToBytes) {
  const auto tokenizer = parse(small_json());
  const auto hello = *tokenizer->id_of("\u2581hello"), space = *tokenizer->id_of("\u2581");
  EXPECT_EQ(tokenizer->encode("hello hello", {}), (Ids{hello, hello}));
  EXPECT_EQ(tokenizer->encode("\xc3\xa9", {}), (Ids{space, 3 + 0xc3, 3 + 0xa9}));
  EXPECT_EQ(tokenizer->encode("", {}), Ids{});
  EXPECT_THAT(tokenizer->description(), HasSubstr("269 tokens"));
}

TEST(TokenizerJson, ReadsBothSpellingsOfMerges) {
  json pairs = small_json();
  for (json& merge : pairs["model"]["merges"]) {
    const auto text = merge.get<std::string>();
    const auto space = text.find(' ');
    merge = {text.substr(0, space), text.substr(space + 1)};
  }
  EXPECT_EQ(parse(pairs)->encode("hello", {}), parse(small_json())->encode("hello", {}));
}

TEST(TokenizerJson, AddsSpecialTokensOnlyWhenAsked) {
  const auto tokenizer = parse(small_json());
  const auto hello = *tokenizer->id_of("\u2581hello");
  EXPECT_EQ(tokenizer->encode("hello", {.add_special = true}), (Ids{1, hello}));
  EXPECT_EQ(tokenizer->encode("", {.add_special = true}), Ids{1});
  EXPECT_EQ(tokenizer->encode("hello", {}), Ids{hello});
}

TEST(TokenizerJson, TakesSpecialTokensInTheTextForTextUnlessAsked) {
  const auto tokenizer = parse(small_json());
  const auto hello = *tokenizer->id_of("\u2581hello");
  EXPECT_EQ(tokenizer->encode("</s>hello", {.parse_special = true}), (Ids{2, hello}));
  const Ids plain = tokenizer->encode("</s>hello", {});
  EXPECT_EQ(std::count(plain.begin(), plain.end(), 2), 0);
  EXPECT_EQ(tokenizer->decode(plain), "</s>hello");
}

TEST(TokenizerJson, StripsAroundAddedTokensAsTheirFlagsSay) {
  json document = small_json();
  document["added_tokens"][1]["lstrip"] = true;
  document["added_tokens"][2]["rstrip"] = true;
  const auto tokenizer = parse(document);
  const auto hello = *tokenizer->id_of("\u2581hello");
  EXPECT_EQ(tokenizer->encode("hello \n<s>hello", {.parse_special = true}), (Ids{hello, 1, hello}));
  EXPECT_EQ(tokenizer->encode("hello</s> \u3000 hello", {.parse_special = true}),
            (Ids{hello, 2, hello}));
  EXPECT_EQ(tokenizer->encode("</s> <s>", {.parse_special = true}), (Ids{2, 1}));
}

TEST(TokenizerJson, LetsSingleWordTokensStandAlone) {
  json document = small_json();
  document["added_tokens"][2] = {{"id", 300},
                                 {"content", "llo"},
                                 {"special", false},
                                 {"single_word", true},
                                 {"normalized", false}};
  document["model"]["vocab"].erase("llo");
  document["model"]["merges"] = json::array();
  const auto tokenizer = parse(document);
  EXPECT_EQ(tokenizer->size(), 301);
  const Ids inside = tokenizer->encode("hello", {}), alone = tokenizer->encode("he, llo.", {});
  EXPECT_EQ(std::count(inside.begin(), inside.end(), 300), 0);
  EXPECT_EQ(std::count(alone.begin(), alone.end(), 300), 1);
}

TEST(TokenizerJson, ConfigurationNamesSpecialTokensAndTheirFlags) {
  TokenizerConfig config;
  config.bos_token = "<s>";
  config.eos_token = "</s>";
  config.chat_template = "template";
  config.added_tokens = {{.id = 400, .text = "<|user|>", .special = true}};
  const auto tokenizer = parse(small_json(), config);
  EXPECT_EQ(tokenizer->bos(), 1);
  EXPECT_EQ(tokenizer->eos(), 2);
  EXPECT_EQ(tokenizer->chat_template(), "template");
  EXPECT_EQ(tokenizer->size(), 401);
  EXPECT_TRUE(tokenizer->is_special(400));
  EXPECT_FALSE(tokenizer->is_special(50));
  EXPECT_EQ(tokenizer->encode("<|user|>", {.parse_special = true}), Ids{400});
  config.added_tokens[0].id = 2;
  EXPECT_THAT(error_of(small_json(), config), HasSubstr("id 2"));
}

TEST(TokenizerJson, ReadsBadUtf8AsReplacementCharacters) {
  const auto tokenizer = parse(small_json());
  EXPECT_EQ(tokenizer->encode("h\xff\xe4\xbdz", {}), tokenizer->encode("h\ufffd\ufffdz", {}));
}

TEST(TokenizerJson, RefusesByNameWhatItDoesNotDo) {
  const struct {
    const char* place;
    json value;
    const char* named;
  } cases[] = {
      {"/model/type", "Unigram", "Unigram"},
      {"/model/type", "WordPiece", "WordPiece"},
      {"/model/dropout", 0.1, "dropout"},
      {"/model/end_of_word_suffix", "</w>", "end_of_word_suffix"},
      {"/model/continuing_subword_prefix", "##", "continuing_subword_prefix"},
      {"/truncation", {{"max_length", 5}}, "truncation"},
      {"/padding", {{"strategy", "x"}}, "padding"},
      {"/normalizer", {{"type", "Precompiled"}}, "Precompiled"},
      {"/normalizer/normalizers/0/type", "BertNormalizer", "BertNormalizer"},
      {"/pre_tokenizer", {{"type", "BertPreTokenizer"}}, "BertPreTokenizer"},
      {"/pre_tokenizer",
       {{"type", "Split"}, {"pattern", {{"Regex", "("}}}, {"behavior", "Isolated"}},
       "does not compile"},
      {"/pre_tokenizer",
       {{"type", "Split"}, {"pattern", {{"String", "a"}}}, {"behavior", "Sideways"}},
       "Sideways"},
      {"/pre_tokenizer", {{"type", "Metaspace"}, {"replacement", "ab"}}, "one character"},
      {"/decoder", {{"type", "WordPiece"}}, "WordPiece"},
      {"/decoder/decoders/3/start", 2, "after Fuse"},
      {"/decoder/decoders/3/type", "ByteLevel", "after Fuse"},
      {"/post_processor", {{"type", "BertProcessing"}}, "BertProcessing"},
      {"/post_processor/special_tokens/<s>/ids", {9999}, "9999"},
      {"/model/merges/0", "h e l", "merge"},
      {"/model/merges/0", "x y", "not in the vocabulary"},
      {"/model/merges/0", "h o", "not in the vocabulary"},
      {"/model/unk_token", "nope", "unk_token"},
      {"/model/vocab/h", -1, "id -1"},
      {"/model/vocab/h", 1 << 30, "id 1073741824"},
      {"/model/vocab/h", 0, "same id"},
      {"/added_tokens/0/id", 200, "200"},
      {"/added_tokens/0/content", 7, "content"},
  };
  EXPECT_EQ(error_of(small_json()), "no error");
  for (const auto& c : cases) {
    json document = small_json();
    document[json::json_pointer(c.place)] = c.value;
    EXPECT_THAT(error_of(document), testing::AllOf(HasSubstr("small.json"), HasSubstr(c.named)))
        << c.place;
  }
}

TEST(TokenizerJson, RefusesEndlesslyNestedSequences) {
  json nested = {{"type", "NFC"}};
  for (int i = 0; i < 20; ++i)
    nested = {{"type", "Sequence"}, {"normalizers", json::array({nested})}};
  json document = small_json();
  document["normalizer"] = nested;
  EXPECT_THAT(error_of(document), HasSubstr("Sequences"));
}

TEST(TokenizerJson, RefusesRegularExpressionsOverHalvesOfCharacters) {
  json document = small_json();
  document["decoder"] = {
      {"type", "Sequence"},
      {"decoders", {{{"type", "ByteFallback"}}, {{"type", "Replace"}, {"pattern", {{"Regex", "a"}}}, {"content", "b"}}}}};
  EXPECT_THAT(error_of(document), HasSubstr("after bytes"));
  std::swap(document["decoder"]["decoders"][0], document["decoder"]["decoders"][1]);
  EXPECT_EQ(error_of(document), "no error");
}

// The search would find the same match for ever.
TEST(TokenizerJson, RefusesRegularExpressionsThatMatchBackwards) {
  json document = small_json();
  document["pre_tokenizer"] = {{"type", "Split"}, {"pattern", {{"Regex", "(?<=\\Kl)"}}}, {"behavior", "Isolated"}};
  const auto tokenizer = parse(document);
  EXPECT_THROW(tokenizer->encode("hello", {}), Error);
}

// Naming such a value in a message would take more stack than there is.
TEST(TokenizerJson, RefusesDeepValues) {
  std::string document = small_json().dump();
  const std::string first = "\"vocab\":{";
  document.insert(document.find(first) + first.size(), "\"deep\":" + std::string(200'000, '[') + std::string(200'000, ']') + ",");
  try {
    parse_tokenizer_json("deep.json", document, {});
    ADD_FAILURE() << "wanted an Error";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), testing::AllOf(HasSubstr("deep.json"), HasSubstr("nested deeper")));
  }
}

TEST(TokenizerJson, RefusesEveryTruncation) {
  const std::string whole = small_json().dump();
  for (std::size_t length = 0; length < whole.size(); length += 7)
    EXPECT_THROW(parse_tokenizer_json("cut.json", whole.substr(0, length), {}), Error) << length;
}

// A value of another kind anywhere: an Error or a tokenizer that works, never anything else.
TEST(TokenizerJson, SurvivesAnyValueInAnyPlace) {
  const json flat = small_json().flatten();
  const json strange[] = {
      nullptr, true, -5, 3.5, "", "x", json::array(), json::object(), json::array({1})};
  std::uint64_t number = 0;
  for (const auto& [place, unused] : flat.items()) {
    if (place.starts_with("/model/vocab/<0x") && !place.starts_with("/model/vocab/<0x0")) continue;
    json document = small_json();
    document[json::json_pointer(place)] = strange[random_u64(7, number++) % std::size(strange)];
    try {
      const auto tokenizer = parse(document);
      tokenizer->decode(
          tokenizer->encode("hello <s> w\xff", {.add_special = true, .parse_special = true}), true);
    } catch (const Error&) {
    }
  }
  EXPECT_GT(number, 60u);
}

TEST(TokenizerJson, EncodesAMillionEqualLettersInTime) {
  const auto tokenizer = load_tokenizer(fs::path(KEEL_SOURCE_DIR) / "models" / "tiny");
  json long_merges = small_json();  // "l" merges into ever longer tokens, in one word without cuts
  json& model = long_merges["model"];
  for (std::string token = "llll"; token.size() <= 64; token += token) {
    model["vocab"][token] = 300 + static_cast<int>(token.size());
    const std::string half = token.substr(token.size() / 2);
    model["merges"].push_back({half, half});
  }
  const auto start = std::chrono::steady_clock::now();
  for (const char letter : {'a', ' ', '\n', '0', '!'}) {
    const std::string text(1'000'000, letter);
    EXPECT_EQ(tokenizer->decode(tokenizer->encode(text, {})), text);
  }
  EXPECT_EQ(parse(long_merges)->encode(std::string(1'000'000, 'l'), {}).size(), 15626u);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(40));
}

class TokenizerFolder : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / ("keel_tokenizer_" + std::to_string(::getpid()));
    fs::create_directories(folder_);
    write("tokenizer.json", small_json().dump());
  }
  void TearDown() override { fs::remove_all(folder_); }
  void write(const char* name, const std::string& text) { std::ofstream(folder_ / name) << text; }

  fs::path folder_;
};

TEST_F(TokenizerFolder, ReadsTheConfigurationBesideTheTokenizer) {
  write(
      "tokenizer_config.json",
      R"({"bos_token": {"content": "<s>"}, "chat_template": [{"name": "tool_use", "template": "no"},
            {"name": "default", "template": "yes"}]})");
  write("special_tokens_map.json", R"({"bos_token": "<unk>", "eos_token": {"content": "</s>"}})");
  auto tokenizer = load_tokenizer(folder_);
  EXPECT_EQ(tokenizer->bos(), 1);
  EXPECT_EQ(tokenizer->eos(), 2);
  EXPECT_EQ(tokenizer->chat_template(), "yes");
  write("chat_template.jinja", "from the file");
  EXPECT_EQ(load_tokenizer(folder_)->chat_template(), "from the file");
}

TEST_F(TokenizerFolder, WorksWithoutAnyConfiguration) {
  const auto tokenizer = load_tokenizer(folder_);
  EXPECT_FALSE(tokenizer->bos());
  EXPECT_EQ(tokenizer->chat_template(), "");
}

TEST_F(TokenizerFolder, NamesTheFileThatIsMalformed) {
  write("tokenizer_config.json", R"({"bos_token": 5})");
  try {
    load_tokenizer(folder_);
    FAIL() << "a number is no token";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(),
                testing::AllOf(HasSubstr("tokenizer_config.json"), HasSubstr("bos_token")));
  }
  fs::remove(folder_ / "tokenizer_config.json");
  fs::remove(folder_ / "tokenizer.json");
  EXPECT_THROW(load_tokenizer(folder_), Error);
}

}  // namespace
}  // namespace keel
