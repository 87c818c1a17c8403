// Which handler answers which path, and who may ask.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "server/http_message.h"

namespace keel {

// Answered at once, on the connections' thread.
using QuickHandler = std::function<HttpResponse(const HttpRequest&)>;
// May wait; ended (see Reply) when the client goes.
using WaitingHandler = std::function<asio::awaitable<void>(const HttpRequest&, Reply&)>;

struct HttpRoute {
  http::verb method;
  std::string path;  // ends in "/*": any one segment there
  std::variant<QuickHandler, WaitingHandler> handler;
  bool open = false;  // needs no key
};

class Router {
 public:
  explicit Router(std::vector<std::string> api_keys) : api_keys_(std::move(api_keys)) {}
  void add(HttpRoute route) { routes_.push_back(std::move(route)); }

  struct Match {
    const HttpRoute* route = nullptr;  // null: `refusal` is the answer
    HttpResponse refusal;
  };
  // Looks at the header alone, so that a refused request's body is never read.
  Match match(const HttpHeader& header) const;

 private:
  bool authorized(const HttpHeader& header) const;

  std::vector<HttpRoute> routes_;
  std::vector<std::string> api_keys_;
};

// Takes as long for a wrong key as for the right one of the same length.
bool equal_in_constant_time(std::string_view a, std::string_view b);

std::string_view path_of(const HttpHeader& header);  // the target without its query

}  // namespace keel
