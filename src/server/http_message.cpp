#include "server/http_message.h"

#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/http/empty_body.hpp>

#include <boost/beast/http/write.hpp>
#include <sstream>

#include "base/error.h"
#include "server/sse.h"

namespace keel {
namespace {

std::string header_text(http::response<http::empty_body>& header) {
  std::ostringstream text;
  text << header.base();
  return text.str();
}

}  // namespace

HttpResponse json_response(const Json& json, unsigned status) { return {.status = status, .body = to_text(json)}; }

HttpResponse error_response(const ApiError& error) {
  HttpResponse response = json_response(error_json(error), error.status);
  if (error.status == 429 || error.status == 503) response.headers.emplace_back(http::field::retry_after, "1");
  if (error.status == 401) response.headers.emplace_back(http::field::www_authenticate, "Bearer");
  return response;
}

Reply::Reply(Connection connection, const HttpHeader& request, bool keep_alive)
    : connection_(std::move(connection)),
      version_(request.version() >= 11 ? 11 : 10),
      head_only_(request.method() == http::verb::head),
      keep_alive_(keep_alive) {}

asio::awaitable<void> Reply::write(std::string_view bytes) {
  // Most writes fit the socket's buffer, and then nothing need wait.
  boost::system::error_code error;
  bytes.remove_prefix(connection_.socket.write_some(asio::buffer(bytes.data(), bytes.size()), error));
  if (bytes.empty()) co_return;
  connection_.deadline = std::chrono::steady_clock::now() + connection_.write_patience;
  co_await asio::async_write(connection_.socket, asio::buffer(bytes.data(), bytes.size()), asio::use_awaitable);
  connection_.deadline = std::chrono::steady_clock::time_point::max();
}

asio::awaitable<void> Reply::send(HttpResponse response) {
  check(!begun(), "a request is answered once");
  status_ = response.status;
  http::response<http::empty_body> header(static_cast<http::status>(response.status), version_);
  header.set(http::field::server, "keel");
  if (!response.content_type.empty()) header.set(http::field::content_type, response.content_type);
  for (const auto& [name, value] : response.headers) header.set(name, value);
  header.content_length(response.body.size());
  header.keep_alive(keep_alive_);
  std::string bytes = header_text(header);
  if (!head_only_) bytes += response.body;
  co_await write(bytes);
}

asio::awaitable<void> Reply::begin_events() {
  check(!begun(), "a request is answered once");
  status_ = 200;
  if (version_ < 11) keep_alive_ = false;  // without chunks, only the connection's end marks the body's
  http::response<http::empty_body> header(http::status::ok, version_);
  header.set(http::field::server, "keel");
  header.set(http::field::content_type, "text/event-stream; charset=utf-8");
  header.set(http::field::cache_control, "no-cache");
  header.set("X-Accel-Buffering", "no");  // nginx would gather events otherwise
  if (version_ >= 11) header.chunked(true);
  header.keep_alive(keep_alive_);
  const std::string bytes = header_text(header);
  co_await write(bytes);
}

asio::awaitable<void> Reply::write_events(std::string_view events) {
  if (events.empty()) co_return;
  const std::string bytes = version_ >= 11 ? http_chunk(events) : std::string(events);
  co_await write(bytes);
}

asio::awaitable<void> Reply::end_events() {
  if (version_ < 11) co_return;
  co_await write("0\r\n\r\n");
}

}  // namespace keel
