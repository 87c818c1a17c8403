// What the server answers, as its clients see it: real sockets, the real engine, the tiny model.
#include "server_fixture.h"
#include "test_device.h"

namespace keel {
namespace {

TEST_F(ServerTest, CompletesAsTheEngineDoesOffline) {
  const OfflineAnswer offline = run_offline(*tiny_engine(), kPrompt, {.temperature = 0, .max_tokens = 24});
  ASSERT_EQ(offline.tokens.size(), 24u);
  serve();
  const TestJson whole = post("/v1/completions", greedy(kPrompt, 24)).json();
  EXPECT_EQ(whole["choices"][0]["text"], offline.text);
  EXPECT_EQ(whole["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(whole["object"], "text_completion");
  EXPECT_EQ(whole["model"], "tiny");
  EXPECT_TRUE(whole["id"].get<std::string>().starts_with("cmpl-"));
  EXPECT_EQ(whole["usage"]["completion_tokens"], 24);

  const StreamedAnswer stream =
      stream_of(port(), "/v1/completions", greedy(kPrompt, 24, {{"stream_options", {{"include_usage", true}}}}));
  EXPECT_EQ(stream.text, offline.text);
  EXPECT_TRUE(stream.done);
  const TestJson& usage = stream.chunks.back();
  EXPECT_TRUE(usage["choices"].empty());
  EXPECT_EQ(usage["usage"]["prompt_tokens"], whole["usage"]["prompt_tokens"]);
  EXPECT_EQ(usage["usage"]["completion_tokens"], 24);
  EXPECT_EQ(stream.chunks[stream.chunks.size() - 2]["choices"][0]["finish_reason"], "length");
  EXPECT_TRUE(stream.chunks.front()["usage"].is_null());
}

TEST_F(ServerTest, TakesPromptsInFourFormsAndKeepsTheirOrder) {
  serve();
  const std::string other = "The ship came into the harbour";
  const TestJson ids = post("/tokenize", {{"prompt", kPrompt}}).json()["tokens"];
  const TestJson other_ids = post("/tokenize", {{"prompt", other}}).json()["tokens"];
  const auto texts = [&](const TestJson& prompt, int n) {
    std::vector<std::string> result;
    const HttpAnswer answer = post("/v1/completions", greedy(prompt, 8, {{"n", n}}));
    EXPECT_EQ(answer.status, 200) << answer.body;
    const TestJson json = answer.json();
    for (const TestJson& choice : json["choices"]) {
      EXPECT_EQ(choice["index"], result.size());
      result.push_back(choice["text"]);
    }
    return result;
  };
  const std::string first = texts(kPrompt, 1).at(0), second = texts(other, 1).at(0);
  ASSERT_NE(first, second);
  EXPECT_EQ(texts(ids, 1), std::vector{first});
  EXPECT_EQ(texts(TestJson::array({kPrompt, other}), 1), (std::vector{first, second}));
  EXPECT_EQ(texts(TestJson::array({ids, other_ids}), 2), (std::vector{first, first, second, second}));
}

TEST_F(ServerTest, EchoesThePromptWithItsLogprobs) {
  serve();
  const TestJson ids = post("/tokenize", {{"prompt", kPrompt}}).json()["tokens"];
  const TestJson json =
      post("/v1/completions", greedy(kPrompt, 0, {{"echo", true}, {"logprobs", 2}})).json();
  const TestJson& choice = json["choices"][0];
  EXPECT_EQ(choice["text"], kPrompt);
  EXPECT_EQ(choice["finish_reason"], "length");
  EXPECT_EQ(json["usage"]["completion_tokens"], 0);
  const TestJson& logprobs = choice["logprobs"];
  ASSERT_EQ(logprobs["token_logprobs"].size(), ids.size());
  EXPECT_TRUE(logprobs["token_logprobs"][0].is_null());
  std::string joined;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    EXPECT_EQ(logprobs["text_offset"][i], joined.size());
    joined += logprobs["tokens"][i].get<std::string>();
    if (i == 0) continue;
    EXPECT_LT(logprobs["token_logprobs"][i], 0);
    EXPECT_GE(logprobs["top_logprobs"][i].size(), 2u);
    EXPECT_LE(logprobs["top_logprobs"][i].size(), 3u);
  }
  EXPECT_EQ(joined, kPrompt);

  // With an answer after it, whole and streamed alike.
  const TestJson body = greedy(kPrompt, 4, {{"echo", true}, {"logprobs", 1}});
  const TestJson whole = post("/v1/completions", body).json();
  EXPECT_EQ(whole["choices"][0]["logprobs"]["tokens"].size(), ids.size() + 4);
  const StreamedAnswer stream = stream_of(port(), "/v1/completions", body);
  EXPECT_EQ(stream.text, whole["choices"][0]["text"]);
  std::size_t reported = 0;
  for (const TestJson& chunk : stream.chunks) reported += chunk["choices"][0]["logprobs"]["tokens"].size();
  EXPECT_EQ(reported, ids.size() + 4);
}

TEST_F(ServerTest, Chats) {
  serve();
  const TestJson body = {{"model", "tiny"},
                         {"messages", {{{"role", "user"}, {"content", {{{"type", "text"}, {"text", "Who is there?"}}}}}}},
                         {"temperature", 0},
                         {"max_completion_tokens", 12},
                         {"logprobs", true},
                         {"top_logprobs", 2}};
  const HttpAnswer answer = post("/v1/chat/completions", body);
  ASSERT_EQ(answer.status, 200) << answer.body;
  const TestJson whole = answer.json();
  const TestJson& choice = whole["choices"][0];
  EXPECT_EQ(whole["object"], "chat.completion");
  EXPECT_TRUE(whole["id"].get<std::string>().starts_with("chatcmpl-"));
  EXPECT_EQ(choice["message"]["role"], "assistant");
  EXPECT_EQ(choice["logprobs"]["content"].size(), whole["usage"]["completion_tokens"]);
  EXPECT_EQ(choice["logprobs"]["content"][0]["top_logprobs"].size(), 2u);
  EXPECT_EQ(choice["logprobs"]["content"][0]["top_logprobs"][0]["logprob"], choice["logprobs"]["content"][0]["logprob"]);

  const StreamedAnswer stream = stream_of(port(), "/v1/chat/completions", body);
  EXPECT_EQ(stream.text, choice["message"]["content"]);
  EXPECT_EQ(stream.chunks.front()["object"], "chat.completion.chunk");
  EXPECT_EQ(stream.chunks.front()["choices"][0]["delta"]["role"], "assistant");
  EXPECT_FALSE(stream.chunks.back()["choices"][0]["delta"].contains("role") && stream.chunks.size() > 1);

  // The template's text is what /tokenize counts.
  const TestJson counted = post("/tokenize", {{"messages", body["messages"]}}).json();
  EXPECT_EQ(counted["count"], whole["usage"]["prompt_tokens"]);
}

TEST_F(ServerTest, StopsWhereToldAndSaysWhy) {
  const OfflineAnswer offline = run_offline(*tiny_engine(), kPrompt, {.temperature = 0, .max_tokens = 24});
  const std::string stop = offline.text.substr(offline.text.size() / 2, 3);
  serve();
  const TestJson by_text = post("/v1/completions", greedy(kPrompt, 24, {{"stop", stop}})).json()["choices"][0];
  EXPECT_EQ(by_text["text"], offline.text.substr(0, offline.text.find(stop)));
  EXPECT_EQ(by_text["finish_reason"], "stop");
  EXPECT_EQ(by_text["stop_reason"], stop);
  const TestJson by_token =
      post("/v1/completions", greedy(kPrompt, 24, {{"stop_token_ids", {offline.tokens[5]}}})).json()["choices"][0];
  EXPECT_EQ(by_token["stop_reason"], offline.tokens[5]);
  EXPECT_EQ(by_token["finish_reason"], "stop");
}

TEST_F(ServerTest, RefusesBadRequestsByName) {
  serve();
  const auto chat = [](const std::string& rest) {
    return R"({"messages": [{"role": "user", "content": "hi"}], )" + rest + "}";
  };
  struct Case {
    std::string path, body;
    int status;
    TestJson param;
  };
  const std::string completions = "/v1/completions", chats = "/v1/chat/completions";
  for (const Case& one : std::vector<Case>{
           {completions, "{", 400, nullptr},
           {completions, "[]", 400, nullptr},
           {completions, "\"\xff\"", 400, nullptr},
           {completions, std::string(10'000, '['), 400, nullptr},
           {completions, "{}", 400, "prompt"},
           {completions, R"({"prompt": 3})", 400, "prompt"},
           {completions, R"({"prompt": ""})", 400, "prompt"},
           {completions, R"({"prompt": []})", 400, "prompt"},
           {completions, R"({"prompt": ["a", 1]})", 400, "prompt"},
           {completions, R"({"prompt": [1, "a"]})", 400, "prompt"},
           {completions, R"({"prompt": [4096]})", 400, "prompt"},
           {completions, R"({"prompt": [-1]})", 400, "prompt"},
           {completions, R"({"prompt": [[]]})", 400, "prompt"},
           {completions, R"({"prompt": "a", "model": "gpt-4"})", 404, "model"},
           {completions, R"({"prompt": "a", "model": 4})", 400, "model"},
           {completions, R"({"prompt": "a", "max_tokens": 0})", 400, "max_tokens"},
           {completions, R"({"prompt": "a", "max_tokens": 4096})", 400, "max_tokens"},
           {completions, R"({"prompt": "a", "max_tokens": 9223372036854775807})", 400, "max_tokens"},
           {completions, R"({"prompt": "a", "max_tokens": "9"})", 400, "max_tokens"},
           {completions, R"({"prompt": "a", "n": 0})", 400, "n"},
           {completions, R"({"prompt": "a", "n": 129})", 400, "n"},
           {completions, R"({"prompt": "a", "best_of": 2})", 400, "best_of"},
           {completions, R"({"prompt": "a", "suffix": "b"})", 400, "suffix"},
           {completions, R"({"prompt": "a", "logprobs": 21})", 400, "logprobs"},
           {completions, R"({"prompt": "a", "logprobs": true})", 400, "logprobs"},
           {completions, R"({"prompt": "a", "temperature": -1})", 400, "temperature"},
           {completions, R"({"prompt": "a", "stream_options": {}})", 400, "stream_options"},
           {completions, R"({"prompt": "a", "stream": true, "prompt_logprobs": 1})", 400, "prompt_logprobs"},
           {chats, "{}", 400, "messages"},
           {chats, R"({"messages": []})", 400, "messages"},
           {chats, R"({"messages": "hi"})", 400, "messages"},
           {chats, R"({"messages": [{"content": "hi"}]})", 400, "messages"},
           {chats, R"({"messages": [{"role": "user"}]})", 400, "messages"},
           {chats, R"({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]})", 400, "messages"},
           {chats, chat(R"("tool_choice": "required")"), 400, "tool_choice"},
           {chats, chat(R"("tool_choice": {"type": "function"})"), 400, "tool_choice"},
           {chats, chat(R"("response_format": {"type": "json_schema"})"), 400, "response_format"},
           {chats, chat(R"("top_logprobs": 2)"), 400, "top_logprobs"},
           {chats, chat(R"("logprobs": 2)"), 400, "logprobs"},
           {chats, chat(R"("max_tokens": 0)"), 400, "max_tokens"},
           {chats, chat(R"("continue_final_message": true, "add_generation_prompt": true)"), 400, "continue_final_message"},
           {"/tokenize", "{}", 400, "prompt"},
           {"/detokenize", R"({"tokens": ["a"]})", 400, "tokens"},
       }) {
    const HttpAnswer answer = ask(port(), "POST", one.path, one.body);
    EXPECT_EQ(answer.status, one.status) << one.body.substr(0, 200);
    const TestJson error = answer.json()["error"];
    EXPECT_EQ(error["param"], one.param) << one.body.substr(0, 200) << error;
    EXPECT_FALSE(error["message"].get<std::string>().empty());
  }
  EXPECT_EQ(engine_->stats().steps, 0) << "a refused request reached the model";
  const HttpAnswer too_long = post(completions, {{"prompt", std::vector<int>(5000, 7)}});
  EXPECT_EQ(too_long.status, 400);
  EXPECT_EQ(too_long.json()["error"]["code"], "context_length_exceeded");
  EXPECT_NE(too_long.body.find("5000"), std::string::npos);
}

TEST_F(ServerTest, SpeaksHttpWithClientsOfManyKinds) {
  serve({.max_body_bytes = 1000});
  EXPECT_EQ(ask(port(), "GET", "/nowhere").status, 404);
  EXPECT_EQ(ask(port(), "GET", "/v1/completions").status, 405);
  EXPECT_EQ(ask(port(), "POST", "/v1/completions", std::string(1001, ' ')).status, 413);
  EXPECT_EQ(ask(port(), "GET", "/health", "", "X: " + std::string(40'000, 'x') + "\r\n").status, 431);
  {
    HttpClient client(port());
    client.send("what is this\r\n\r\n");
    EXPECT_EQ(client.answer().status, 400);
    EXPECT_TRUE(client.closed());
  }
  {
    HttpClient client(port());  // three at once on one connection, the second waiting for the model
    const std::string body = greedy("a", 2).dump();
    client.send("GET /health HTTP/1.1\r\nHost: t\r\n\r\n" +
                fmt::format("POST /v1/completions HTTP/1.1\r\nHost: t\r\nContent-Length: {}\r\n\r\n{}", body.size(), body) +
                "GET /version HTTP/1.1\r\nHost: t\r\n\r\n");
    EXPECT_EQ(client.answer().body, "ok\n");
    EXPECT_EQ(client.answer().json()["usage"]["completion_tokens"], 2);
    EXPECT_TRUE(client.answer().json().contains("version"));
  }
  {
    HttpClient client(port());
    client.request("GET", "/health", "", "", "HTTP/1.0");
    EXPECT_EQ(client.answer().status, 200);
    EXPECT_TRUE(client.closed());
  }
  {
    HttpClient client(port());  // HTTP/1.0 streams end with the connection
    client.request("POST", "/v1/completions", greedy("a", 3, {{"stream", true}}).dump(), "", "HTTP/1.0");
    const StreamedAnswer stream = read_stream(client);
    EXPECT_TRUE(stream.done);
  }
  {
    HttpClient client(port());
    const std::string body = greedy("a", 2).dump();
    client.send(fmt::format("POST /v1/completions HTTP/1.1\r\nHost: t\r\nExpect: 100-continue\r\nContent-Length: {}\r\n\r\n",
                            body.size()));
    EXPECT_EQ(client.head().status, 100);
    client.send(body);
    EXPECT_EQ(client.answer().status, 200);
  }
  {
    HttpClient client(port());  // the body in chunks, and no content type
    const std::string body = greedy("a", 2).dump();
    client.send(fmt::format("POST /v1/completions HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n{:x}\r\n{}\r\n0\r\n\r\n",
                            body.size(), body));
    EXPECT_EQ(client.answer().status, 200);
  }
  {
    HttpClient client(port());
    client.request("HEAD", "/health");
    const HttpAnswer answer = client.head();
    EXPECT_EQ(answer.status, 200);
    EXPECT_EQ(answer.headers.at("content-length"), "3");
    client.request("GET", "/health");
    EXPECT_EQ(client.answer().body, "ok\n");
  }
}

TEST_F(ServerTest, WantsAKeyWhereOneIsSet) {
  serve({.api_keys = {"secret"}});
  EXPECT_EQ(ask(port(), "GET", "/health").status, 200);
  EXPECT_EQ(ask(port(), "GET", "/metrics").status, 200);
  const HttpAnswer refused = ask(port(), "GET", "/v1/models");
  EXPECT_EQ(refused.status, 401);
  EXPECT_EQ(refused.json()["error"]["code"], "invalid_api_key");
  EXPECT_EQ(ask(port(), "GET", "/v1/models", "", "Authorization: Bearer secret\r\n").status, 200);
}

TEST_F(ServerTest, SaysWhatRuns) {
  serve({.served_model_names = {"one", "two"}});
  const TestJson models = ask(port(), "GET", "/v1/models").json();
  ASSERT_EQ(models["data"].size(), 2u);
  EXPECT_EQ(models["data"][1]["id"], "two");
  const TestJson& card = models["data"][0];
  EXPECT_EQ(card["max_model_len"], engine_->attestation().max_model_len);
  EXPECT_EQ(card["kv_cache"]["key_dtype"], name(engine_->attestation().format.key));
  EXPECT_EQ(card["kv_cache"]["bytes_per_token"], engine_->attestation().bytes_per_token);
  EXPECT_EQ(ask(port(), "GET", "/v1/models/two").json()["id"], "two");
  EXPECT_EQ(ask(port(), "GET", "/v1/models/three").status, 404);

  post("/v1/completions", greedy(kPrompt, 3));
  const std::string metrics = ask(port(), "GET", "/metrics").body;
  for (const char* line : {"keel:generation_tokens_total{engine=\"0\",model_name=\"one\"} 3\n", "# TYPE keel:kv_cache_usage_perc gauge\n",
                           "keel:request_success_total{engine=\"0\",finished_reason=\"length\",model_name=\"one\"} 1\n",
                           "keel:time_to_first_token_seconds_count{engine=\"0\",model_name=\"one\"} 1\n",
                           "keel:e2e_request_latency_seconds_count{engine=\"0\",model_name=\"one\"} 1\n",
                           "keel:request_queue_time_seconds_count{engine=\"0\",model_name=\"one\"} 1\n",
                           "keel:request_prefill_time_seconds_count{engine=\"0\",model_name=\"one\"} 1\n",
                           "keel:request_decode_time_seconds_count{engine=\"0\",model_name=\"one\"} 1\n",
                           "keel:request_inference_time_seconds_count{engine=\"0\",model_name=\"one\"} 1\n",
                           "keel:inter_token_latency_seconds_count{engine=\"0\",model_name=\"one\"} 2\n",
                           "handler=\"/v1/completions\",method=\"POST\",model_name=\"one\",status=\"200\"} 1\n", "key_dtype=\""}) {
    EXPECT_NE(metrics.find(line), std::string::npos) << line << metrics;
  }

  const TestJson tokens = post("/tokenize", {{"prompt", kPrompt}, {"return_token_strs", true}}).json();
  EXPECT_EQ(tokens["count"], tokens["token_strs"].size());
  EXPECT_EQ(post("/detokenize", {{"tokens", tokens["tokens"]}}).json()["prompt"], kPrompt);
}

TEST_F(ServerTest, CountsPromptsByTheirWayThroughAttention) {
  serve({}, {.max_num_batched_tokens = 64});
  post("/v1/completions", greedy(std::vector<int>(40, 7), 3));
  post("/v1/completions", greedy(std::vector<int>(150, 8), 3));  // in three steps
  std::map<std::string, std::int64_t> prompts, rows;
  for (const auto& [route, count] : engine_->stats().prompt_routes) prompts[route.substr(0, route.find(':'))] += count;
  for (const auto& [route, count] : engine_->stats().routes) rows[route.substr(0, route.find(':'))] += count;
  const std::string metrics = ask(port(), "GET", "/metrics").body;
  if (test_device() == Device::cpu) {
    EXPECT_TRUE(prompts.empty());
    EXPECT_EQ(metrics.find("attention_prompts_total"), std::string::npos) << metrics;
    return;
  }
  EXPECT_EQ(prompts, (std::map<std::string, std::int64_t>{{"fresh", 1}, {"gather", 1}}));
  EXPECT_EQ(rows, (std::map<std::string, std::int64_t>{{"decode", 2 + 2}, {"fresh", 40 + 64}, {"gather", 64 + 22}}));
  EXPECT_NE(metrics.find("keel:attention_prompts_total{engine=\"0\",model_name=\"tiny\",reason=\"fresh prompt\",route=\"fresh\"} 1\n"), std::string::npos) << metrics;
}

TEST_F(ServerTest, SaysThatAModelHasNoTemplate) {
  const auto engine = tiny_engine();
  Server server(*engine, nullptr, {.port = 0});
  server.start();
  const HttpAnswer answer =
      ask(server.port(), "POST", "/v1/chat/completions", R"({"messages": [{"role": "user", "content": "hi"}]})");
  EXPECT_EQ(answer.status, 400);
  EXPECT_NE(answer.body.find("no chat template"), std::string::npos);
}

}  // namespace
}  // namespace keel
