// Vocabularies of a few tokens inside GGUF files made here.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "base/error.h"
#include "text/tokenizer.h"

namespace keel {
namespace {

using testing::HasSubstr;
using Ids = std::vector<TokenId>;

// Writes the metadata part of a GGUF.
class GgufBytes {
 public:
  void add(const std::string& key, const std::string& value) {
    head(key, 8);
    put(value);
  }
  void add(const std::string& key, std::uint32_t value) {
    head(key, 4);
    put(value);
  }
  void add(const std::string& key, bool value) {
    head(key, 7);
    bytes_ += value ? '\1' : '\0';
  }
  void add(const std::string& key, const std::vector<std::string>& values) {
    array(key, 8, values);
  }
  void add(const std::string& key, const std::vector<std::int32_t>& values) {
    array(key, 5, values);
  }
  void add(const std::string& key, const std::vector<float>& values) { array(key, 6, values); }

  std::string file() const {
    GgufBytes whole;
    whole.bytes_ = "GGUF";
    whole.put(std::uint32_t{3});
    whole.put(std::uint64_t{0});
    whole.put(count_);
    return whole.bytes_ + bytes_;
  }

 private:
  void head(const std::string& key, std::uint32_t type) {
    put(key);
    put(type);
    ++count_;
  }
  template <class T>
  void put(const T& value) {
    if constexpr (std::is_same_v<T, std::string>) {
      put(std::uint64_t{value.size()});
      bytes_ += value;
    } else {
      bytes_.append(reinterpret_cast<const char*>(&value), sizeof value);
    }
  }
  template <class T>
  void array(const std::string& key, std::uint32_t type, const std::vector<T>& values) {
    head(key, 9);
    put(type);
    put(std::uint64_t{values.size()});
    for (const T& value : values) put(value);
  }

  std::string bytes_;
  std::uint64_t count_ = 0;
};

struct Vocab {
  std::string model = "llama", pre;
  std::vector<std::string> tokens;
  std::vector<std::int32_t> types;
  std::vector<float> scores;
  std::vector<std::string> merges;
  std::optional<bool> add_bos, add_space;

  void add(const std::string& text, std::int32_t type = 1, float score = 0) {
    tokens.push_back(text);
    types.push_back(type);
    scores.push_back(score);
  }

  std::unique_ptr<Tokenizer> load() const {
    GgufBytes gguf;
    gguf.add("tokenizer.ggml.model", model);
    if (!pre.empty()) gguf.add("tokenizer.ggml.pre", pre);
    gguf.add("tokenizer.ggml.tokens", tokens);
    gguf.add("tokenizer.ggml.token_type", types);
    if (!scores.empty()) gguf.add("tokenizer.ggml.scores", scores);
    if (!merges.empty()) gguf.add("tokenizer.ggml.merges", merges);
    gguf.add("tokenizer.ggml.bos_token_id", std::uint32_t{1});
    gguf.add("tokenizer.ggml.eos_token_id", std::uint32_t{2});
    gguf.add("tokenizer.ggml.unknown_token_id", std::uint32_t{0});
    if (add_bos) gguf.add("tokenizer.ggml.add_bos_token", *add_bos);
    if (add_space) gguf.add("tokenizer.ggml.add_space_prefix", *add_space);
    gguf.add("tokenizer.chat_template", std::string("template"));
    const std::string bytes = gguf.file();
    return load_tokenizer(GgufFile("made.gguf", std::as_bytes(std::span(bytes))));
  }

  std::string error() const {
    try {
      load();
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  }
};

Vocab by_scores() {
  Vocab vocab;
  vocab.add("<unk>", 2);
  vocab.add("<s>", 3);
  vocab.add("</s>", 3);
  vocab.add("\u2581", 1, -10);
  vocab.add("a", 1, -11);
  vocab.add("b", 1, -12);
  vocab.add("ab", 1, -2);
  vocab.add("ba", 1, -1);
  vocab.add("\u2581ab", 1, -3);
  vocab.add("<call>", 4);
  vocab.add("s", 1, -13);
  return vocab;
}

TEST(GgufScores, RefusesAddedTokensThatCutCharacters) {
  Vocab vocab = by_scores();
  vocab.add("\xa9", 4);
  EXPECT_THAT(vocab.error(), testing::AllOf(HasSubstr("made.gguf"), HasSubstr("not UTF-8")));
}

TEST(GgufScores, MergeTheHighestScoreFirst) {
  const auto tokenizer = by_scores().load();
  EXPECT_EQ(tokenizer->encode("ab", {}), Ids{8});
  EXPECT_EQ(tokenizer->encode("aba", {}), (Ids{3, 4, 7}));  // "ba" beats "ab"
  EXPECT_EQ(tokenizer->decode(Ids{3, 4, 7}), "aba");
  EXPECT_EQ(tokenizer->chat_template(), "template");
  EXPECT_EQ(tokenizer->encode("ab", {.add_special = true}), (Ids{1, 8}));
}

TEST(GgufScores, FindUserDefinedTokensAlwaysAndControlTokensWhenAsked) {
  const auto tokenizer = by_scores().load();
  EXPECT_EQ(tokenizer->encode("<call>ab", {}), (Ids{9, 8}));
  EXPECT_EQ(tokenizer->encode("<s>", {.parse_special = true}), Ids{1});
  EXPECT_EQ(tokenizer->encode("<s>", {}), (Ids{3, 0, 10, 0}));  // "<" and ">" are unknown
  EXPECT_FALSE(tokenizer->is_special(9));
  EXPECT_TRUE(tokenizer->is_special(1));
  EXPECT_EQ(tokenizer->decode(Ids{9}), "<call>");
}

// "<s" and ">" would join to the control token's text.
TEST(GgufScores, NeverMergePlainTextIntoAControlToken) {
  Vocab vocab = by_scores();
  vocab.add("<", 1, -20);
  vocab.add(">", 1, -20);
  vocab.add("<s", 1, -1);
  const Ids ids = vocab.load()->encode("<s>", {});
  EXPECT_EQ(std::count(ids.begin(), ids.end(), 1), 0);
  EXPECT_EQ(ids, (Ids{3, 13, 12}));
}

TEST(GgufScores, ObeyTheFlagsOfTheFile) {
  Vocab vocab = by_scores();
  vocab.add_bos = false;
  vocab.add_space = false;
  const auto tokenizer = vocab.load();
  EXPECT_EQ(tokenizer->encode("ab", {.add_special = true}), Ids{6});
  EXPECT_EQ(tokenizer->decode(Ids{8}), " ab");
}

Vocab by_merges() {
  Vocab vocab;
  vocab.model = "gpt2";
  vocab.pre = "gpt-2";
  vocab.scores.clear();
  for (const char* text : {"<|pad|>", "<|bos|>", "<|im_end|>", "a", "b", "\u0120", "\u0120a", "ab"})
    vocab.add(text);
  vocab.types[0] = vocab.types[1] = 3;
  vocab.types[2] = 4;
  vocab.scores.clear();
  vocab.merges = {"\u0120 a", "a b"};
  return vocab;
}

TEST(GgufMerges, MergeWithinThePiecesOfThePreTokenizer) {
  const auto tokenizer = by_merges().load();
  EXPECT_EQ(tokenizer->encode("ab ab", {}), (Ids{7, 6, 4}));
  EXPECT_EQ(tokenizer->encode("ab", {.add_special = true}), Ids{7});
  EXPECT_TRUE(tokenizer->is_special(2))
      << "an end of turn is special whatever type the converter gave it";
}

TEST(GgufMerges, Llama3TakesWholePiecesAndAddsBos) {
  Vocab vocab = by_merges();
  vocab.pre = "llama-bpe";
  vocab.add("\u0120ab");  // no merge makes it
  vocab.scores.clear();
  EXPECT_EQ(vocab.load()->encode(" ab", {.add_special = true}), (Ids{1, 8}));
}

TEST(GgufVocabularies, RefuseByNameWhatIsNotKnown) {
  Vocab vocab = by_merges();
  vocab.pre = "tekken-of-tomorrow";
  EXPECT_THAT(vocab.error(),
              testing::AllOf(HasSubstr("made.gguf"), HasSubstr("tekken-of-tomorrow")));
  vocab.pre.clear();
  EXPECT_THAT(vocab.error(), HasSubstr("tokenizer.ggml.pre"));
  vocab = by_merges();
  vocab.model = "rwkv";
  EXPECT_THAT(vocab.error(), HasSubstr("rwkv"));
  vocab = by_merges();
  vocab.merges = {"a nowhere"};
  EXPECT_THAT(vocab.error(), HasSubstr("a nowhere"));
  vocab = by_merges();
  vocab.merges.clear();
  EXPECT_THAT(vocab.error(), HasSubstr("tokenizer.ggml.merges"));
  vocab = by_scores();
  vocab.scores.pop_back();
  EXPECT_THAT(vocab.error(), HasSubstr("tokenizer.ggml.scores"));
  vocab = by_scores();
  vocab.types.pop_back();
  EXPECT_THAT(vocab.error(), HasSubstr("tokenizer.ggml.token_type"));
  vocab = by_scores();
  vocab.tokens.resize(2);
  vocab.types.resize(2);
  vocab.scores.resize(2);
  EXPECT_THAT(vocab.error(), HasSubstr("tokenizer.ggml.eos_token_id"));
}

}  // namespace
}  // namespace keel
