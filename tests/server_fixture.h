// A server over the tiny model, and what its clients ask and read.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "http_client.h"
#include "server/server.h"
#include "tiny_engine.h"

namespace keel {

using TestJson = nlohmann::json;

class ServerTest : public testing::Test {
 protected:
  void SetUp() override {
    if (tiny_model().empty()) GTEST_SKIP() << "no models/tiny here";
  }

  void serve(ServerOptions options = {}, EngineOptions engine_options = {}) {
    engine_ = tiny_engine(engine_options);
    template_.emplace(tiny_chat_template(*engine_));
    options.port = 0;
    server_ = std::make_unique<Server>(*engine_, &*template_, options);
    server_->start();
  }

  std::uint16_t port() const { return server_->port(); }
  HttpAnswer post(const std::string& path, const TestJson& body) { return ask(port(), "POST", path, body.dump()); }

  bool eventually(const std::function<bool(const EngineStats&)>& holds) {
    for (int i = 0; i < 1000; ++i) {
      if (holds(engine_->stats())) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return false;
  }
  bool all_free() {
    return eventually([](const EngineStats& s) { return s.pages_held == 0 && s.running == 0 && s.waiting == 0; });
  }

  std::unique_ptr<Engine> engine_;
  std::optional<ChatTemplate> template_;
  std::unique_ptr<Server> server_;
};

inline TestJson greedy(const TestJson& prompt, int max_tokens, TestJson more = TestJson::object()) {
  more["prompt"] = prompt;
  more["max_tokens"] = max_tokens;
  more["temperature"] = 0;
  return more;
}

struct StreamedAnswer {
  std::string text;
  std::vector<TestJson> chunks;
  bool done = false;
};

inline StreamedAnswer read_stream(HttpClient& client) {
  StreamedAnswer stream;
  EXPECT_EQ(client.head().status, 200);
  while (const auto event = client.event()) {
    if (event->starts_with(":")) continue;  // a ping
    EXPECT_TRUE(event->starts_with("data: ")) << *event;
    if (*event == "data: [DONE]") {
      stream.done = true;
      continue;
    }
    EXPECT_FALSE(stream.done) << "an event after [DONE]";
    stream.chunks.push_back(TestJson::parse(event->substr(6)));
    const TestJson& chunk = stream.chunks.back();
    if (!chunk.contains("choices") || chunk["choices"].empty()) continue;
    const TestJson& choice = chunk["choices"][0];
    if (choice.contains("text")) stream.text += choice["text"].get<std::string>();
    if (choice.contains("delta")) stream.text += choice["delta"].value("content", "");
  }
  return stream;
}

inline StreamedAnswer stream_of(std::uint16_t port, const std::string& path, TestJson body) {
  body["stream"] = true;
  HttpClient client(port);
  client.request("POST", path, body.dump());
  return read_stream(client);
}

inline const std::string kPrompt = "It was a dark night, and the old man said to the boy";

}  // namespace keel
