#include "server/sse.h"

#include <fmt/format.h>

#include "base/error.h"

namespace keel {

std::string http_chunk(std::string_view data) {
  check(!data.empty(), "an HTTP chunk holds something");
  return fmt::format("{:x}\r\n{}\r\n", data.size(), data);
}

}  // namespace keel
