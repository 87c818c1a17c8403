#include "base/json.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <chrono>
#include <nlohmann/json.hpp>

namespace keel {
namespace {

std::string repeated(std::string_view part, int times) {
  std::string text;
  for (int i = 0; i < times; ++i) text += part;
  return text;
}

TEST(JsonProblem, FindsNoneWhereParsingThrowsNothingAndOneWhereItThrows) {
  for (const char* text : {"0", "[]", "{\"a\":[1,2.5e3,true,null,\"\\u00e9\\ud83d\\ude00\"],\"a\":-1}", " [ ] "}) {
    EXPECT_EQ(json_problem(text), std::nullopt) << text;
    EXPECT_NO_THROW(nlohmann::json::parse(text)) << text;
  }
  for (const char* text : {"", "{", "[1,", "nul", "\"\xff\"", "\"\\ud800\"", "1e999", "01", "[1]x", "{\"a\":1,}"}) {
    EXPECT_NE(json_problem(text), std::nullopt) << text;
    EXPECT_THROW(nlohmann::json::parse(text), nlohmann::json::exception) << text;
  }
  EXPECT_NE(json_problem("{\n oops}")->find("malformed JSON: parse error at line 2, column 2"), std::string::npos);
}

TEST(JsonProblem, BoundsDepthAndKeysAndTellsRepeatedKeys) {
  const std::string deepest = repeated("[", 64) + repeated("]", 64);
  EXPECT_EQ(json_problem(deepest), std::nullopt);
  EXPECT_EQ(json_problem("[" + deepest + "]"), "JSON nested deeper than 64 levels");
  EXPECT_EQ(json_problem(repeated("{\"a\":", 1'000'000)), "JSON nested deeper than 64 levels");
  EXPECT_EQ(json_problem("[{\"a\":1,\"b\":2},{\"c\":3,\"d\":4}]", {.keys = 2}), std::nullopt);
  EXPECT_EQ(json_problem("{\"a\":1,\"b\":2,\"c\":3}", {.keys = 2}), "a JSON object with more than 2 keys");
  EXPECT_EQ(json_problem("[{\"a\":1},{\"a\":{\"a\":1}}]", {.allow_repeated_keys = false}), std::nullopt);
  EXPECT_EQ(json_problem("{\"a\\n\":1,\"b\":{},\"a\\n\":1}", {.allow_repeated_keys = false}),
            "the key \"a\\n\" appears twice in a JSON object");
}

TEST(JsonProblem, TakesLinearTimeForManyObjects) {
  std::string text = "{";
  for (int i = 0; i < 200'000; ++i) text += fmt::format("{}\"t{}\":{{}}", i == 0 ? "" : ",", i);
  const auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(json_problem(text + "}", {.allow_repeated_keys = false}), std::nullopt);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(20));  // quadratic: minutes
}

TEST(Shortened, CutsBetweenCharacters) {
  EXPECT_EQ(shortened("short"), "short");
  EXPECT_EQ(shortened(repeated("é", 5), 10), repeated("é", 5));
  EXPECT_EQ(shortened(repeated("é", 6), 11), repeated("é", 5) + "…");
}

}  // namespace
}  // namespace keel
