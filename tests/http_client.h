// A plain blocking HTTP client for the tests, raw enough to misbehave.
#pragma once

#include <boost/asio/connect.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/read_until.hpp>
#include <boost/asio/write.hpp>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

namespace keel {

struct HttpAnswer {
  int status = 0;
  std::map<std::string, std::string> headers;  // names in lower case
  std::string body;
  nlohmann::json json() const { return nlohmann::json::parse(body); }
};

// Every wait ends after 60 s with an exception, so that a server that hangs fails the test.
class HttpClient {
 public:
  explicit HttpClient(std::uint16_t port, int receive_buffer_bytes = 0);

  void send(std::string_view bytes);
  void request(std::string_view method,
               std::string_view path,
               std::string_view body = "",
               std::string_view more_headers = "",
               std::string_view version = "HTTP/1.1");

  HttpAnswer answer();  // reads one whole answer
  HttpAnswer head();    // reads an answer's header; then event() reads its events
  std::optional<std::string> event();  // "data: …" or a comment, as one block; nothing at the end of the body
  bool closed();        // waits for the server to close
  void close() { socket_.close(); }
  void close_sending() { socket_.shutdown(boost::asio::socket_base::shutdown_send); }
  void reset();         // closes without a farewell (RST)

 private:
  std::string line();
  std::string bytes(std::size_t count);
  bool more_events();
  std::string read_chunk();

  boost::asio::io_context io_;
  boost::asio::ip::tcp::socket socket_;
  std::string buffer_;  // received, not yet used
  std::string events_;  // body received, not yet given
  bool chunked_ = false;
  bool body_ended_ = false;
};

// One request on its own connection.
HttpAnswer ask(std::uint16_t port,
               std::string_view method,
               std::string_view path,
               std::string_view body = "",
               std::string_view more_headers = "");

}  // namespace keel
