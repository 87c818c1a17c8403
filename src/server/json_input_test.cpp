#include "server/json_input.h"

#include <gtest/gtest.h>

#include <chrono>
#include <functional>

namespace keel {
namespace {

ApiError refusal(const std::function<void()>& work) {
  try {
    work();
  } catch (const RequestError& error) {
    return error.error();
  }
  ADD_FAILURE() << "nothing was refused";
  return {};
}

std::string repeated(std::string_view part, int times) {
  std::string text;
  for (int i = 0; i < times; ++i) text += part;
  return text;
}

TEST(JsonInput, SaysWhereTheTextStopsBeingJson) {
  const ApiError error = refusal([] { parse_json("{\"prompt\": \"a\",\n  oops}"); });
  EXPECT_EQ(error.status, 400u);
  EXPECT_NE(error.message.find("malformed JSON: parse error at line 2, column 3"), std::string::npos) << error.message;
}

TEST(JsonInput, RefusesWhatIsNoJson) {
  for (const char* text : {"", " ", "{", "[1,", "{\"a\":NaN}", "{\"a\":Infinity}", "{'a':1}", "{\"a\":1e999}", "{\"a\":01}",
                           "{\"a\":\"\\ud800\"}", "{\"a\":1}x", "{\"a\":1,}", "// a\n{}", "\"\x01\""}) {
    EXPECT_EQ(refusal([&] { parse_json(text); }).status, 400u) << text;
  }
}

TEST(JsonInput, RefusesBadUtf8AndTheMessageIsStillJson) {
  for (const char* bytes : {"{\"a\":\"\xff\"}", "{\"a\":\"\xc0\xaf\"}", "{\"a\":\"\xed\xa0\x80\"}", "{\"a\":\"\xf0\x9f\x98\"}"}) {
    const ApiError error = refusal([&] { parse_json(bytes); });
    EXPECT_EQ(error.status, 400u);
    EXPECT_NO_THROW(Json::parse(to_text(error_json(error))));
  }
}

TEST(JsonInput, BoundsTheDepth) {
  EXPECT_NO_THROW(parse_json(repeated("[", kMaxJsonDepth) + repeated("]", kMaxJsonDepth)));
  const int deeper = kMaxJsonDepth + 1;
  EXPECT_NE(refusal([&] { parse_json(repeated("[", deeper) + repeated("]", deeper)); }).message.find("deeper than 64"),
            std::string::npos);
  EXPECT_EQ(refusal([] { parse_json(repeated("[", 1'000'000)); }).status, 400u);
  EXPECT_EQ(refusal([] { parse_json(repeated("{\"a\":", 10'000) + "1" + repeated("}", 10'000)); }).status, 400u);
}

TEST(JsonInput, BoundsTheKeysOfOneObjectOnly) {
  const auto object = [](int keys) {
    std::string text = "{";
    for (int i = 0; i < keys; ++i) text += fmt::format("{}\"{}\":0", i == 0 ? "" : ",", i);
    return text + "}";
  };
  EXPECT_EQ(parse_json("[" + object(kMaxJsonKeys) + "," + object(kMaxJsonKeys) + "]").size(), 2u);
  EXPECT_NE(refusal([&] { parse_json(object(kMaxJsonKeys + 1)); }).message.find("1024 keys"), std::string::npos);
}

TEST(JsonInput, TakesLinearTimeForAnArrayOfObjects) {
  const auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(parse_json("[" + repeated("{},", 300'000) + "{}]").size(), 300'001u);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(20));  // quadratic: minutes
}

TEST(JsonFields, ReadsWhatIsThereAndTakesNullForAbsent) {
  const Json json = Json::parse(R"({"i": 3, "whole": 5.0, "d": 0.5, "s": "x", "b": true, "n": null, "a": [1], "o": {}})");
  JsonFields fields(json);
  EXPECT_EQ(fields.integer("i"), 3);
  EXPECT_EQ(fields.integer("whole"), 5);
  EXPECT_EQ(fields.number("d"), 0.5);
  EXPECT_EQ(fields.number("i"), 3.0);
  EXPECT_EQ(fields.string("s"), "x");
  EXPECT_EQ(fields.boolean("b"), true);
  EXPECT_EQ(fields.integer("n"), std::nullopt);
  EXPECT_EQ(fields.string("absent"), std::nullopt);
  EXPECT_EQ(fields.array("a")->size(), 1u);
  EXPECT_EQ(fields.unread(), std::vector<std::string>{"o"});
}

TEST(JsonFields, NamesTheFieldTheWantedAndTheFound) {
  const Json json = Json::parse(
      R"({"i": "3", "half": 0.5, "big": 18446744073709551615, "huge": 1e300, "b": 1, "s": 2, "a": {}, "o": [], "nine": 9})");
  struct Case {
    const char* param;
    std::function<void(JsonFields&)> read;
    const char* message;
  };
  const std::vector<Case> cases = {
      {"i", [](JsonFields& f) { f.integer("i"); }, "i: wanted an integer, found string \"3\""},
      {"half", [](JsonFields& f) { f.integer("half"); }, "half: wanted an integer, found number 0.5"},
      {"big", [](JsonFields& f) { f.integer("big"); }, "big: wanted an integer, found number 18446744073709551615"},
      {"huge", [](JsonFields& f) { f.integer("huge"); }, "huge: wanted an integer, found number 1e+300"},
      {"nine", [](JsonFields& f) { f.integer("nine", 0, 5); }, "nine: wanted an integer in [0, 5], found number 9"},
      {"nine", [](JsonFields& f) { f.integer("nine", 10); }, "nine: wanted an integer of at least 10, found number 9"},
      {"i", [](JsonFields& f) { f.number("i"); }, "i: wanted a finite number, found string \"3\""},
      {"b", [](JsonFields& f) { f.boolean("b"); }, "b: wanted true or false, found number 1"},
      {"s", [](JsonFields& f) { f.string("s"); }, "s: wanted a string, found number 2"},
      {"a", [](JsonFields& f) { f.array("a"); }, "a: wanted an array, found object"},
      {"o", [](JsonFields& f) { f.object("o"); }, "o: wanted an object, found array of 0"},
  };
  for (const Case& one : cases) {
    JsonFields fields(json);
    const ApiError error = refusal([&] { one.read(fields); });
    EXPECT_EQ(error.status, 400u);
    EXPECT_EQ(error.param, one.param);
    EXPECT_EQ(error.message, one.message);
  }
  EXPECT_EQ(refusal([] { JsonFields(Json::array()); }).message, "the request: wanted an object, found array of 0");
}

TEST(JsonFields, ShortensWhatItQuotesBetweenCharacters) {
  const Json json = {{"n", repeated("é", 5000)}};
  JsonFields fields(json);
  const ApiError error = refusal([&] { fields.integer("n"); });
  EXPECT_LT(error.message.size(), 300u);
  EXPECT_EQ(to_text(error_json(error)).find("\\ufffd"), std::string::npos);
  EXPECT_EQ(to_text(error_json(error)).find("\xef\xbf\xbd"), std::string::npos);
}

TEST(Errors, HaveOpenAisShape) {
  const Json json = error_json({404, "model: wanted a, found b", "model", "model_not_found"});
  EXPECT_EQ(to_text(json),
            R"({"error":{"message":"model: wanted a, found b","type":"not_found_error","param":"model","code":"model_not_found"}})");
  EXPECT_TRUE(error_json({400, "no"})["error"]["param"].is_null());
}

}  // namespace
}  // namespace keel
