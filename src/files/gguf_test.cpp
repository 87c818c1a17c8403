#include "files/gguf.h"

#include <gtest/gtest.h>

namespace keel {
namespace {

TEST(Gguf, OpensVocabularyOnlyFiles) {
  const std::filesystem::path folder = std::filesystem::path(KEEL_SHARED_DIR) / "data/tokenizers";
  if (!std::filesystem::exists(folder)) GTEST_SKIP() << folder << " is absent";
  const GgufFile file(folder / "ggml-vocab-llama-spm.gguf");
  EXPECT_EQ(*file.string("tokenizer.ggml.model"), "llama");
  EXPECT_EQ(file.strings("tokenizer.ggml.tokens")->size(), 32000u);
  EXPECT_EQ(file.numbers("tokenizer.ggml.scores")->size(), 32000u);
  EXPECT_EQ(file.integers("tokenizer.ggml.token_type")->size(), 32000u);
  EXPECT_EQ(file.integer("tokenizer.ggml.bos_token_id"), 1);
  EXPECT_TRUE(file.tensors().empty());
}

}  // namespace
}  // namespace keel
