#include "http_client.h"

#include <fmt/format.h>
#include <sys/socket.h>

#include <algorithm>
#include <stdexcept>

namespace keel {

namespace asio = boost::asio;

HttpClient::HttpClient(std::uint16_t port, int receive_buffer_bytes) : socket_(io_) {
  socket_.open(asio::ip::tcp::v4());
  if (receive_buffer_bytes > 0) socket_.set_option(asio::socket_base::receive_buffer_size(receive_buffer_bytes));
  const timeval patience{.tv_sec = 60, .tv_usec = 0};
  setsockopt(socket_.native_handle(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  setsockopt(socket_.native_handle(), SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
  socket_.connect({asio::ip::make_address("127.0.0.1"), port});
}

void HttpClient::send(std::string_view bytes) { asio::write(socket_, asio::buffer(bytes.data(), bytes.size())); }

void HttpClient::request(std::string_view method,
                         std::string_view path,
                         std::string_view body,
                         std::string_view more_headers,
                         std::string_view version) {
  std::string text = fmt::format("{} {} {}\r\nHost: test\r\n{}", method, path, version, more_headers);
  if (!body.empty()) text += fmt::format("Content-Type: application/json\r\nContent-Length: {}\r\n", body.size());
  send(text + "\r\n" + std::string(body));
}

std::string HttpClient::bytes(std::size_t count) {
  while (buffer_.size() < count) {
    char more[4096];
    const ssize_t got = recv(socket_.native_handle(), more, sizeof more, 0);
    if (got < 0) throw std::runtime_error("no answer: timed out or reset");
    if (got == 0) throw std::runtime_error("the server closed early");
    buffer_.append(more, static_cast<std::size_t>(got));
  }
  std::string result = buffer_.substr(0, count);
  buffer_.erase(0, count);
  return result;
}

std::string HttpClient::line() {
  std::string result;
  while (!result.ends_with("\r\n")) result += bytes(1);
  result.resize(result.size() - 2);
  return result;
}

HttpAnswer HttpClient::head() {
  HttpAnswer answer;
  const std::string status = line();
  answer.status = std::stoi(status.substr(status.find(' ') + 1));
  for (std::string header = line(); !header.empty(); header = line()) {
    const auto colon = header.find(": ");
    std::string name = header.substr(0, colon);
    std::ranges::transform(name, name.begin(), [](unsigned char c) { return std::tolower(c); });
    answer.headers[name] = header.substr(colon + 2);
  }
  chunked_ = answer.headers.contains("transfer-encoding");
  body_ended_ = false;
  events_.clear();
  return answer;
}

std::string HttpClient::read_chunk() {
  const std::size_t size = std::stoul(line(), nullptr, 16);
  std::string chunk = bytes(size);
  line();
  return chunk;
}

HttpAnswer HttpClient::answer() {
  HttpAnswer answer = head();
  if (chunked_) {
    for (std::string chunk = read_chunk(); !chunk.empty(); chunk = read_chunk()) answer.body += chunk;
  } else if (answer.headers.contains("content-length")) {
    answer.body = bytes(std::stoul(answer.headers["content-length"]));
  }
  return answer;
}

bool HttpClient::more_events() {
  if (chunked_) {
    const std::string chunk = read_chunk();
    body_ended_ = chunk.empty();
    events_ += chunk;
  } else {
    try {
      events_ += bytes(1);
    } catch (const std::runtime_error&) {
      body_ended_ = true;  // HTTP/1.0: the connection's end is the body's
    }
  }
  return !body_ended_;
}

std::optional<std::string> HttpClient::event() {
  std::size_t end;
  while ((end = events_.find("\n\n")) == std::string::npos) {
    if (body_ended_ || !more_events()) return std::nullopt;
  }
  std::string event = events_.substr(0, end);
  events_.erase(0, end + 2);
  return event;
}

bool HttpClient::closed() {
  char byte;
  while (true) {
    const ssize_t got = recv(socket_.native_handle(), &byte, 1, 0);
    if (got == 0 || (got < 0 && errno == ECONNRESET)) return true;
    if (got < 0) return false;
  }
}

void HttpClient::reset() {
  socket_.set_option(asio::socket_base::linger(true, 0));
  socket_.close();
}

HttpAnswer ask(std::uint16_t port,
               std::string_view method,
               std::string_view path,
               std::string_view body,
               std::string_view more_headers) {
  HttpClient client(port);
  client.request(method, path, body, more_headers);
  return client.answer();
}

}  // namespace keel
