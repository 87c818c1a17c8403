// For tests: a folder that vanishes, and model files made of a few lines.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"

namespace keel::testing {

class TempFolder {
 public:
  TempFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "keel-test-XXXXXX").string();
    check(::mkdtemp(pattern.data()) != nullptr, "a temporary folder");
    path_ = pattern;
  }
  ~TempFolder() { std::filesystem::remove_all(path_); }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path write(const std::filesystem::path& name, std::string_view content) const {
    const std::filesystem::path path = path_ / name;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path, std::ios::binary) << content;
    return path;
  }

 private:
  std::filesystem::path path_;
};

inline std::span<const std::byte> as_bytes(std::string_view text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

// The message of the Error that `body` throws; a failed test where it throws none.
template <class Body>
std::string error_of(Body body) {
  try {
    body();
  } catch (const Error& error) {
    return error.what();
  }
  ADD_FAILURE() << "wanted an Error, found none";
  return "";
}

inline void expect_parts(const std::string& message, const std::vector<std::string>& parts) {
  for (const std::string& part : parts) {
    EXPECT_NE(message.find(part), std::string::npos) << "wanted '" << part << "' in: " << message;
  }
}

template <class T>
void append(std::string& bytes, T value) {
  bytes.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

// A safetensors file of tensors in the order they were added.
class SafetensorsBuilder {
 public:
  void add(const std::string& name,
           const std::string& dtype,
           const std::vector<std::int64_t>& shape,
           std::string_view data) {
    header_[name] = {{"dtype", dtype},
                     {"shape", shape},
                     {"data_offsets", {data_.size(), data_.size() + data.size()}}};
    data_ += data;
  }
  nlohmann::json& header() { return header_; }
  std::string& data() { return data_; }
  std::string bytes() const { return with_header(header_.dump(), data_); }

  static std::string with_header(std::string_view header, std::string_view data) {
    std::string bytes;
    append<std::uint64_t>(bytes, header.size());
    return bytes.append(header).append(data);
  }

 private:
  nlohmann::json header_ = nlohmann::json::object();
  std::string data_;
};

// A GGUF file; each field may be spoiled before bytes() puts them together.
class GgufBuilder {
 public:
  std::uint32_t magic = 0x46554747;
  std::uint32_t version = 3;
  std::uint64_t alignment =
      32;  // of what bytes() writes; the key general.alignment is the caller's

  void raw_entry(std::string_view key, std::uint32_t type, std::string_view value) {
    put_string(entries_, key);
    append(entries_, type);
    entries_.append(value);
    ++entry_count;
  }
  template <class T>
  void entry(std::string_view key, std::uint32_t type, T value) {
    std::string bytes;
    append(bytes, value);
    raw_entry(key, type, bytes);
  }
  void u32(std::string_view key, std::uint32_t value) { entry(key, 4, value); }
  void f32(std::string_view key, float value) { entry(key, 6, value); }
  void string(std::string_view key, std::string_view value) {
    std::string bytes;
    put_string(bytes, value);
    raw_entry(key, 8, bytes);
  }
  void strings(std::string_view key, const std::vector<std::string>& values) {
    std::string bytes;
    append<std::uint32_t>(bytes, 8);
    append<std::uint64_t>(bytes, values.size());
    for (const std::string& value : values) put_string(bytes, value);
    raw_entry(key, 9, bytes);
  }
  template <class T>
  void array(std::string_view key, std::uint32_t type, const std::vector<T>& values) {
    std::string bytes;
    append(bytes, type);
    append<std::uint64_t>(bytes, values.size());
    for (const T& value : values) append(bytes, value);
    raw_entry(key, 9, bytes);
  }

  // `shape` slowest first, as GgufTensor gives it back; the file has it the other way round.
  void tensor(std::string_view name,
              std::uint32_t type,
              const std::vector<std::int64_t>& shape,
              std::string_view data) {
    raw_tensor(name, type, {shape.rbegin(), shape.rend()}, data_.size());
    data_.append(data);
    data_.resize((data_.size() + alignment - 1) / alignment * alignment);
  }
  void raw_tensor(std::string_view name,
                  std::uint32_t type,
                  const std::vector<std::int64_t>& sizes,
                  std::uint64_t offset) {
    put_string(tensors_, name);
    append(tensors_, static_cast<std::uint32_t>(sizes.size()));
    for (const std::int64_t size : sizes) append(tensors_, size);
    append(tensors_, type);
    append(tensors_, offset);
    ++tensor_count;
  }

  std::string bytes() const {
    std::string bytes;
    append(bytes, magic);
    append(bytes, version);
    append(bytes, tensor_count);
    append(bytes, entry_count);
    bytes += entries_ + tensors_;
    if (!data_.empty()) bytes.resize((bytes.size() + alignment - 1) / alignment * alignment);
    return bytes + data_;
  }

  std::uint64_t tensor_count = 0;
  std::uint64_t entry_count = 0;

  static void put_string(std::string& bytes, std::string_view text) {
    append<std::uint64_t>(bytes, text.size());
    bytes.append(text);
  }

 private:
  std::string entries_;
  std::string tensors_;
  std::string data_;
};

}  // namespace keel::testing
