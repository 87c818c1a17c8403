#include "server/router.h"

#include <fmt/format.h>

#include <boost/beast/core/string.hpp>

namespace keel {
namespace {

bool path_matches(std::string_view pattern, std::string_view path) {
  if (!pattern.ends_with("/*")) return pattern == path;
  pattern.remove_suffix(1);
  return path.size() > pattern.size() && path.starts_with(pattern);
}

std::string_view view(boost::beast::string_view text) { return {text.data(), text.size()}; }

}  // namespace

bool equal_in_constant_time(std::string_view a, std::string_view b) {
  if (a.size() != b.size()) return false;
  unsigned difference = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    difference |= static_cast<unsigned char>(a[i]) ^ static_cast<unsigned char>(b[i]);
  }
  return difference == 0;
}

std::string_view path_of(const HttpHeader& header) {
  const std::string_view target = view(header.target());
  return target.substr(0, target.find_first_of("?#"));
}

bool Router::authorized(const HttpHeader& header) const {
  if (api_keys_.empty()) return true;
  constexpr std::string_view kScheme = "bearer ";
  std::string_view value = view(header[http::field::authorization]);
  if (value.size() < kScheme.size() ||
      !boost::beast::iequals({value.data(), kScheme.size()}, {kScheme.data(), kScheme.size()})) {
    return false;
  }
  value.remove_prefix(kScheme.size());
  bool found = false;
  for (const std::string& key : api_keys_) found |= equal_in_constant_time(key, value);
  return found;
}

Router::Match Router::match(const HttpHeader& header) const {
  const std::string_view path = path_of(header);
  const http::verb asked = header.method() == http::verb::head ? http::verb::get : header.method();
  const HttpRoute* same_path = nullptr;
  const HttpRoute* route = nullptr;
  for (const HttpRoute& candidate : routes_) {
    if (!path_matches(candidate.path, path)) continue;
    same_path = &candidate;
    if (candidate.method == asked) route = &candidate;
  }
  if (!(same_path != nullptr && same_path->open) && !authorized(header)) {
    return {.refusal = error_response({401, "this server wants an API key: Authorization: Bearer KEY", "",
                                       "invalid_api_key"})};
  }
  if (same_path == nullptr) {
    return {.refusal = error_response({404, fmt::format("no such path: {}", path.substr(0, 200))})};
  }
  if (route == nullptr) {
    const std::string_view allowed = view(http::to_string(same_path->method));
    HttpResponse refusal = error_response(
        {405, fmt::format("{} takes {}, found {}", same_path->path, allowed, view(header.method_string()))});
    refusal.headers.emplace_back(http::field::allow, allowed);
    return {.refusal = std::move(refusal)};
  }
  return {.route = route};
}

}  // namespace keel
