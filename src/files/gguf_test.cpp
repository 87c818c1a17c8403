#include "files/gguf.h"

#include <gtest/gtest.h>

#include "files/test_files.h"

namespace keel {
namespace {

using testing::append;
using testing::as_bytes;
using testing::error_of;
using testing::expect_parts;
using testing::GgufBuilder;

void expect_refusal(const std::string& bytes, const std::vector<std::string>& parts) {
  const std::string message = error_of([&] { GgufFile("model.gguf", as_bytes(bytes)); });
  expect_parts(message, {"model.gguf"});
  expect_parts(message, parts);
}

TEST(Gguf, ReadsEveryKindOfMetadata) {
  GgufBuilder builder;
  builder.entry<std::uint8_t>("u8", 0, 200);
  builder.entry<std::int8_t>("i8", 1, -5);
  builder.entry<std::uint16_t>("u16", 2, 65535);
  builder.entry<std::int16_t>("i16", 3, -3);
  builder.u32("u32", 4'000'000'000u);
  builder.entry<std::int32_t>("i32", 5, -7);
  builder.f32("f32", 0.5f);
  builder.entry<std::uint8_t>("yes", 7, 1);
  builder.string("text", "caf\xc3\xa9");
  builder.entry<std::uint64_t>("u64", 10, INT64_MAX);
  builder.entry<std::int64_t>("i64", 11, INT64_MIN);
  builder.entry<double>("f64", 12, 0.25);
  builder.strings("words", {"a", "", "ccc"});
  builder.array<std::int32_t>("numbers", 5, {1, -2, 3});
  builder.array<float>("floats", 6, {1.5f, -2});
  builder.array<std::uint8_t>("bools", 7, {1, 0});
  const std::string bytes = builder.bytes();
  const GgufFile file("model.gguf", as_bytes(bytes));

  EXPECT_EQ(file.integer("u8"), 200);
  EXPECT_EQ(file.integer("i8"), -5);
  EXPECT_EQ(file.integer("u16"), 65535);
  EXPECT_EQ(file.integer("i16"), -3);
  EXPECT_EQ(file.integer("u32"), 4'000'000'000);
  EXPECT_EQ(file.integer("i32"), -7);
  EXPECT_EQ(file.number("f32"), 0.5);
  EXPECT_EQ(file.boolean("yes"), true);
  EXPECT_EQ(*file.string("text"), "caf\xc3\xa9");
  EXPECT_EQ(file.integer("u64"), INT64_MAX);
  EXPECT_EQ(file.integer("i64"), INT64_MIN);
  EXPECT_EQ(file.number("f64"), 0.25);
  EXPECT_EQ(*file.strings("words"), (std::vector<std::string>{"a", "", "ccc"}));
  EXPECT_EQ(*file.integers("numbers"), (std::vector<std::int64_t>{1, -2, 3}));
  EXPECT_EQ(*file.numbers("floats"), (std::vector<double>{1.5, -2}));
  EXPECT_EQ(*file.integers("bools"), (std::vector<std::int64_t>{1, 0}));
  EXPECT_EQ(file.metadata().size(), 16u);
  EXPECT_EQ(file.number("i32"), -7) << "an integer is a number too";
  EXPECT_FALSE(file.integer("absent"));
  EXPECT_EQ(file.string("absent"), nullptr);
  expect_parts(error_of([&] { (void)file.integer("text"); }),
               {"model.gguf", "'text'", "an integer", "a string"});
  expect_parts(error_of([&] { (void)file.strings("numbers"); }),
               {"'numbers'", "array of strings", "array of integers"});
}

TEST(Gguf, FindsTensorsWithSlowestDimensionFirst) {
  GgufBuilder builder;
  builder.tensor("matrix", 0, {2, 3}, std::string(24, 'm'));
  builder.tensor("blocks", 14, {2, 512}, std::string(4 * 210, 'q'));
  builder.raw_tensor("unknown", 99, {7}, 0);
  const std::string bytes = builder.bytes();
  const GgufFile file("model.gguf", as_bytes(bytes));
  const GgufTensor& matrix = file.tensors().at("matrix");
  EXPECT_EQ(matrix.shape, (std::vector<std::int64_t>{2, 3}));
  EXPECT_EQ(matrix.bytes.size(), 24u);
  EXPECT_EQ(matrix.bytes.front(), std::byte{'m'});
  const GgufTensor& blocks = file.tensors().at("blocks");
  EXPECT_EQ(blocks.bytes.size(), 840u);
  EXPECT_EQ(blocks.bytes.back(), std::byte{'q'});
  EXPECT_EQ((blocks.bytes.data() - as_bytes(bytes).data()) % 32, 0);
  EXPECT_TRUE(file.tensors().at("unknown").bytes.empty())
      << "an encoding of unknown size is left to its user to refuse";
}

TEST(Gguf, HonoursItsAlignmentKey) {
  GgufBuilder builder;
  builder.alignment = 128;
  builder.u32("general.alignment", 128);
  builder.tensor("a", 0, {1}, "aaaa");
  builder.tensor("b", 0, {1}, "bbbb");
  const std::string bytes = builder.bytes();
  EXPECT_EQ(GgufFile("model.gguf", as_bytes(bytes)).tensors().at("b").bytes.front(),
            std::byte{'b'});
  for (const std::uint32_t wrong : {0u, 48u, 1u << 30}) {
    GgufBuilder bad;
    bad.u32("general.alignment", wrong);
    expect_refusal(bad.bytes(), {"general.alignment", "power of two", std::to_string(wrong)});
  }
}

TEST(Gguf, RefusesOtherFilesAndVersions) {
  expect_refusal("", {"magic"});
  GgufBuilder builder;
  builder.magic = 0x67676d6c;
  expect_refusal(builder.bytes(), {"magic"});
  builder = {};
  builder.version = 1;
  expect_refusal(builder.bytes(), {"version 2 or 3", "1"});
  builder.version = 0x03000000;
  expect_refusal(builder.bytes(), {"big-endian"});
}

TEST(Gguf, RefusesEveryTruncation) {
  GgufBuilder builder;
  builder.strings("words", {"one", "two"});
  builder.f32("number", 1);
  builder.tensor("t", 0, {4}, std::string(32, 't'));
  const std::string bytes = builder.bytes();
  EXPECT_NO_THROW(GgufFile("model.gguf", as_bytes(bytes)));
  for (std::size_t size = 0; size < bytes.size() - 16;
       ++size) {  // the tensor's last 16 bytes are padding
    EXPECT_THROW(GgufFile("model.gguf", as_bytes(bytes).first(size)), Error) << size;
  }
}

TEST(Gguf, RefusesCountsThatTheFileCannotHold) {
  constexpr std::uint64_t kAbsurd = std::uint64_t{1} << 60;
  GgufBuilder builder;
  builder.entry_count = kAbsurd;
  expect_refusal(builder.bytes(), {"metadata count", std::to_string(kAbsurd)});
  builder = {};
  builder.tensor_count = kAbsurd;
  expect_refusal(builder.bytes(), {"tensor count", std::to_string(kAbsurd)});
  for (const std::uint32_t type : {0u, 6u, 8u}) {
    std::string array;
    append(array, type);
    append(array, kAbsurd);
    builder = {};
    builder.raw_entry("words", 9, array);
    expect_refusal(builder.bytes(), {"'words'", std::to_string(kAbsurd)});
  }
  std::string text;
  append(text, kAbsurd);
  builder = {};
  builder.raw_entry("text", 8, text);
  expect_refusal(builder.bytes(), {"'text'", std::to_string(kAbsurd)});
}

TEST(Gguf, RefusesBadMetadata) {
  GgufBuilder builder;
  builder.u32("key", 1);
  builder.u32("key", 2);
  expect_refusal(builder.bytes(), {"'key'", "twice"});
  builder = {};
  builder.u32("key", 1);
  builder.raw_entry("odd\n", 77, "");
  builder.u32("more", 1);
  expect_refusal(builder.bytes(), {"'odd\\x0a'", "value type", "77"});
  builder = {};
  builder.entry<std::uint8_t>("flag", 7, 2);
  expect_refusal(builder.bytes(), {"'flag'", "bool"});
  builder = {};
  builder.entry<std::uint64_t>("big", 10, std::uint64_t{1} << 63);
  expect_refusal(builder.bytes(), {"'big'", "9223372036854775808"});
  builder = {};
  std::string nested;
  append<std::uint32_t>(nested, 9);
  append<std::uint64_t>(nested, 0);
  builder.raw_entry("nested", 9, nested);
  expect_refusal(builder.bytes(), {"'nested'", "arrays of arrays"});
  builder = {};
  builder.u32(std::string(70000, 'k'), 1);
  expect_refusal(builder.bytes(), {"metadata key 0", "70000"});
}

TEST(Gguf, RefusesBadTensors) {
  const auto with_tensor =
      [](std::uint32_t type, const std::vector<std::int64_t>& sizes, std::uint64_t offset) {
        GgufBuilder builder;
        builder.raw_tensor("first", 0, {8}, 0);
        builder.raw_tensor("bad", type, sizes, offset);
        std::string bytes = builder.bytes();
        bytes.resize((bytes.size() + 31) / 32 * 32 + 64);
        return bytes;
      };
  EXPECT_NO_THROW(GgufFile("good", as_bytes(with_tensor(0, {8}, 32))));
  expect_refusal(with_tensor(0, {8}, 0), {"'bad'", "overlaps", "'first'"});
  expect_refusal(with_tensor(0, {9}, 32), {"'bad'", "36 bytes", "end of the file"});
  expect_refusal(with_tensor(0, {8}, 1 << 20), {"'bad'", "1048576", "end of the file"});
  expect_refusal(with_tensor(0, {8}, UINT64_MAX - 31), {"'bad'", "end of the file"});
  expect_refusal(with_tensor(0, {8}, 33), {"'bad'", "aligned to 32", "33"});
  expect_refusal(with_tensor(0, {0}, 32), {"'bad'", "found 0"});
  expect_refusal(with_tensor(0, {-1}, 32), {"'bad'", "18446744073709551615"});
  expect_refusal(with_tensor(0, {1LL << 31, 1LL << 31, 1LL << 31}, 32), {"'bad'", "pass 2^63"});
  expect_refusal(with_tensor(0, {}, 32), {"'bad'", "1 to 4 dimensions", "0"});
  expect_refusal(with_tensor(0, {1, 1, 1, 1, 1}, 32), {"'bad'", "1 to 4 dimensions", "5"});
  expect_refusal(with_tensor(2, {33}, 32), {"'bad'", "multiple of 32", "33"});
  expect_refusal(with_tensor(12, {128}, 32), {"'bad'", "multiple of 256", "128"});
  GgufBuilder twice;
  twice.tensor("t", 0, {8}, std::string(32, 't'));
  twice.tensor("t", 0, {8}, std::string(32, 't'));
  expect_refusal(twice.bytes(), {"'t'", "twice"});
}

TEST(Gguf, NamesTheFileItCannotOpen) {
  const testing::TempFolder folder;
  const auto path = folder.path() / "absent.gguf";
  expect_parts(error_of([&] { GgufFile file(path); }), {path.string(), "No such file"});
  expect_parts(error_of([&] { GgufFile file(folder.path()); }),
               {folder.path().string(), "regular file"});
  const auto empty = folder.write("empty.gguf", "");
  expect_parts(error_of([&] { GgufFile file(empty); }), {empty.string(), "magic"});
}

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
