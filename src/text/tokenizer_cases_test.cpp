// The shared cases: texts and their tokens without BOS, for several vocabularies.
#include <gtest/gtest.h>

#include <filesystem>
#include <sstream>

#include "base/error.h"
#include "base/text_file.h"
#include "text/tokenizer.h"

namespace keel {
namespace {

namespace fs = std::filesystem;

const fs::path kFolder = fs::path(KEEL_SHARED_DIR) / "data" / "tokenizers";

std::vector<std::string> read_texts(const fs::path& path) {
  const std::string all = read_text_file(path);
  const std::string separator = "\n__ggml_vocab_test__\n";
  std::vector<std::string> texts;
  std::size_t from = 0;
  for (std::size_t at; (at = all.find(separator, from)) != all.npos; from = at + separator.size())
    texts.push_back(all.substr(from, at - from));
  return texts;  // nothing follows the last separator
}

std::vector<std::vector<TokenId>> read_ids(const fs::path& path) {
  std::istringstream lines(read_text_file(path));
  std::vector<std::vector<TokenId>> all;
  for (std::string line; std::getline(lines, line);) {
    std::istringstream numbers(line);
    auto& ids = all.emplace_back();
    for (TokenId id; numbers >> id;) ids.push_back(id);
  }
  return all;
}

void expect_cases(const Tokenizer& tokenizer, const std::string& name) {
  const auto texts = read_texts(kFolder / (name + ".gguf.inp"));
  const auto wanted = read_ids(kFolder / (name + ".gguf.out"));
  ASSERT_EQ(texts.size(), wanted.size());
  ASSERT_GE(texts.size(), 40u);
  for (std::size_t i = 0; i < texts.size(); ++i) {
    const auto ids = tokenizer.encode(texts[i], {});
    EXPECT_EQ(ids, wanted[i]) << name << ", case " << i << ": " << texts[i];
    EXPECT_EQ(tokenizer.decode(ids), texts[i]) << name << ", case " << i;
  }
}

class GgufVocabulary : public testing::TestWithParam<const char*> {};

TEST_P(GgufVocabulary, GivesTheKnownTokensOfEveryCase) {
  const fs::path file = kFolder / (std::string(GetParam()) + ".gguf");
  if (!fs::exists(file)) GTEST_SKIP() << file << " is absent";
  const auto tokenizer = load_tokenizer(GgufFile(file));
  expect_cases(*tokenizer, GetParam());
}

INSTANTIATE_TEST_SUITE_P(Shared,
                         GgufVocabulary,
                         testing::Values("ggml-vocab-gpt-2",
                                         "ggml-vocab-deepseek-coder",
                                         "ggml-vocab-llama-spm",
                                         "ggml-vocab-phi-3"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

TEST(GgufVocabulary, AddsBosWhereTheFileSaysSo) {
  const fs::path file = kFolder / "ggml-vocab-llama-spm.gguf";
  if (!fs::exists(file)) GTEST_SKIP() << file << " is absent";
  const auto tokenizer = load_tokenizer(GgufFile(file));
  EXPECT_EQ(tokenizer->bos(), 1);
  EXPECT_EQ(tokenizer->eos(), 2);
  EXPECT_EQ(tokenizer->encode("Hello", {.add_special = true}), (std::vector<TokenId>{1, 15043}));
  EXPECT_EQ(tokenizer->encode("<s>Hello", {.parse_special = true}),
            (std::vector<TokenId>{1, 15043}));
  const auto plain = tokenizer->encode("<s>Hello", {});
  EXPECT_EQ(std::count(plain.begin(), plain.end(), 1), 0);
  EXPECT_EQ(tokenizer->decode(plain), "<s>Hello");
}

TEST(GgufVocabulary, CarriesTheChatTemplate) {
  const fs::path file = kFolder / "ggml-vocab-phi-3.gguf";
  if (!fs::exists(file)) GTEST_SKIP() << file << " is absent";
  const auto tokenizer = load_tokenizer(GgufFile(file));
  EXPECT_NE(tokenizer->chat_template().find("<|assistant|>"), std::string::npos);
  // Phi-3's <|end|> takes the line break after it along.
  EXPECT_EQ(tokenizer->encode("<|end|>\n<|user|>", {.parse_special = true}),
            (std::vector<TokenId>{32007, 32010}));
}

TEST(QwenFolder, GivesTheKnownTokensOfEveryCase) {
  const fs::path folder = kFolder / "qwen3";
  if (!fs::exists(folder)) GTEST_SKIP() << folder << " is absent";
  const auto tokenizer = load_tokenizer(folder);
  EXPECT_EQ(tokenizer->eos(), 151645);
  EXPECT_FALSE(tokenizer->bos());
  EXPECT_FALSE(tokenizer->chat_template().empty());
  expect_cases(*tokenizer, "ggml-vocab-qwen2");
}

}  // namespace
}  // namespace keel
