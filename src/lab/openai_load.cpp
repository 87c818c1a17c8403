#include "lab/openai_load.h"

#include <algorithm>
#include <array>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/connect.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http.hpp>

#include "base/json.h"
#include "base/utf8.h"
#include "lab/sse_reader.h"

namespace keel {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using tcp = asio::ip::tcp;
using Clock = std::chrono::steady_clock;
using Json = nlohmann::json;

namespace {

constexpr std::size_t kMostErrorBytes = 64 << 10;  // kept of an answer that is not an event stream

std::string reason(const boost::system::error_code& error, std::chrono::seconds timeout) {
  if (error == beast::error::timeout) return fmt::format("no complete answer within {} s", timeout.count());
  if (error == http::error::end_of_stream || error == http::error::partial_message) return "the server closed the connection early";
  return error.message();
}

http::request<http::string_body> request_of(const ServerAddress& address, http::verb verb, std::string_view path, std::string body) {
  http::request<http::string_body> request(verb, address.prefix + std::string(path), 11);
  request.set(http::field::host, address.authority());
  request.set(http::field::user_agent, "keel-bench");
  if (!address.api_key.empty()) request.set(http::field::authorization, "Bearer " + address.api_key);
  if (verb == http::verb::post) {
    request.set(http::field::content_type, "application/json");
    request.set(http::field::accept, "text/event-stream");
  }
  request.body() = std::move(body);
  request.set(http::field::connection, "close");
  request.prepare_payload();
  return request;
}

std::string plain(std::string_view words) { return shortened(plain_line(words)); }

// OpenAI's {"error": {"message": …}}, or the body's beginning.
std::string message_of(const std::string& body) {
  const Json json = Json::parse(body, nullptr, false);
  if (json.is_object() && json.contains("error")) {
    const Json& error = json["error"];
    if (error.is_object() && error.contains("message") && error["message"].is_string()) return plain(error["message"].get<std::string>());
    if (error.is_string()) return plain(error.get<std::string>());
  }
  return body.empty() ? "an empty body" : plain(body);
}

// Takes the events of one answer: token times, the usage, and how it ended.
class AnswerEvents {
 public:
  explicit AnswerEvents(RequestTimes& times) : times_(times) {}

  void take(const std::string& data, double now_s) {
    if (data == "[DONE]") {
      done_ = true;
      return;
    }
    const Json json = Json::parse(data, nullptr, false);
    if (!json.is_object()) return set_error("an event that is no JSON object: " + plain(data));
    if (json.contains("error")) return set_error(message_of(data));
    if (json.contains("usage") && json["usage"].is_object()) {
      times_.prompt_tokens = json["usage"].value("prompt_tokens", times_.prompt_tokens);
      times_.output_tokens = json["usage"].value("completion_tokens", std::int64_t{0});
      has_usage_ = true;
    }
    if (!json.contains("choices") || !json["choices"].is_array() || json["choices"].empty()) return;
    const Json& choice = json["choices"][0];
    const bool has_text = choice.contains("text") && choice["text"].is_string() && choice["text"] != "";
    const bool ends = choice.contains("finish_reason") && !choice["finish_reason"].is_null();
    times_.ended_s = now_s;
    // Some servers end with an event of its own, which is no token: it ends the answer, and no gap is counted for it.
    if (has_text || !ends || times_.token_s.empty()) times_.token_s.push_back(now_s);
  }

  void finish() {
    if (!times_.error.empty()) return;
    if (!done_) return set_error("the stream ended without [DONE]");
    if (times_.token_s.empty()) return set_error("the stream brought no token");
    if (!has_usage_) return set_error("the stream brought no usage, so its tokens cannot be counted (stream_options.include_usage)");
    if (times_.output_tokens < 1) return set_error("the usage counts no output token");
  }

 private:
  void set_error(std::string text) {
    if (times_.error.empty()) times_.error = std::move(text);
  }

  RequestTimes& times_;
  bool done_ = false, has_usage_ = false;
};

class Load {
 public:
  Load(const ServerAddress& address, const LoadPlan& plan, const std::function<void()>& on_end)
      : address_(address), plan_(plan), on_end_(on_end), times_(plan.bodies.size()), vacancy_(io_) {}

  std::vector<RequestTimes> run() {
    boost::system::error_code error;
    addresses_ = tcp::resolver(io_).resolve(address_.host, address_.port, error);
    if (error) fail("{}: the host is not known: {}", address_.url(), error.message());
    start_ = Clock::now();
    asio::co_spawn(io_, send_all(), rethrow);
    io_.run();
    return std::move(times_);
  }

 private:
  static void rethrow(std::exception_ptr error) {
    if (error) std::rethrow_exception(error);
  }

  double now_s() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }

  asio::awaitable<void> send_all() {
    asio::steady_timer timer(io_);
    for (std::size_t i = 0; i < times_.size(); ++i) {
      times_[i].due_s = plan_.due_s[i];
      timer.expires_at(start_ + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(plan_.due_s[i])));
      if (timer.expiry() > Clock::now()) co_await timer.async_wait(asio::use_awaitable);
      while (plan_.max_concurrency > 0 && running_ >= plan_.max_concurrency) {
        vacancy_.expires_at(Clock::time_point::max());
        boost::system::error_code woken;
        co_await vacancy_.async_wait(asio::redirect_error(asio::use_awaitable, woken));
      }
      ++running_;
      times_[i].sent_s = now_s();
      asio::co_spawn(io_, stream(i), rethrow);
    }
  }

  asio::awaitable<void> stream(std::size_t i) {
    RequestTimes& times = times_[i];
    try {
      co_await exchange(plan_.bodies[i], times);
    } catch (const boost::system::system_error& error) {
      if (times.error.empty()) times.error = reason(error.code(), plan_.request_timeout);
    } catch (const nlohmann::json::exception& error) {
      if (times.error.empty()) times.error = fmt::format("an event that is not a completion's: {}", error.what());
    }
    if (!times.error.empty()) times.ended_s = now_s();
    --running_;
    vacancy_.cancel();
    if (on_end_) on_end_();
  }

  asio::awaitable<void> exchange(const std::string& body, RequestTimes& times) {
    beast::tcp_stream connection(io_);
    connection.expires_after(plan_.request_timeout);
    co_await connection.async_connect(addresses_, asio::use_awaitable);
    connection.socket().set_option(tcp::no_delay(true));
    const auto request = request_of(address_, http::verb::post, plan_.path, body);
    co_await http::async_write(connection, request, asio::use_awaitable);

    beast::flat_buffer buffer;
    http::response_parser<http::buffer_body> parser;
    parser.body_limit(boost::none);
    parser.eager(true);
    co_await http::async_read_header(connection, buffer, parser, asio::use_awaitable);
    const auto type = parser.get()[http::field::content_type];
    const std::string content_type(type.data(), type.size());
    const bool streams = parser.get().result() == http::status::ok && content_type.starts_with("text/event-stream");
    SseReader reader;
    AnswerEvents events(times);
    std::string other;  // the body of an answer that is no stream
    std::array<char, 16384> bytes;
    while (!parser.is_done()) {
      parser.get().body() = {.data = bytes.data(), .size = bytes.size(), .more = true};
      boost::system::error_code error;
      co_await http::async_read_some(connection, buffer, parser, asio::redirect_error(asio::use_awaitable, error));
      const double now = now_s();
      if (error && error != http::error::need_buffer) throw boost::system::system_error(error);
      const std::string_view received(bytes.data(), bytes.size() - parser.get().body().size);
      if (streams) {
        for (const std::string& data : reader.push(received)) events.take(data, now);
      } else {
        other.append(received.substr(0, kMostErrorBytes - std::min(kMostErrorBytes, other.size())));
      }
    }
    if (streams) {
      events.finish();
    } else if (parser.get().result() == http::status::ok) {
      times.error = fmt::format("wanted an event stream, found {}", plain(content_type));
    } else {
      times.error = fmt::format("HTTP {}: {}", parser.get().result_int(), message_of(other));
    }
  }

  const ServerAddress& address_;
  const LoadPlan& plan_;
  const std::function<void()>& on_end_;
  std::vector<RequestTimes> times_;
  asio::io_context io_{1};
  tcp::resolver::results_type addresses_;
  asio::steady_timer vacancy_;  // cancelled when a request ends
  std::int64_t running_ = 0;
  Clock::time_point start_;
};

HttpReply ask(http::verb verb, const ServerAddress& address, std::string_view path, std::chrono::seconds timeout) {
  asio::io_context io;
  HttpReply reply{};
  const auto exchange = [&]() -> asio::awaitable<void> {
    beast::tcp_stream connection(io);
    connection.expires_after(timeout);
    const auto addresses =
        co_await tcp::resolver(io).async_resolve(address.host, address.port, asio::use_awaitable);
    co_await connection.async_connect(addresses, asio::use_awaitable);
    const auto request = request_of(address, verb, path, "");
    co_await http::async_write(connection, request, asio::use_awaitable);
    beast::flat_buffer buffer;
    http::response<http::string_body> response;
    co_await http::async_read(connection, buffer, response, asio::use_awaitable);
    reply = {static_cast<int>(response.result_int()), response.body()};
  };
  std::exception_ptr failure;
  asio::co_spawn(io, exchange(), [&](std::exception_ptr error) { failure = error; });
  io.run();
  try {
    if (failure) std::rethrow_exception(failure);
  } catch (const boost::system::system_error& error) {
    fail("{}{}: {}", address.url(), path, reason(error.code(), timeout));
  }
  return reply;
}

}  // namespace

std::string ServerAddress::authority() const {
  const bool v6 = host.find(':') != std::string::npos;
  return (v6 ? "[" + host + "]" : host) + ":" + port;
}

std::string ServerAddress::url() const { return "http://" + authority() + prefix; }

Result<ServerAddress> parse_base_url(std::string_view url) {
  const auto failure = [&](std::string_view why) {
    return Result<ServerAddress>::failure(fmt::format("wanted http://HOST[:PORT][/PATH], found '{}'{}", url, why));
  };
  std::string_view rest = url;
  if (rest.starts_with("https://")) return failure(": TLS is not supported here");
  if (!rest.starts_with("http://")) return failure("");
  rest.remove_prefix(7);
  ServerAddress address{.port = "80"};
  const std::size_t slash = std::min(rest.find('/'), rest.size());
  address.prefix = rest.substr(slash);
  while (address.prefix.ends_with('/')) address.prefix.pop_back();
  std::string_view authority = rest.substr(0, slash);
  const std::size_t colon = authority.ends_with(']') ? std::string_view::npos : authority.rfind(':');
  if (colon != std::string_view::npos) {
    address.port = authority.substr(colon + 1);
    authority = authority.substr(0, colon);
    const bool digits = !address.port.empty() && address.port.size() <= 5 &&
                        address.port.find_first_not_of("0123456789") == std::string::npos;
    if (!digits || std::stoi(address.port) < 1 || std::stoi(address.port) > 65535) return failure(": the port is none");
  }
  if (authority.starts_with('[') && authority.ends_with(']')) authority = authority.substr(1, authority.size() - 2);
  if (authority.empty()) return failure(": there is no host");
  address.host = authority;
  return address;
}

HttpReply http_get(const ServerAddress& address, std::string_view path, std::chrono::seconds timeout) { return ask(http::verb::get, address, path, timeout); }

HttpReply http_post(const ServerAddress& address, std::string_view path, std::chrono::seconds timeout) { return ask(http::verb::post, address, path, timeout); }

Json completion_body(const WorkItem& item, const CompletionSettings& settings) {
  Json body = {{"prompt", item.prompt},
               {"max_tokens", item.output_tokens},
               {"temperature", settings.temperature},
               {"stream", true},
               {"stream_options", {{"include_usage", true}}}};
  if (!settings.model.empty()) body["model"] = settings.model;
  if (settings.ignore_eos) body["ignore_eos"] = true;
  return body;
}

std::vector<RequestTimes> run_load(const ServerAddress& address, const LoadPlan& plan, const std::function<void()>& on_end) {
  check(plan.bodies.size() == plan.due_s.size(), "every request has a time");
  return Load(address, plan, on_end).run();
}

}  // namespace keel
