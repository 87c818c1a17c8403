// What the server costs: 64 streams through HTTP against the same requests given to the engine directly, in turn.
//
//   server_bench MODEL [ROUNDS]
//
// One thread reads all 64 sockets, on the same processors as everything else: it looks every two milliseconds and its requests are
// written beforehand, so that the client's part stays small. Prints one JSON line a round and the median ratio.
#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/error.h"
#include "base/log.h"
#include "base/random.h"
#include "server/server.h"

namespace keel {
namespace {

constexpr int kStreams = 64;
constexpr std::int64_t kPromptTokens = 128, kAnswerTokens = 128;

std::vector<TokenId> prompt_of(int stream, std::int64_t vocabulary, int round) {
  std::vector<TokenId> prompt(kPromptTokens);
  for (std::int64_t i = 0; i < kPromptTokens; ++i) {
    prompt[i] = static_cast<TokenId>(random_u64(round * kStreams + stream, i) % vocabulary);
  }
  return prompt;
}

double seconds(auto action) {
  const auto start = std::chrono::steady_clock::now();
  action();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

double offline(Engine& engine, int round) {
  return seconds([&] {
    for (int stream = 0; stream < kStreams; ++stream) {
      Request request{.prompt = prompt_of(stream, engine.config().vocabulary, round)};
      request.sampling = {.temperature = 0, .max_tokens = kAnswerTokens, .ignore_eos = true};
      check(engine.submit(std::move(request), [](const Output&) {}).status == SubmitStatus::accepted, "the engine takes the request");
    }
    while (engine.has_work()) engine.step();
  });
}

std::string request_text(const std::string& model, const std::vector<TokenId>& prompt) {
  const std::string body = nlohmann::json{{"model", model}, {"prompt", prompt}, {"max_tokens", kAnswerTokens}, {"temperature", 0},
                                          {"ignore_eos", true}, {"stream", true}}.dump();
  return fmt::format("POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/json\r\n"
                     "Content-Length: {}\r\n\r\n{}", body.size(), body);
}

int open_stream(std::uint16_t port, const std::string& request) {
  const int socket = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{.sin_family = AF_INET, .sin_port = htons(port), .sin_addr = {htonl(INADDR_LOOPBACK)}, .sin_zero = {}};
  if (connect(socket, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) fail("cannot connect to port {}", port);
  check(write(socket, request.data(), request.size()) == static_cast<ssize_t>(request.size()), "a small request fits the socket's buffer");
  return socket;
}

double through_server(std::uint16_t port, const std::string& model, std::int64_t vocabulary, int round) {
  std::vector<std::string> requests;
  for (int stream = 0; stream < kStreams; ++stream) requests.push_back(request_text(model, prompt_of(stream, vocabulary, round)));
  std::vector<pollfd> open;
  std::int64_t done = 0;
  const double elapsed = seconds([&] {
    for (const std::string& request : requests) {
      open.push_back({.fd = open_stream(port, request), .events = POLLIN, .revents = 0});
    }
    std::vector<std::string> tail(kStreams);
    std::vector<bool> closed(kStreams);
    for (int left = kStreams; left > 0;) {
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
      poll(open.data(), open.size(), -1);
      for (int i = 0; i < kStreams; ++i) {
        if (closed[i] || open[i].revents == 0) continue;
        char bytes[16384];
        const ssize_t count = read(open[i].fd, bytes, sizeof bytes);
        if (count > 0) {
          tail[i].append(bytes, count);
          if (tail[i].size() > 64) tail[i].erase(0, tail[i].size() - 64);
          continue;
        }
        done += tail[i].find("[DONE]") != std::string::npos;
        ::close(open[i].fd);
        open[i].fd = -1;
        closed[i] = true;
        --left;
      }
    }
  });
  if (done != kStreams) fail("only {} of {} streams ended as they should", done, kStreams);
  return elapsed;
}

void run(const std::string& path, int rounds) {
  set_quiet(true);
  const ModelPath found = find_model(path);
  const std::shared_ptr<const Tokenizer> tokenizer =
      found.kind == ModelFiles::gguf ? load_tokenizer(GgufFile(found.path)) : load_tokenizer(found.path);
  const EngineOptions options{.kv_cache_dtype = "k16v8", .kv_cache_memory_bytes = 256 << 20, .max_model_len = 512,
                              .enable_prefix_caching = false};
  Engine direct(load_model(found, {}), tokenizer, "model", options);
  Engine served(load_model(found, {}), tokenizer, "model", options);
  Server server(served, nullptr, {.port = 0});
  server.start();
  std::vector<double> ratios;
  for (int round = 0; round <= rounds; ++round) {  // the first is a warm-up
    const double direct_s = offline(direct, round);
    const double served_s = through_server(server.port(), "model", served.config().vocabulary, round);
    if (round == 0) continue;
    ratios.push_back(direct_s / served_s);
    constexpr double kTokens = kStreams * kAnswerTokens;
    fmt::print("{}\n", nlohmann::ordered_json{{"streams", kStreams}, {"offline_tokens_per_s", kTokens / direct_s},
                                              {"server_tokens_per_s", kTokens / served_s}, {"ratio", ratios.back()}}.dump());
  }
  std::sort(ratios.begin(), ratios.end());
  fmt::print("{}\n", nlohmann::ordered_json{{"median_ratio", ratios[ratios.size() / 2]}}.dump());
  server.drain();
  server.wait();
}

}  // namespace
}  // namespace keel

int main(int argc, char** argv) {
  if (argc < 2) {
    fmt::print(stderr, "usage: server_bench MODEL [ROUNDS]\n");
    return 2;
  }
  try {
    keel::run(argv[1], argc > 2 ? std::stoi(argv[2]) : 7);
  } catch (const std::exception& error) {
    fmt::print(stderr, "server_bench: {}\n", error.what());
    return 1;
  }
}
