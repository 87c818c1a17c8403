// SentencePiece models written here, field by field, so that no trained file is needed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <sstream>

#include "base/error.h"
#include "base/text_file.h"
#include "text/sentencepiece_tokenizer.h"

namespace keel {
namespace {

using Ids = std::vector<TokenId>;

// Protocol buffers' wire format, as far as a model needs it.
std::string varint(std::uint64_t value) {
  std::string bytes;
  for (; value >= 0x80; value >>= 7) bytes += static_cast<char>(value | 0x80);
  return bytes + static_cast<char>(value);
}
std::string number(int field, std::uint64_t value) {
  return varint(static_cast<std::uint64_t>(field) << 3) + varint(value);
}
std::string text(int field, const std::string& value) {
  return varint(static_cast<std::uint64_t>(field) << 3 | 2) + varint(value.size()) + value;
}
std::string real(int field, float value) {
  return varint(static_cast<std::uint64_t>(field) << 3 | 5) +
         std::string(reinterpret_cast<const char*>(&value), sizeof value);
}

// sentencepiece_model.proto: pieces = 1 {piece = 1, score = 2, type = 3}, trainer_spec = 2 {model_type = 3 (BPE is 2),
// byte_fallback = 35}, normalizer_spec = 3 {add_dummy_prefix = 3, remove_extra_whitespaces = 4}.
std::string piece(const std::string& piece_text, float score, std::uint64_t type) {
  return text(1, text(1, piece_text) + real(2, score) + number(3, type));
}
std::string model_of(const std::string& pieces) {
  return pieces + text(2, number(3, 2) + number(35, 1)) + text(3, number(3, 1) + number(4, 0));
}

std::string small_model() {
  std::string pieces = piece("<unk>", 0, 2) + piece("<s>", 0, 3) + piece("</s>", 0, 3);
  for (int byte = 0; byte < 256; ++byte) pieces += piece(fmt::format("<0x{:02X}>", byte), 0, 6);
  float score = 0;
  for (const char* p : {"\u2581hello", "hello", "llo", "he", "ll", "\u2581", "h", "e", "l", "o"})
    pieces += piece(p, score -= 1, 1);
  return model_of(pieces);
}

constexpr TokenId kHello = 259;

TEST(SentencePiece, EncodesWithPrefixSpaceSpecialsAndBytes) {
  const auto tokenizer = parse_sentencepiece("small.model", small_model(), {});
  EXPECT_EQ(tokenizer->size(), 269);
  EXPECT_EQ(tokenizer->encode("hello hello", {}), (Ids{kHello, kHello}));
  EXPECT_EQ(tokenizer->encode("hello", {.add_special = true}), (Ids{1, kHello}));
  EXPECT_EQ(tokenizer->encode("hello</s>", {.parse_special = true}), (Ids{kHello, 2}));
  const Ids plain = tokenizer->encode("</s>", {});
  EXPECT_EQ(std::count(plain.begin(), plain.end(), 2), 0);
  EXPECT_EQ(tokenizer->encode("\xc3\xa9", {}), (Ids{264, 3 + 0xc3, 3 + 0xa9}));
}

TEST(SentencePiece, DecodesWhatItEncodes) {
  const auto tokenizer = parse_sentencepiece("small.model", small_model(), {});
  for (const std::string whole :
       {"hello", " hello", "hello  hello ", "\xf0\x9f\xa6\x99 e\n\xc3\xa9", ""})
    EXPECT_EQ(tokenizer->decode(tokenizer->encode(whole, {})), whole);
  EXPECT_EQ(tokenizer->decode(Ids{1, kHello, 2}), "hello");
  EXPECT_EQ(tokenizer->decode(Ids{1, kHello, 2}, true), "<s> hello</s>");
  EXPECT_EQ(tokenizer->decode(Ids{3 + 0xf0, 3 + 0x9f}), "\ufffd");
  EXPECT_EQ(tokenizer->id_of("</s>"), 2);
  EXPECT_EQ(tokenizer->id_of("<unk>"), 0);
  EXPECT_FALSE(tokenizer->id_of("nothing"));
}

TEST(SentencePiece, TakesItsSpecialTokensFromTheConfiguration) {
  TokenizerConfig config;
  config.add_bos_token = false;
  config.add_eos_token = true;
  config.eos_token = "<|end|>";
  config.added_tokens = {{.id = 269, .text = "<|end|>", .special = true}};
  const auto tokenizer = parse_sentencepiece("small.model", small_model(), config);
  EXPECT_EQ(tokenizer->size(), 270);
  EXPECT_EQ(tokenizer->eos(), 269);
  EXPECT_EQ(tokenizer->bos(), 1);
  EXPECT_EQ(tokenizer->encode("hello", {.add_special = true}), (Ids{kHello, 269}));
  config.added_tokens[0].id = 5;
  EXPECT_THROW(parse_sentencepiece("small.model", small_model(), config), Error);
}

TEST(SentencePiece, RefusesWhatIsNoModel) {
  for (const std::string bytes : {"", "not a model", "\x0a\xff\xff\xff\xff\x0f"}) {
    try {
      parse_sentencepiece("broken.model", bytes, {});
      FAIL() << testing::PrintToString(bytes);
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), testing::HasSubstr("broken.model"));
    }
  }
}

// Llama's vocabulary as a model file: libsentencepiece itself must agree with the known cases.
TEST(SentencePiece, GivesTheKnownTokensOfLlamasVocabulary) {
  const auto folder = std::filesystem::path(KEEL_SHARED_DIR) / "data" / "tokenizers";
  if (!std::filesystem::exists(folder / "ggml-vocab-llama-spm.gguf"))
    GTEST_SKIP() << folder << " is absent";
  const GgufFile gguf(folder / "ggml-vocab-llama-spm.gguf");
  const auto& tokens = *gguf.strings("tokenizer.ggml.tokens");
  const auto& scores = *gguf.numbers("tokenizer.ggml.scores");
  const auto& types = *gguf.integers("tokenizer.ggml.token_type");
  std::string pieces;
  for (std::size_t id = 0; id < tokens.size(); ++id)
    pieces +=
        piece(tokens[id], static_cast<float>(scores[id]), static_cast<std::uint64_t>(types[id]));
  const auto tokenizer = parse_sentencepiece("llama.model", model_of(pieces), {});

  const std::string texts = read_text_file(folder / "ggml-vocab-llama-spm.gguf.inp");
  std::istringstream lines(read_text_file(folder / "ggml-vocab-llama-spm.gguf.out"));
  const std::string separator = "\n__ggml_vocab_test__\n";
  int cases = 0;
  std::size_t from = 0;
  for (std::string line; std::getline(lines, line); ++cases) {
    const std::size_t at = texts.find(separator, from);
    ASSERT_NE(at, texts.npos);
    std::istringstream ids_text(line);
    Ids wanted;
    for (TokenId id; ids_text >> id;) wanted.push_back(id);
    EXPECT_EQ(tokenizer->encode(texts.substr(from, at - from), {}), wanted)
        << texts.substr(from, at - from);
    from = at + separator.size();
  }
  EXPECT_GE(cases, 40);
}

}  // namespace
}  // namespace keel
