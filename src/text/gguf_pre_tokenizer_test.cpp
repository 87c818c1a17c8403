// Against the reference library: tools/reference/gguf_pre_tokenizers.py wrote testdata/gguf_pre_tokenizers.txt.
#include "text/gguf_pre_tokenizer.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>

#include "base/sha256.h"
#include "text/testdata/oracle_strings.h"

namespace keel {
namespace {

constexpr int kGroup = 100;

std::string digest_of_group(const PreTokenizer& splitter, int first) {
  std::string lines;
  for (int number = first; number < first + kGroup; ++number) {
    const auto pieces = splitter.apply(oracle::oracle_string(static_cast<std::uint64_t>(number)), true);
    for (std::size_t i = 0; i < pieces.slices.size(); ++i) {
      lines += fmt::format("{}{}", i ? " " : "", pieces.slices[i].end);
    }
    lines += '\n';
  }
  return hex(sha256(lines)).substr(0, 16);
}

TEST(GgufPreTokenizers, CutWhereTheReferenceDoes) {
  const auto file = std::filesystem::path(KEEL_SOURCE_DIR) / "src/text/testdata/gguf_pre_tokenizers.txt";
  std::ifstream golden(file);
  std::map<std::string, int> groups;
  std::string name, digest;
  for (int first; golden >> name >> first >> digest;) {
    const GgufPreTokenizer* known = find_gguf_pre_tokenizer(name);
    ASSERT_NE(known, nullptr) << name;
    EXPECT_EQ(digest_of_group(known->pre_tokenizer("the test"), first), digest)
        << name << ": texts " << first << " to " << first + kGroup - 1;
    ++groups[name];
  }
  EXPECT_EQ(groups.size(), 8u);
  for (const auto& [known, count] : groups) EXPECT_EQ(count, 100) << known;
}

TEST(GgufPreTokenizers, ShareTheSplittingOfOtherNames) {
  const auto patterns = [](const char* name) { return find_gguf_pre_tokenizer(name)->patterns; };
  EXPECT_EQ(patterns("llama4"), patterns("gpt-4o"));
  EXPECT_EQ(patterns("pixtral"), patterns("llama-bpe"));
  EXPECT_EQ(patterns("dbrx"), patterns("llama-bpe"));  // Phi-4
  EXPECT_TRUE(find_gguf_pre_tokenizer("tekken")->ignore_merges && find_gguf_pre_tokenizer("tekken")->adds_bos);
  EXPECT_EQ(find_gguf_pre_tokenizer("tekken-of-tomorrow"), nullptr);
}

}  // namespace
}  // namespace keel
