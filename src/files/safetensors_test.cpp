#include "files/safetensors.h"

#include <gtest/gtest.h>

#include "files/test_files.h"

namespace keel {
namespace {

using nlohmann::json;
using testing::as_bytes;
using testing::error_of;
using testing::expect_parts;
using testing::SafetensorsBuilder;
using testing::TempFolder;

void expect_refusal(const std::string& bytes, const std::vector<std::string>& parts) {
  const std::string message =
      error_of([&] { parse_safetensors("model.safetensors", as_bytes(bytes)); });
  expect_parts(message, {"model.safetensors"});
  expect_parts(message, parts);
}

SafetensorsBuilder two_tensors() {
  SafetensorsBuilder builder;
  builder.add("b", "F16", {2, 3}, "0123456789ab");
  builder.add("a", "F32", {1}, "wxyz");
  return builder;
}

TEST(Safetensors, FindsTensorsOfOneFile) {
  SafetensorsBuilder builder = two_tensors();
  builder.header()["__metadata__"] = {{"format", "pt"}};
  builder.header()["empty"] = {{"dtype", "I64"}, {"shape", {0, 4}}, {"data_offsets", {12, 12}}};
  builder.header()["scalar"] = {
      {"dtype", "U8"}, {"shape", json::array()}, {"data_offsets", {16, 17}}};
  builder.data() += "s";
  const std::string bytes = builder.bytes();
  const SafetensorsMap tensors = parse_safetensors("model.safetensors", as_bytes(bytes));
  EXPECT_EQ(tensors.size(), 4u);
  const SafetensorsTensor& b = tensors.at("b");
  EXPECT_EQ(b.dtype, "F16");
  EXPECT_EQ(b.shape, (std::vector<std::int64_t>{2, 3}));
  EXPECT_EQ(b.bytes.size(), 12u);
  EXPECT_EQ(b.bytes.front(), std::byte{'0'});
  EXPECT_EQ(tensors.at("a").bytes.front(), std::byte{'w'});
  EXPECT_EQ(tensors.at("empty").bytes.size(), 0u);
  EXPECT_EQ(tensors.at("scalar").bytes.size(), 1u);
}

TEST(Safetensors, RefusesEveryTruncation) {
  const std::string bytes = two_tensors().bytes();
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_THROW(parse_safetensors("cut", as_bytes(bytes).first(size)), Error) << size;
  }
  expect_refusal(bytes + "x", {"end at data offset 16", "17 bytes"});
}

TEST(Safetensors, RefusesHeadersThatAreNoObjectOfTensors) {
  std::string absurd;
  testing::append<std::uint64_t>(absurd, std::uint64_t{1} << 60);
  expect_refusal(absurd, {"header of 1152921504606846976 bytes"});
  expect_refusal(SafetensorsBuilder::with_header("{\"a\":", ""), {"malformed JSON"});
  expect_refusal(SafetensorsBuilder::with_header("{\"\xff\":1}", ""), {"malformed JSON"});
  expect_refusal(SafetensorsBuilder::with_header("[]", ""), {"not a JSON object"});
  expect_refusal(SafetensorsBuilder::with_header("{\"a\":1}", ""), {"'a'", "object"});
  expect_refusal(SafetensorsBuilder::with_header(std::string(100000, '['), ""), {"nested deeper"});
  const std::string tensor = R"({"dtype":"F32","shape":[1],"data_offsets":[0,4]})";
  expect_refusal(
      SafetensorsBuilder::with_header("{\"a\":" + tensor + ",\"a\":" + tensor + "}", "abcd"),
      {"\"a\"", "twice"});
  expect_refusal(SafetensorsBuilder::with_header(R"({"a":{"shape":[1],"shape":[1]}})", ""),
                 {"\"shape\"", "twice"});
}

TEST(Safetensors, RefusesBadTensors) {
  const auto with = [](const json& tensor) {
    SafetensorsBuilder builder;
    builder.header()["a"] = tensor;
    builder.data() = "abcdefgh";
    return builder.bytes();
  };
  const auto with_shape = [&](const json& shape, const json& offsets) {
    return with({{"dtype", "F32"}, {"shape", shape}, {"data_offsets", offsets}});
  };
  EXPECT_NO_THROW(parse_safetensors("good", as_bytes(with_shape({2}, {0, 8}))));
  expect_refusal(with({{"shape", {2}}, {"data_offsets", {0, 8}}}), {"'a'", "dtype"});
  expect_refusal(with({{"dtype", "F4"}, {"shape", {2}}, {"data_offsets", {0, 8}}}),
                 {"'a'", "'F4'", "not supported"});
  expect_refusal(with({{"dtype", "F32"}, {"data_offsets", {0, 8}}}), {"'a'", "shape"});
  expect_refusal(with({{"dtype", "F32"}, {"shape", {2}}}), {"'a'", "data_offsets"});
  expect_refusal(with_shape({-2}, {0, 8}), {"'a'", "shape", "-2"});
  expect_refusal(with_shape({2.0}, {0, 8}), {"'a'", "shape", "2.0"});
  expect_refusal(with_shape({UINT64_MAX}, {0, 8}), {"'a'", "18446744073709551615"});
  expect_refusal(with_shape(json::array({1, 1, 1, 1, 1, 1, 1, 1, 2}), {0, 8}),
                 {"'a'", "at most 8"});
  expect_refusal(with_shape({2}, {8, 0}), {"'a'", "[begin, end]"});
  expect_refusal(with_shape({2}, {0}), {"'a'", "[begin, end]"});
  expect_refusal(with_shape({3}, {0, 8}), {"'a'", "F32 [3] wants 12 bytes, found 8"});
  expect_refusal(with_shape({3}, {0, 12}), {"'a'", "offset 12", "8 bytes"});
  expect_refusal(with_shape({1LL << 31, 1LL << 31}, {0, 8}), {"'a'", "pass 2^63"});
}

TEST(Safetensors, RefusesOverlapsAndHoles) {
  const auto with_offsets = [](std::int64_t b_begin) {
    SafetensorsBuilder builder;
    builder.header()["a"] = {{"dtype", "F32"}, {"shape", {1}}, {"data_offsets", {0, 4}}};
    builder.header()["b"] = {
        {"dtype", "F32"}, {"shape", {1}}, {"data_offsets", {b_begin, b_begin + 4}}};
    builder.data() = std::string(static_cast<std::size_t>(b_begin) + 4, '.');
    return builder.bytes();
  };
  EXPECT_NO_THROW(parse_safetensors("good", as_bytes(with_offsets(4))));
  expect_refusal(with_offsets(2), {"'b'", "offset 2", "overlap"});
  expect_refusal(with_offsets(6), {"'b'", "offset 6", "hole"});
}

TEST(SafetensorsFolder, ReadsShardsThroughTheIndex) {
  const TempFolder folder;
  SafetensorsBuilder one, two;
  one.add("x", "F32", {1}, "xxxx");
  two.add("y", "F32", {1}, "yyyy");
  folder.write("one.safetensors", one.bytes());
  folder.write("two.safetensors", two.bytes());
  const std::string index_name = "model.safetensors.index.json";
  const auto write_index = [&](const json& map) {
    folder.write(index_name, json{{"metadata", {{"total_size", 8}}}, {"weight_map", map}}.dump());
  };
  const auto refusal = [&] { return error_of([&] { SafetensorsFolder{folder.path()}; }); };

  write_index({{"x", "one.safetensors"}, {"y", "two.safetensors"}});
  const SafetensorsFolder files(folder.path());
  EXPECT_EQ(files.tensors().at("x").bytes.front(), std::byte{'x'});
  EXPECT_EQ(files.tensors().at("y").bytes.front(), std::byte{'y'});
  EXPECT_NE(files.tensors().at("y").file.find("two.safetensors"), std::string::npos);

  write_index({{"x", "one.safetensors"}, {"y", "one.safetensors"}, {"z", "two.safetensors"}});
  expect_parts(refusal(), {index_name, "'y'", "does not hold it"});
  write_index({{"x", "one.safetensors"}, {"y", "three.safetensors"}});
  expect_parts(refusal(), {"three.safetensors", "No such file"});
  for (const char* outside : {"../one.safetensors", "/etc/passwd", "", ".hidden", "a\\b"}) {
    write_index({{"x", outside}});
    expect_parts(refusal(), {index_name, "'x'", "plain name"});
  }
  write_index({{"x", 1}});
  expect_parts(refusal(), {index_name, "'x'", "file name"});
  write_index(json::object());
  expect_parts(refusal(), {index_name, "weight_map"});
  folder.write(index_name, "[]");
  expect_parts(refusal(), {index_name, "weight_map"});
  folder.write(index_name, "{");
  expect_parts(refusal(), {index_name, "JSON"});

  folder.write("two.safetensors", one.bytes());
  write_index({{"x", "one.safetensors"}, {"y", "two.safetensors"}});
  expect_parts(refusal(), {"'x'", "one.safetensors", "two.safetensors"});
}

TEST(SafetensorsFolder, TakesTheOnlyFileButNeverGuesses) {
  const TempFolder folder;
  const auto open = [&] { return SafetensorsFolder(folder.path()).tensors().size(); };
  expect_parts(error_of(open), {folder.path().string(), "found 0"});
  folder.write("weights.safetensors", two_tensors().bytes());
  EXPECT_EQ(open(), 2u);
  folder.write("more.safetensors", two_tensors().bytes());
  expect_parts(error_of(open), {folder.path().string(), "found 2"});
  folder.write("model.safetensors", two_tensors().bytes());
  EXPECT_EQ(open(), 2u);
}

}  // namespace
}  // namespace keel
