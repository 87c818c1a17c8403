// The client against a server that answers by script, well and badly.
#include "lab/openai_load.h"

#include <gtest/gtest.h>

#include "lab/scripted_server.h"
#include "lab/sse_reader.h"

namespace keel {
namespace {

RequestTimes exchange(std::vector<std::string> script, std::chrono::seconds timeout = std::chrono::seconds(20)) {
  ScriptedServer server({std::move(script)});
  return run_load(server.address(), {.path = "/v1/completions", .bodies = {"{}"}, .due_s = {0}, .request_timeout = timeout})[0];
}

TEST(OpenAiLoad, TimesTokensAndTakesCountsFromTheUsage) {
  const RequestTimes times = exchange({kStreamHead, kToken, ": ping\n\n", kToken, kToken + kLast, kUsage + kDone});
  EXPECT_EQ(times.error, "");
  EXPECT_EQ(times.prompt_tokens, 4);
  EXPECT_EQ(times.output_tokens, 3);
  ASSERT_EQ(times.token_s.size(), 3u);  // the last event brings no token, and ends the answer
  EXPECT_GE(times.ended_s, times.token_s.back());
  EXPECT_LE(times.sent_s, times.token_s.front());
}

TEST(OpenAiLoad, ReadsChunkedAnswers) {
  std::vector<std::string> script = {"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"};
  for (const std::string& data : {kToken.substr(0, 9), kToken.substr(9) + kToken, kLast, kUsage + kDone}) {
    script.push_back(fmt::format("{:x}\r\n{}\r\n", data.size(), data));
  }
  script.push_back("0\r\n\r\n");
  const RequestTimes times = exchange(script);
  EXPECT_EQ(times.error, "");
  EXPECT_EQ(times.token_s.size(), 2u);
}

TEST(OpenAiLoad, CountsAsFailedWhateverDoesNotEndAsItShould) {
  EXPECT_EQ(exchange({"HTTP/1.1 429 Too Many Requests\r\nContent-Length: 31\r\n\r\n{\"error\":{\"message\":\"is full\"}}"}).error,
            "HTTP 429: is full");
  EXPECT_EQ(exchange({"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n{\"error\":{\"message\":\"too long\"}}"}).error,
            "HTTP 400: too long");
  EXPECT_EQ(exchange({"HTTP/1.1 500 Internal Server Error\r\nConnection: close\r\n\r\n\x1b[2Jall\ngone"}).error, "HTTP 500:  [2Jall gone");
  EXPECT_EQ(exchange({"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n{\"error\":{\"message\":\"too\\u009b2Jlong\"}}"}).error,
            "HTTP 400: too 2Jlong");
  EXPECT_EQ(exchange({kStreamHead, kToken, kUsage}).error, "the stream ended without [DONE]");
  EXPECT_EQ(exchange({kStreamHead, kUsage, kDone}).error, "the stream brought no token");
  EXPECT_NE(exchange({kStreamHead, kToken, kDone}).error.find("no usage"), std::string::npos);
  EXPECT_EQ(exchange({kStreamHead, kToken, "data: {\"error\":{\"message\":\"overflow\"}}\n\n", kDone}).error, "overflow");
  EXPECT_NE(exchange({kStreamHead, "data: nonsense\n\n", kDone}).error.find("no JSON object"), std::string::npos);
  EXPECT_EQ(exchange({"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n{}"}).error,
            "wanted an event stream, found application/json");
  EXPECT_EQ(exchange({""}).error, "the server closed the connection early");
  EXPECT_EQ(exchange({"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nda"}).error,
            "the server closed the connection early");
}

TEST(OpenAiLoad, GivesUpOnAServerThatHangs) {
  const RequestTimes times = exchange({kStreamHead, kToken, "wait"}, std::chrono::seconds(1));
  EXPECT_EQ(times.error, "no complete answer within 1 s");
  EXPECT_GE(times.ended_s, 0.9);
}

TEST(OpenAiLoad, NamesARefusedConnection) {
  ServerAddress gone;
  { gone = ScriptedServer({}).address(); }
  const auto times = run_load(gone, {.path = "/v1/completions", .bodies = {"{}"}, .due_s = {0}});
  EXPECT_EQ(times[0].error, "Connection refused");
  try {
    http_get(gone, "/v1/models", std::chrono::seconds(5));
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.what(), gone.url() + "/v1/models: Connection refused");
  }
}

TEST(OpenAiLoad, SendsWhenDueAndHoldsBackPastTheLimit) {
  const std::vector<std::string> good = {kStreamHead, kToken + kLast + kUsage + kDone};
  ScriptedServer server({good, good, good});
  const auto times = run_load(server.address(), {.path = "/v1/completions", .bodies = {"{}", "{}", "{}"}, .due_s = {0, 0, 0.3},
                                                  .max_concurrency = 1});
  for (const RequestTimes& one : times) EXPECT_EQ(one.error, "");
  EXPECT_GE(times[1].sent_s, times[0].ended_s);
  EXPECT_GE(times[2].sent_s, 0.3);
}

TEST(OpenAiLoad, SendsTokensOptionsAndKey) {
  ScriptedServer server({{kStreamHead, kToken + kLast + kUsage + kDone}});
  ServerAddress address = server.address();
  address.prefix = "/proxy";
  address.api_key = "secret";
  const auto body = completion_body({.prompt = {5, 6}, .output_tokens = 7}, {.model = "m"});
  EXPECT_EQ(run_load(address, {.path = "/v1/completions", .bodies = {body.dump()}, .due_s = {0}})[0].error, "");
  EXPECT_TRUE(server.request.starts_with("POST /proxy/v1/completions HTTP/1.1\r\n")) << server.request;
  EXPECT_NE(server.request.find("Authorization: Bearer secret\r\n"), std::string::npos);
  EXPECT_EQ(body["prompt"], (std::vector<int>{5, 6}));
  EXPECT_EQ(body["max_tokens"], 7);
  EXPECT_EQ(body["ignore_eos"], true);
  EXPECT_EQ(body["stream_options"]["include_usage"], true);
}

TEST(BaseUrl, IsHostPortAndPrefix) {
  EXPECT_EQ(parse_base_url("http://a.b:81/x/")->url(), "http://a.b:81/x");
  EXPECT_EQ(parse_base_url("http://a")->port, "80");
  EXPECT_EQ(parse_base_url("http://[::1]:9")->host, "::1");
  for (const char* wrong : {"", "a:80", "http://", "http://a:", "http://a:x", "http://a:70000", "http://a:0"}) {
    EXPECT_FALSE(parse_base_url(wrong)) << wrong;
  }
  EXPECT_NE(parse_base_url("https://a").error().find("TLS"), std::string::npos);
}

TEST(SseReader, FindsTheSameEventsHoweverTheBytesAreCut) {
  const std::string bytes = ": comment\n\nevent: x\ndata: one\n\ndata:two\r\ndata: three\r\n\r\n\n\ndata: cut";
  const std::vector<std::string> wanted = {"one", "two\nthree"};
  for (std::size_t cut = 0; cut <= bytes.size(); ++cut) {
    SseReader reader;
    std::vector<std::string> found = reader.push(bytes.substr(0, cut));
    for (std::string& event : reader.push(bytes.substr(cut))) found.push_back(std::move(event));
    EXPECT_EQ(found, wanted) << cut;
  }
}

}  // namespace
}  // namespace keel
