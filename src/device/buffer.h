// Owned, uninitialised, aligned memory for arrays of plain values. Everything else that points at memory is a view.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>
#include <utility>

namespace keel {

// 64-byte aligned; past 4 MiB on huge pages where the kernel gives them. Throws OutOfMemory when it is short.
void* allocate_aligned(std::size_t bytes, const char* what);
void free_aligned(void* memory, std::size_t bytes);

template <class T>
class Buffer {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  Buffer() = default;
  Buffer(std::size_t size, const char* what)
      : data_(static_cast<T*>(allocate_aligned(size * sizeof(T), what))), size_(size) {}
  Buffer(Buffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  Buffer& operator=(Buffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }
  ~Buffer() { free_aligned(data_, size_ * sizeof(T)); }

  T* data() { return data_; }
  const T* data() const { return data_; }
  std::size_t size() const { return size_; }
  std::int64_t bytes() const { return static_cast<std::int64_t>(size_ * sizeof(T)); }
  T& operator[](std::size_t i) { return data_[i]; }
  const T& operator[](std::size_t i) const { return data_[i]; }
  std::span<T> span() { return {data_, size_}; }

 private:
  T* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace keel
