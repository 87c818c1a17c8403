// What a handler reads and writes.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/beast/http/message.hpp>
#include <boost/beast/http/string_body.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/openai/errors.h"

namespace keel {

namespace asio = boost::asio;
namespace http = boost::beast::http;

using HttpRequest = http::request<http::string_body>;
using HttpHeader = http::request_header<>;

struct HttpResponse {
  unsigned status = 200;
  std::string body;
  std::string content_type = "application/json";
  std::vector<std::pair<http::field, std::string>> headers;
};

HttpResponse json_response(const Json& json, unsigned status = 200);
HttpResponse error_response(const ApiError& error);  // with Retry-After where waiting helps

// The answering side of one request: send() once, or begin_events(), write_events() …, end_events(). A client that is
// gone shows as an exception (boost::system::system_error), which the session swallows: it ends the handler wherever
// it waits, and what the handler holds is released by destructors.
class Reply {
 public:
  struct Connection {
    asio::ip::tcp::socket& socket;
    std::chrono::steady_clock::time_point& deadline;  // past it the connection is closed
    std::function<void()> close;                      // any thread; closes at once
    std::chrono::milliseconds write_patience;
  };

  Reply(Connection connection, const HttpHeader& request, bool keep_alive);

  asio::awaitable<void> send(HttpResponse response);
  asio::awaitable<void> begin_events();
  asio::awaitable<void> write_events(std::string_view events);
  asio::awaitable<void> end_events();

  bool begun() const { return status_ != 0; }
  unsigned status() const { return status_; }  // sent; 0 = nothing yet
  bool keep_alive() const { return keep_alive_; }
  const std::function<void()>& close() const { return connection_.close; }

 private:
  asio::awaitable<void> write(std::string_view bytes);

  Connection connection_;
  unsigned version_;   // 10 or 11
  bool head_only_;     // HEAD: no body
  bool keep_alive_;
  unsigned status_ = 0;
};

}  // namespace keel
