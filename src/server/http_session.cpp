#include <boost/asio/co_spawn.hpp>
#include <boost/asio/experimental/awaitable_operators.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/string.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/read.hpp>

#include "base/log.h"
#include "server/http_server.h"

namespace keel {
namespace {

// What a client may send ahead while its request is being answered; past it nothing more is read until the answer ends.
constexpr std::size_t kMaxPipelinedBytes = 64 << 10;

ApiError parse_failure(const boost::system::error_code& error, const HttpLimits& limits) {
  if (error == http::error::body_limit) {
    return {413, fmt::format("the body is larger than the {} bytes of --max-body-bytes", limits.body_bytes)};
  }
  if (error == http::error::header_limit) {
    return {431, fmt::format("the header is larger than {} bytes", limits.header_bytes)};
  }
  return {400, "not a valid HTTP request: " + error.message()};
}

bool is_http_error(const boost::system::error_code& error) {
  return error.category() == http::make_error_code(http::error::bad_version).category() &&
         error != http::error::end_of_stream && error != http::error::partial_message;
}

ApiError handler_failure(const HttpRoute& route, const std::exception& error) {
  log_warning("{} failed: {}", route.path, error.what());
  return {500, "the server failed: " + std::string(error.what())};
}

}  // namespace

HttpSession::HttpSession(HttpServer& server, asio::ip::tcp::socket socket)
    : server_(server), socket_(std::move(socket)), never_(socket_.get_executor()) {}

void HttpSession::start() {
  asio::co_spawn(socket_.get_executor(), run(), [self = shared_from_this()](std::exception_ptr) {
    // An exception here is the client's going away in the middle of something; there is no one left to tell.
    self->close();
    self->server_.ended(self.get());
  });
}

void HttpSession::close() {
  boost::system::error_code ignored;
  socket_.shutdown(asio::socket_base::shutdown_both, ignored);
  socket_.close(ignored);
}

void HttpSession::patience(std::chrono::milliseconds time) { deadline_ = std::chrono::steady_clock::now() + time; }

Reply::Connection HttpSession::connection() {
  return {.socket = socket_,
          .deadline = deadline_,
          .close =
              [weak = weak_from_this(), executor = socket_.get_executor()] {
                asio::post(executor, [weak] {
                  if (const auto session = weak.lock()) session->close();
                });
              },
          .write_patience = server_.limits_.write_patience};
}

asio::awaitable<void> HttpSession::run() {
  bool more = true;
  while (more) more = co_await serve_one();  // g++ 12 miscompiles co_await as the loop's condition
  co_await linger();
}

asio::awaitable<bool> HttpSession::serve_one() {
  boost::system::error_code error;
  http::request_parser<http::string_body> parser;
  parser.header_limit(static_cast<std::uint32_t>(server_.limits_.header_bytes));
  parser.body_limit(server_.limits_.body_bytes);

  idle_ = true;
  if (server_.draining_ && buffer_.size() == 0) co_return false;
  patience(server_.limits_.idle);
  co_await http::async_read_header(socket_, buffer_, parser, asio::redirect_error(asio::use_awaitable, error));
  idle_ = false;
  Router::Match match;
  if (!error) match = server_.router_.match(parser.get().base());
  const bool refused = !error && match.route == nullptr;
  if (!error && !refused && !parser.is_done()) {
    if (boost::beast::iequals(parser.get()[http::field::expect], "100-continue")) {
      constexpr std::string_view kContinue = "HTTP/1.1 100 Continue\r\n\r\n";
      co_await asio::async_write(socket_, asio::buffer(kContinue), asio::use_awaitable);
    }
    patience(server_.limits_.body_patience);
    co_await http::async_read(socket_, buffer_, parser, asio::redirect_error(asio::use_awaitable, error));
  }
  if (error && !is_http_error(error)) co_return false;

  const bool body_unread = !parser.is_done();
  const bool keep_alive = !error && parser.keep_alive() && !body_unread && !server_.draining_;
  const HttpRequest request = parser.release();
  Reply reply(connection(), request.base(), keep_alive);
  if (error) {
    co_await reply.send(error_response(parse_failure(error, server_.limits_)));
  } else if (refused) {
    co_await reply.send(std::move(match.refusal));
  } else {
    deadline_ = std::chrono::steady_clock::time_point::max();
    co_await answer(*match.route, request, reply);
  }
  const auto method = request.method_string();
  server_.observer_(match.route == nullptr ? std::string_view() : std::string_view(match.route->path),
                    error ? std::string_view() : std::string_view(method.data(), method.size()),
                    reply.status());
  co_return reply.keep_alive() && reply.begun() && !server_.draining_ && socket_.is_open();
}

asio::awaitable<void> HttpSession::answer(const HttpRoute& route, const HttpRequest& request, Reply& reply) {
  if (const auto* quick = std::get_if<QuickHandler>(&route.handler)) {
    HttpResponse response;
    try {
      response = (*quick)(request);
    } catch (const RequestError& error) {
      response = error_response(error.error());
    } catch (const std::exception& error) {
      response = error_response(handler_failure(route, error));
    }
    co_await reply.send(std::move(response));
    co_return;
  }
  using asio::experimental::awaitable_operators::operator||;
  const auto& waiting = std::get<WaitingHandler>(route.handler);
  std::optional<ApiError> failure;
  const auto guarded = [&]() -> asio::awaitable<void> {
    try {
      co_await waiting(request, reply);
    } catch (const RequestError& error) {
      failure = error.error();
    } catch (const boost::system::system_error&) {
      // The client is gone: what the handler held is released by now.
    } catch (const std::exception& error) {
      failure = handler_failure(route, error);
    }
  };
  asio::awaitable<void> handling = guarded();
  asio::awaitable<void> leaving = until_client_leaves();
  const auto first = co_await (std::move(handling) || std::move(leaving));
  if (first.index() == 1) {
    close();
    co_return;
  }
  if (!failure) co_return;
  if (!reply.begun()) {
    co_await reply.send(error_response(*failure));
  } else {
    close();  // in the middle of a body: only the missing end can say so
  }
}

asio::awaitable<void> HttpSession::until_client_leaves() {
  boost::system::error_code error;
  while (buffer_.size() < kMaxPipelinedBytes) {
    const auto space = buffer_.prepare(4096);
    const std::size_t received =
        co_await socket_.async_read_some(space, asio::redirect_error(asio::use_awaitable, error));
    buffer_.commit(received);
    if (error) co_return;
  }
  never_.expires_at(std::chrono::steady_clock::time_point::max());
  co_await never_.async_wait(asio::redirect_error(asio::use_awaitable, error));
}

// Lets the client read the answer before the connection goes: closing with bytes unread would reset it.
asio::awaitable<void> HttpSession::linger() {
  boost::system::error_code error;
  socket_.shutdown(asio::socket_base::shutdown_send, error);
  if (error) co_return;
  idle_ = true;
  patience(std::chrono::seconds(2));
  std::vector<char> discarded(16 << 10);
  for (std::size_t total = 0; total < (4u << 20) && !error;) {
    total += co_await socket_.async_read_some(asio::buffer(discarded),
                                              asio::redirect_error(asio::use_awaitable, error));
  }
}

}  // namespace keel
