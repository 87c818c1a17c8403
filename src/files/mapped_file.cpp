#include "files/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <utility>

#include "base/error.h"

namespace keel {
namespace {

class Descriptor {
 public:
  explicit Descriptor(const std::filesystem::path& path)
      : value_(::open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
    if (value_ < 0) fail("{}: cannot open: {}", path.string(), std::strerror(errno));
  }
  ~Descriptor() { ::close(value_); }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int value() const { return value_; }

 private:
  int value_;
};

}  // namespace

MappedFile::MappedFile(const std::filesystem::path& path) : path_(path) {
  const Descriptor descriptor(path);
  struct stat status {};
  if (::fstat(descriptor.value(), &status) != 0) {
    fail("{}: cannot read its size: {}", path.string(), std::strerror(errno));
  }
  if (!S_ISREG(status.st_mode))
    fail("{}: wanted a regular file, found something else", path.string());
  const auto size = static_cast<std::size_t>(status.st_size);
  if (size == 0) return;  // nothing to map; an empty span
  void* memory = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, descriptor.value(), 0);
  if (memory == MAP_FAILED)
    fail("{}: cannot map {} bytes: {}", path.string(), size, std::strerror(errno));
  data_ = static_cast<const std::byte*>(memory);
  size_ = size;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)) {}

void bring_into_memory(std::span<const std::byte> mapped) {
  if (mapped.empty()) return;
  const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto address = reinterpret_cast<std::uintptr_t>(mapped.data());
  const std::uintptr_t first = address / page * page;
  void* start = reinterpret_cast<void*>(first);
  const std::size_t size = address - first + mapped.size();
  if (::madvise(start, size, MADV_POPULATE_READ) == 0) return;
  if (errno == EFAULT || errno == EHWPOISON)
    fail("a mapped file became shorter or unreadable: {}", std::strerror(errno));
  ::madvise(start, size, MADV_WILLNEED);
}

}  // namespace keel
