#include "base/error.h"

#include <cstdio>
#include <cstdlib>

namespace keel {

void check_failed(const char* what, const char* file, int line) {
  std::fprintf(stderr, "keel: internal error: %s (%s:%d)\n", what, file, line);
  std::abort();
}

}  // namespace keel
