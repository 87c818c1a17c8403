// Clients that leave, do not read, wait, or come in crowds, and a server that ends while they are there.
#include <atomic>
#include <random>

#include "server_fixture.h"

namespace keel {
namespace {

using namespace std::chrono_literals;

TEST_F(ServerTest, FreesEverythingWhenAClientLeaves) {
  serve({}, {.max_num_seqs = 1});
  for (const bool stream : {true, false}) {
    HttpClient client(port());
    client.request("POST", "/v1/completions", greedy(kPrompt, 3000, {{"ignore_eos", true}, {"stream", stream}}).dump());
    ASSERT_TRUE(eventually([](const EngineStats& s) { return s.pages_held > 0; }));
    HttpClient waiting(port());  // in the queue behind the first
    waiting.request("POST", "/v1/completions", greedy(kPrompt, 3000, {{"ignore_eos", true}, {"stream", stream}}).dump());
    ASSERT_TRUE(eventually([](const EngineStats& s) { return s.waiting > 0; }));
    if (stream) {
      client.head();
      ASSERT_TRUE(client.event().has_value());
      waiting.reset();
      client.close();
    } else {
      waiting.close();
      client.reset();
    }
    EXPECT_TRUE(all_free());
  }
  EXPECT_EQ(engine_->stats().finished["abort"], 4);
  EXPECT_EQ(post("/v1/completions", greedy(kPrompt, 2)).status, 200);
}

// Nothing tells a client that sends no more from one that is gone before an answer is written to it.
TEST_F(ServerTest, TakesAClientThatEndsItsSideForGone) {
  serve();
  for (const bool stream : {true, false}) {
    HttpClient client(port());
    client.request("POST", "/v1/completions", greedy(kPrompt, 3000, {{"ignore_eos", true}, {"stream", stream}}).dump());
    ASSERT_TRUE(eventually([](const EngineStats& s) { return s.pages_held > 0; }));
    client.close_sending();
    EXPECT_TRUE(client.closed());
    EXPECT_TRUE(all_free());
  }
  EXPECT_EQ(engine_->stats().finished["abort"], 2);
  HttpClient quick(port());
  quick.request("GET", "/health");
  quick.close_sending();
  EXPECT_EQ(quick.answer().status, 200);
}

TEST_F(ServerTest, CancelsWhatItsClientDoesNotRead) {
  serve({.max_backlog_outputs = 16});
  HttpClient client(port(), 2048);
  client.request("POST", "/v1/completions",
                 greedy(kPrompt, 3000, {{"ignore_eos", true}, {"stream", true}, {"logprobs", 20}}).dump());
  ASSERT_TRUE(eventually([](const EngineStats& s) { return s.pages_held > 0; }));
  EXPECT_TRUE(all_free());
  EXPECT_EQ(engine_->stats().finished["abort"], 1);
  EXPECT_NE(ask(port(), "GET", "/metrics").body.find("client_overflows_total{engine=\"0\",model_name=\"tiny\"} 1"),
            std::string::npos);
}

TEST_F(ServerTest, Refuses429WhenTheQueueIsFull) {
  serve({}, {.max_num_seqs = 1, .max_queued = 2});
  std::vector<std::unique_ptr<HttpClient>> clients;
  const std::string body = greedy(kPrompt, 3000, {{"ignore_eos", true}}).dump();
  HttpAnswer refused;
  for (int i = 0; i < 8 && refused.status == 0; ++i) {
    clients.push_back(std::make_unique<HttpClient>(port()));
    clients.back()->request("POST", "/v1/completions", body);
    if (i < 3) std::this_thread::sleep_for(200ms);
    if (i == 3) refused = clients.back()->answer();
  }
  EXPECT_EQ(refused.status, 429);
  EXPECT_EQ(refused.headers["retry-after"], "1");
  EXPECT_EQ(refused.json()["error"]["type"], "rate_limit_error");
  clients.clear();
  EXPECT_TRUE(all_free());
}

TEST_F(ServerTest, TakesARequestWholeOrNotAtAll) {
  serve({}, {.max_num_seqs = 1, .max_queued = 6});
  const HttpAnswer never = post("/v1/completions", greedy(kPrompt, 2, {{"n", 7}}));
  EXPECT_EQ(never.status, 400);
  EXPECT_EQ(never.json()["error"]["param"], "n");
  EXPECT_NE(never.body.find("at most 6 choices"), std::string::npos) << never.body;
  const HttpAnswer many = post("/v1/completions", greedy({"a", "b", "c"}, 2, {{"n", 3}}));
  EXPECT_EQ(many.status, 400);
  EXPECT_EQ(many.json()["error"]["param"], "prompt");

  HttpClient running(port());
  running.request("POST", "/v1/completions", greedy(kPrompt, 3000, {{"ignore_eos", true}}).dump());
  ASSERT_TRUE(eventually([](const EngineStats& s) { return s.running == 1; }));
  HttpClient waiting(port());
  waiting.request("POST", "/v1/completions", greedy({"a", "b"}, 2).dump());
  ASSERT_TRUE(eventually([](const EngineStats& s) { return s.waiting == 2; }));
  const HttpAnswer later = post("/v1/completions", greedy({"a", "b", "c"}, 2, {{"n", 2}}));
  EXPECT_EQ(later.status, 429);
  EXPECT_NE(later.body.find("room for 4 of 6 choices"), std::string::npos) << later.body;
  // Nothing of the refused one was left in the queue.
  HttpClient fits(port());
  fits.request("POST", "/v1/completions", greedy({"a", "b", "c", "d"}, 2).dump());
  EXPECT_TRUE(eventually([](const EngineStats& s) { return s.waiting == 6; }));
  running.close();
  EXPECT_EQ(waiting.answer().status, 200);
  EXPECT_EQ(fits.answer().status, 200);
}

TEST_F(ServerTest, PingsASilentStream) {
  serve({.ping_interval = 30ms}, {.max_num_seqs = 1});
  HttpClient busy(port());
  busy.request("POST", "/v1/completions", greedy(kPrompt, 3000, {{"ignore_eos", true}, {"stream", true}}).dump());
  busy.head();
  ASSERT_TRUE(busy.event().has_value());
  HttpClient waiting(port());
  waiting.request("POST", "/v1/completions", greedy(kPrompt, 2, {{"stream", true}}).dump());
  waiting.head();
  EXPECT_EQ(waiting.event(), ": ping");
  busy.close();
  int events = 0;
  while (const auto event = waiting.event()) events += event->starts_with("data: ");
  EXPECT_GE(events, 2);
}

TEST_F(ServerTest, DrainsWithoutCuttingRunningRequests) {
  serve();
  HttpClient idle(port());
  HttpClient running(port());
  running.request("POST", "/v1/completions", greedy(kPrompt, 200, {{"ignore_eos", true}, {"stream", true}}).dump());
  running.head();
  ASSERT_TRUE(running.event().has_value());
  server_->drain(30s);
  EXPECT_TRUE(idle.closed());
  int chunks = 1;
  std::string last;
  while (const auto event = running.event()) {
    last = *event;
    ++chunks;
  }
  EXPECT_EQ(last, "data: [DONE]");
  EXPECT_GT(chunks, 100);
  running.close();
  EXPECT_TRUE(server_->wait());
  EXPECT_EQ(engine_->stats().finished["length"], 1);
  EXPECT_THROW(HttpClient refused(port()), boost::system::system_error);
}

TEST_F(ServerTest, CancelsWhatOutlastsTheDrainAndTellsTheClient) {
  serve();
  HttpClient stream(port()), whole(port());
  stream.request("POST", "/v1/completions", greedy(kPrompt, 3900, {{"ignore_eos", true}, {"stream", true}}).dump());
  whole.request("POST", "/v1/completions", greedy(kPrompt, 3900, {{"ignore_eos", true}}).dump());
  stream.head();
  ASSERT_TRUE(stream.event().has_value());
  ASSERT_TRUE(eventually([](const EngineStats& s) { return s.running == 2; }));
  server_->drain(50ms);
  EXPECT_EQ(whole.answer().status, 503);
  std::vector<std::string> events;
  while (const auto event = stream.event()) events.push_back(*event);
  ASSERT_GE(events.size(), 2u);
  EXPECT_EQ(events.back(), "data: [DONE]");
  EXPECT_NE(events[events.size() - 2].find("{\"error\":"), std::string::npos);
  EXPECT_FALSE(server_->wait());
  EXPECT_EQ(engine_->stats().pages_held, 0);
}

TEST_F(ServerTest, AShorterDrainOvertakesALongerOne) {
  serve();
  HttpClient stream(port());
  stream.request("POST", "/v1/completions", greedy(kPrompt, 3900, {{"ignore_eos", true}, {"stream", true}}).dump());
  stream.head();
  ASSERT_TRUE(stream.event().has_value());
  server_->drain(60s);
  server_->drain(0ms);
  EXPECT_FALSE(server_->wait());
}

TEST_F(ServerTest, TellsAClientThatItsRequestFailed) {
  // Weights so large that no logit is finite.
  const ModelPath config{ModelFiles::config_json, tiny_model() / "config.json", "broken"};
  engine_ = std::make_unique<Engine>(load_model(config, {.format = LoadFormat::dummy, .dummy_scale = 1e30f}),
                                     load_tokenizer(tiny_model()), "broken", EngineOptions{.kv_cache_memory_bytes = 16 << 20});
  server_ = std::make_unique<Server>(*engine_, nullptr, ServerOptions{.port = 0});
  server_->start();
  const HttpAnswer whole = post("/v1/completions", greedy(kPrompt, 4));
  EXPECT_EQ(whole.status, 500);
  EXPECT_EQ(whole.json()["error"]["type"], "server_error");
  EXPECT_NE(whole.body.find("no finite logit"), std::string::npos) << whole.body;
  const StreamedAnswer stream = stream_of(port(), "/v1/completions", greedy(kPrompt, 4));
  EXPECT_TRUE(stream.done);
  ASSERT_EQ(stream.chunks.size(), 1u);
  EXPECT_EQ(stream.chunks[0]["error"]["type"], "server_error");
  EXPECT_EQ(ask(port(), "GET", "/health").status, 200);
  EXPECT_TRUE(all_free());
}

TEST_F(ServerTest, EndsWhenTheEngineFailsAndTellsItsClients) {
  serve();
  HttpClient idle(port()), stream(port()), whole(port());
  stream.request("POST", "/v1/completions", greedy(kPrompt, 3900, {{"ignore_eos", true}, {"stream", true}}).dump());
  whole.request("POST", "/v1/completions", greedy(kPrompt, 3900, {{"ignore_eos", true}}).dump());
  stream.head();
  ASSERT_TRUE(stream.event().has_value());
  ASSERT_TRUE(eventually([](const EngineStats& s) { return s.running == 2; }));
  engine_->submit({.prompt = {1}}, [](const Output&) { throw Error("the device is gone"); });
  const HttpAnswer failed = whole.answer();
  EXPECT_EQ(failed.status, 500);
  EXPECT_NE(failed.body.find("the device is gone"), std::string::npos) << failed.body;
  std::vector<std::string> events;
  while (const auto event = stream.event()) events.push_back(*event);
  ASSERT_GE(events.size(), 2u);
  EXPECT_EQ(events.back(), "data: [DONE]");
  EXPECT_NE(events[events.size() - 2].find("the device is gone"), std::string::npos);
  EXPECT_TRUE(idle.closed());
  EXPECT_FALSE(server_->wait());
}

TEST_F(ServerTest, NamesThePortThatIsTaken) {
  serve();
  const auto other = tiny_engine();
  Server second(*other, nullptr, {.port = port()});
  try {
    second.start();
    FAIL() << "two servers on one port";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find(fmt::format("port {} on 127.0.0.1 is in use", port())), std::string::npos);
  }
}

TEST_F(ServerTest, ServesTwoHundredStreamsOfWhichHalfLeave) {
  constexpr int kClients = 200, kPrompts = 8, kTokens = 24;
  std::vector<std::string> prompts, expected;
  const auto offline = tiny_engine();
  for (int i = 0; i < kPrompts; ++i) {
    prompts.push_back(fmt::format("{} and then, on day {},", kPrompt, i));
    expected.push_back(run_offline(*offline, prompts.back(), {.temperature = 0, .max_tokens = kTokens, .ignore_eos = true}).text);
  }
  serve({}, {.max_num_seqs = 32});
  std::atomic<int> right = 0, wrong = 0, left = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < kClients; ++i) {
    threads.emplace_back([&, i] {
      std::mt19937 random(static_cast<unsigned>(i));
      try {
        HttpClient client(port());
        client.request("POST", "/v1/completions",
                       greedy(prompts[i % kPrompts], kTokens, {{"ignore_eos", true}, {"stream", true}}).dump());
        if (i % 2 == 0) {
          const StreamedAnswer stream = read_stream(client);
          ++(stream.done && stream.text == expected[i % kPrompts] ? right : wrong);
          return;
        }
        if (random() % 2 == 0) client.head();
        for (unsigned events = random() % kTokens; events > 0 && random() % 8 != 0; --events) {
          if (random() % 2 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(random() % 10));
        }
        random() % 2 == 0 ? client.close() : client.reset();
        ++left;
      } catch (const std::exception& error) {
        ADD_FAILURE() << "client " << i << ": " << error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(left, kClients / 2);
  EXPECT_EQ(right, kClients / 2);
  EXPECT_EQ(wrong, 0);
  EXPECT_TRUE(all_free());
}

}  // namespace
}  // namespace keel
