#include "server/http_server.h"

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <cerrno>

#include "base/error.h"
#include "base/log.h"

namespace keel {

using asio::ip::tcp;

HttpServer::HttpServer(asio::io_context& io, const Router& router, HttpLimits limits, Observer observer)
    : io_(io), router_(router), limits_(limits), observer_(std::move(observer)), acceptor_(io), sweep_(io) {}

HttpServer::~HttpServer() = default;

void HttpServer::listen(const std::string& host, std::uint16_t port) {
  boost::system::error_code error;
  tcp::resolver resolver(io_);
  const auto found = resolver.resolve(host, std::to_string(port), tcp::resolver::passive, error);
  if (error || found.empty()) fail("--host {}: not an address of this machine ({})", host, error.message());
  const tcp::endpoint endpoint = found.begin()->endpoint();
  acceptor_.open(endpoint.protocol(), error);
  if (!error) acceptor_.set_option(tcp::acceptor::reuse_address(true), error);
  if (!error) acceptor_.bind(endpoint, error);
  if (!error) acceptor_.listen(asio::socket_base::max_listen_connections, error);
  if (error == asio::error::address_in_use) {
    fail("port {} on {} is in use by another program: stop it or choose another with --port", port, host);
  }
  if (error) fail("cannot listen on {} port {}: {}", host, port, error.message());
  port_ = acceptor_.local_endpoint().port();
  asio::co_spawn(io_, accept(), asio::detached);
  asio::co_spawn(io_, close_overdue(), asio::detached);
}

asio::awaitable<void> HttpServer::accept() {
  bool told = false;
  while (acceptor_.is_open()) {
    boost::system::error_code error;
    tcp::socket socket = co_await acceptor_.async_accept(asio::redirect_error(asio::use_awaitable, error));
    if (error == asio::error::operation_aborted || !acceptor_.is_open()) co_return;
    if (error) {  // most likely no file descriptor is free: wait for connections to end
      if (!std::exchange(told, true)) log_warning("cannot accept connections, they wait: {}", error.message());
      asio::steady_timer pause(io_, std::chrono::milliseconds(100));
      co_await pause.async_wait(asio::redirect_error(asio::use_awaitable, error));
      continue;
    }
    told = false;
    socket.set_option(tcp::no_delay(true), error);
    socket.non_blocking(true, error);
    socket.set_option(asio::socket_base::send_buffer_size(limits_.send_buffer_bytes), error);
    const auto session = std::make_shared<HttpSession>(*this, std::move(socket));
    sessions_.insert(session.get());
    session->start();
  }
}

asio::awaitable<void> HttpServer::close_overdue() {
  while (true) {
    boost::system::error_code error;
    sweep_.expires_after(std::chrono::seconds(1));
    co_await sweep_.async_wait(asio::redirect_error(asio::use_awaitable, error));
    if (error) co_return;
    const auto now = std::chrono::steady_clock::now();
    for (HttpSession* session : sessions_) {
      if (session->overdue(now)) session->close();
    }
  }
}

void HttpServer::drain(std::function<void()> drained) {
  draining_ = true;
  drained_ = std::move(drained);
  boost::system::error_code ignored;
  acceptor_.close(ignored);
  for (HttpSession* session : sessions_) {
    if (session->idle()) session->close();
  }
  ended(nullptr);
}

void HttpServer::close_all() {
  for (HttpSession* session : sessions_) session->close();
}

void HttpServer::ended(HttpSession* session) {
  sessions_.erase(session);
  if (draining_ && sessions_.empty() && drained_) {
    sweep_.cancel();
    std::exchange(drained_, nullptr)();
  }
}

}  // namespace keel
