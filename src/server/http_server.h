// Listener and connections, all on one thread: the io_context's.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <functional>
#include <memory>
#include <string>
#include <unordered_set>

#include "server/router.h"

namespace keel {

struct HttpLimits {
  std::size_t header_bytes = 32 << 10;
  std::size_t body_bytes = 16 << 20;
  std::chrono::milliseconds idle{75'000};            // between requests, and for a header to arrive
  std::chrono::milliseconds body_patience{120'000};  // for a body to arrive
  std::chrono::milliseconds write_patience{120'000};  // for a client to take one write
  int send_buffer_bytes = 64 << 10;  // the kernel's, per connection: bounds what a client that never reads holds
};

class HttpSession;

// Thread rule: everything but the constructor on the io_context's thread.
class HttpServer {
 public:
  // Called after each answer: route's path ("" = none matched), method, status.
  using Observer = std::function<void(std::string_view path, std::string_view method, unsigned status)>;

  HttpServer(asio::io_context& io, const Router& router, HttpLimits limits, Observer observer);
  ~HttpServer();

  void listen(const std::string& host, std::uint16_t port);  // throws Error
  std::uint16_t port() const { return port_; }

  // No new connections; idle ones close, busy ones close after their answer; `drained` is called when none is left.
  void drain(std::function<void()> drained);
  bool draining() const { return draining_; }
  void close_all();  // now

 private:
  friend class HttpSession;
  asio::awaitable<void> accept();
  asio::awaitable<void> close_overdue();
  void ended(HttpSession* session);

  asio::io_context& io_;
  const Router& router_;
  HttpLimits limits_;
  Observer observer_;
  asio::ip::tcp::acceptor acceptor_;
  asio::steady_timer sweep_;
  std::uint16_t port_ = 0;
  bool draining_ = false;
  std::function<void()> drained_;
  std::unordered_set<HttpSession*> sessions_;
};

// One connection: requests one after another until it closes.
class HttpSession : public std::enable_shared_from_this<HttpSession> {
 public:
  HttpSession(HttpServer& server, asio::ip::tcp::socket socket);

  void start();
  void close();
  bool idle() const { return idle_; }
  bool overdue(std::chrono::steady_clock::time_point now) const { return now > deadline_; }

 private:
  asio::awaitable<void> run();
  asio::awaitable<bool> serve_one();  // false: the connection ends
  asio::awaitable<void> answer(const HttpRoute& route, const HttpRequest& request, Reply& reply);
  asio::awaitable<void> until_client_leaves();
  asio::awaitable<void> linger();
  void patience(std::chrono::milliseconds time);
  Reply::Connection connection();

  HttpServer& server_;
  asio::ip::tcp::socket socket_;
  boost::beast::flat_buffer buffer_;  // received, not yet parsed
  asio::steady_timer never_;
  std::chrono::steady_clock::time_point deadline_;
  bool idle_ = true;  // waiting for a request
};

}  // namespace keel
