#include "server/router.h"

#include <gtest/gtest.h>

#include "server/sse.h"

namespace keel {
namespace {

HttpHeader header(http::verb method, std::string_view target, std::string_view authorization = "") {
  HttpHeader result;
  result.method(method);
  result.target({target.data(), target.size()});
  if (!authorization.empty()) {
    result.set(http::field::authorization, {authorization.data(), authorization.size()});
  }
  return result;
}

Router router(std::vector<std::string> keys = {}) {
  Router result(std::move(keys));
  const QuickHandler nothing = [](const HttpRequest&) { return HttpResponse(); };
  result.add({http::verb::get, "/health", nothing, true});
  result.add({http::verb::post, "/v1/completions", nothing});
  result.add({http::verb::get, "/v1/models/*", nothing});
  return result;
}

TEST(Router, FindsByMethodAndPathWithoutTheQuery) {
  const Router routes = router();
  EXPECT_EQ(routes.match(header(http::verb::post, "/v1/completions?x=1")).route->path, "/v1/completions");
  EXPECT_EQ(routes.match(header(http::verb::head, "/health")).route->path, "/health");
  EXPECT_EQ(routes.match(header(http::verb::get, "/v1/models/a/b")).route->path, "/v1/models/*");
}

TEST(Router, SaysNotFoundAndNotAllowed) {
  const Router routes = router();
  EXPECT_EQ(routes.match(header(http::verb::get, "/nowhere")).refusal.status, 404u);
  EXPECT_EQ(routes.match(header(http::verb::get, "/v1/models/")).refusal.status, 404u);
  const HttpResponse refusal = routes.match(header(http::verb::get, "/v1/completions")).refusal;
  EXPECT_EQ(refusal.status, 405u);
  ASSERT_EQ(refusal.headers.size(), 1u);
  EXPECT_EQ(refusal.headers[0].second, "POST");
}

TEST(Router, WantsAKeyExceptWhereItIsOpen) {
  const Router routes = router({"first", "second"});
  for (const char* wrong : {"", "Bearer ", "Bearer firs", "Bearer firstx", "first", "Basic first", "Bearer  first"}) {
    EXPECT_EQ(routes.match(header(http::verb::post, "/v1/completions", wrong)).refusal.status, 401u) << wrong;
  }
  for (const char* right : {"Bearer first", "bearer second"}) {
    EXPECT_NE(routes.match(header(http::verb::post, "/v1/completions", right)).route, nullptr) << right;
  }
  EXPECT_NE(routes.match(header(http::verb::get, "/health")).route, nullptr);
  EXPECT_EQ(routes.match(header(http::verb::get, "/nowhere")).refusal.status, 401u);
}

TEST(Router, ComparesKeysWhole) {
  EXPECT_TRUE(equal_in_constant_time("", ""));
  EXPECT_TRUE(equal_in_constant_time("key", "key"));
  EXPECT_FALSE(equal_in_constant_time("key", "kez"));
  EXPECT_FALSE(equal_in_constant_time("key", "keyy"));
}

TEST(Sse, FramesOneLineAnEvent) {
  std::string events;
  append_event(events, "{\"a\":\"x\\ny\"}");
  append_event(events, "2");
  EXPECT_EQ(events, "data: {\"a\":\"x\\ny\"}\n\ndata: 2\n\n");
  EXPECT_EQ(to_text(Json("x\ny")), "\"x\\ny\"");  // JSON text never holds a raw newline
}

TEST(Sse, ChunksSayTheirLengthInHex) {
  EXPECT_EQ(http_chunk(std::string(26, 'x')), "1a\r\n" + std::string(26, 'x') + "\r\n");
}

}  // namespace
}  // namespace keel
