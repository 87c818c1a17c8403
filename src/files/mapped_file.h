// A file mapped for reading. The file must not be truncated while it is mapped.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>

namespace keel {

class MappedFile {
 public:
  explicit MappedFile(const std::filesystem::path& path);  // throws Error naming the file
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::span<const std::byte> bytes() const { return {data_, size_}; }

 private:
  std::filesystem::path path_;
  const std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

// Reads mapped pages in now rather than at their first use. Throws Error where the file no longer reaches so far; where
// the kernel knows no such call it is only a hint.
void bring_into_memory(std::span<const std::byte> mapped);

}  // namespace keel
