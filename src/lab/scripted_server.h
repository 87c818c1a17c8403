#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/read_until.hpp>
#include <boost/asio/write.hpp>
#include <string>
#include <thread>
#include <vector>

#include "lab/openai_load.h"

namespace keel {

// For tests of clients: answers each connection with the next script, piece by piece, and closes. After the last one it is gone.
class ScriptedServer {
 public:
  explicit ScriptedServer(std::vector<std::vector<std::string>> scripts)
      : acceptor_(io_, {boost::asio::ip::make_address("127.0.0.1"), 0}), port_(std::to_string(acceptor_.local_endpoint().port())), thread_([this, scripts = std::move(scripts)] {
          for (const auto& script : scripts) answer(script);
          acceptor_.close();
        }) {}
  ~ScriptedServer() { thread_.join(); }

  ServerAddress address() const { return {.host = "127.0.0.1", .port = port_}; }
  std::string request;  // the last, once it was answered

 private:
  void answer(const std::vector<std::string>& script) {
    boost::asio::ip::tcp::socket socket(io_);
    acceptor_.accept(socket);
    boost::system::error_code ignored;
    std::string head;
    const std::size_t head_bytes = boost::asio::read_until(socket, boost::asio::dynamic_buffer(head), "\r\n\r\n");
    if (const auto at = head.find("Content-Length: "); at != std::string::npos) {
      const std::size_t whole = head_bytes + std::stoul(head.substr(at + 16));
      boost::asio::read(socket, boost::asio::dynamic_buffer(head), boost::asio::transfer_exactly(whole - std::min(whole, head.size())), ignored);
    }
    request = head;
    for (const std::string& piece : script) {
      if (piece == "wait") {  // until the client gives up
        char byte;
        socket.read_some(boost::asio::buffer(&byte, 1), ignored);
        return;
      }
      boost::asio::write(socket, boost::asio::buffer(piece), ignored);
    }
  }

  boost::asio::io_context io_;
  boost::asio::ip::tcp::acceptor acceptor_;
  std::string port_;
  std::thread thread_;
};

inline const std::string kStreamHead = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nConnection: close\r\n\r\n";
inline const std::string kToken = "data: {\"choices\":[{\"text\":\"a\",\"finish_reason\":null}]}\n\n";
inline const std::string kLast = "data: {\"choices\":[{\"text\":\"\",\"finish_reason\":\"length\"}]}\n\n";
inline const std::string kUsage = "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":4,\"completion_tokens\":3}}\n\n";
inline const std::string kDone = "data: [DONE]\n\n";

}  // namespace keel
