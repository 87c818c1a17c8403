#include "base/error.h"

#include <cstdio>
#include <cstdlib>

namespace keel {

void check_failed(const char* what, std::source_location where) {
  std::fprintf(stderr, "keel: internal error: %s (%s:%u)\n", what, where.file_name(),
               static_cast<unsigned>(where.line()));
  std::abort();
}

}  // namespace keel
