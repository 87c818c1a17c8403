// Against the reference library: tools/reference/tokenizer_oracle.py wrote testdata/oracle.txt.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <sstream>

#include "base/sha256.h"
#include "base/text_file.h"
#include "text/testdata/oracle_strings.h"
#include "text/tokenizer.h"
#include "text/tokenizer_json.h"

namespace keel {
namespace {

namespace fs = std::filesystem;

constexpr int kGroup = 100;
const fs::path kTestData = fs::path(KEEL_SOURCE_DIR) / "src" / "text" / "testdata";

std::string digest_of_group(const Tokenizer& tokenizer, int first) {
  std::string lines;
  for (int number = first; number < first + kGroup; ++number) {
    const auto text = oracle::oracle_string(static_cast<std::uint64_t>(number));
    const auto ids = tokenizer.encode(text, {.parse_special = number % 2 == 1});
    for (std::size_t i = 0; i < ids.size(); ++i) lines += fmt::format("{}{}", i ? " " : "", ids[i]);
    lines += '\n';
  }
  return hex(sha256(lines)).substr(0, 16);
}

void expect_reference_ids(const Tokenizer& tokenizer, const std::string& name) {
  std::istringstream golden(read_text_file(kTestData / "oracle.txt"));
  int groups = 0, wrong = 0;
  std::string tokenizer_name, digest;
  for (int first; golden >> tokenizer_name >> first >> digest;) {
    if (tokenizer_name != name) continue;
    ++groups;
    if (digest_of_group(tokenizer, first) == digest) continue;
    if (++wrong <= 3)
      ADD_FAILURE() << name << ": strings " << first << " to " << first + kGroup - 1;
  }
  EXPECT_EQ(groups, 100) << name;
  EXPECT_EQ(wrong, 0) << name;
}

TEST(Oracle, TinyGivesTheReferencesTokens) {
  expect_reference_ids(*load_tokenizer(fs::path(KEEL_SOURCE_DIR) / "models" / "tiny"), "tiny");
}

TEST(Oracle, Qwen3GivesTheReferencesTokens) {
  const fs::path folder = fs::path(KEEL_SHARED_DIR) / "data" / "tokenizers" / "qwen3";
  if (!fs::exists(folder)) GTEST_SKIP() << folder << " is absent";
  expect_reference_ids(*load_tokenizer(folder), "qwen3");
}

class SmallTokenizer : public testing::TestWithParam<const char*> {};

TEST_P(SmallTokenizer, GivesTheReferencesTokens) {
  const fs::path file = kTestData / (std::string(GetParam()) + ".json");
  expect_reference_ids(*parse_tokenizer_json(file.string(), read_text_file(file), {}), GetParam());
}

INSTANTIATE_TEST_SUITE_P(
    TestData,
    SmallTokenizer,
    testing::Values("llama2_style", "metaspace_style", "mixed_style", "llama3_style"));

}  // namespace
}  // namespace keel
