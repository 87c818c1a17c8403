#include "device/buffer.h"

#include <sys/mman.h>

#include <cstdlib>

#include "base/bytes.h"
#include "base/error.h"

namespace keel {
namespace {

constexpr std::size_t kHugePage = std::size_t{2} << 20;

bool on_huge_pages(std::size_t bytes) { return bytes >= 2 * kHugePage; }

}  // namespace

void* allocate_aligned(std::size_t bytes, const char* what) {
  if (bytes == 0) return nullptr;
  const std::size_t alignment = on_huge_pages(bytes) ? kHugePage : 64;
  const std::size_t rounded = (bytes + alignment - 1) / alignment * alignment;
  void* memory = rounded < bytes ? nullptr : std::aligned_alloc(alignment, rounded);
  if (memory == nullptr) {
    throw OutOfMemory(fmt::format("out of memory: {} wants {}", what, format_bytes(static_cast<std::int64_t>(bytes))));
  }
  if (on_huge_pages(bytes)) madvise(memory, rounded, MADV_HUGEPAGE);  // a wish; refusal costs only speed
  return memory;
}

void free_aligned(void* memory, std::size_t) { std::free(memory); }

}  // namespace keel
