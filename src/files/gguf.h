// GGUF, versions 2 and 3, little-endian: metadata by key, tensors by name. Every count, length, type and offset in the
// file is distrusted; a bad one throws Error naming the file and the key or tensor, what was wanted and what was found.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "files/mapped_file.h"

namespace keel {

// Integers of any width become int64 (uint64 past 2^63 is refused), both float widths double; arrays are of one kind.
using GgufValue = std::variant<std::int64_t,
                               double,
                               bool,
                               std::string,
                               std::vector<std::int64_t>,
                               std::vector<double>,
                               std::vector<std::string>>;

struct GgufTensor {
  std::string name;
  std::uint32_t type;                // ggml's type number: 0 F32, 1 F16, 2 Q4_0, 3 Q4_1, 8 Q8_0, 12 Q4_K, 13 Q5_K, 14 Q6_K, 30 BF16
  std::vector<std::int64_t> shape;   // slowest first (the file's order reversed): [rows, columns]
  std::span<const std::byte> bytes;  // within the mapping; length checked for the types above, else empty
};

class GgufFile {
 public:
  explicit GgufFile(const std::filesystem::path& path);
  // For fuzzing and tests: `bytes` must outlive the object.
  GgufFile(std::string label, std::span<const std::byte> bytes);

  const std::string& label() const { return label_; }  // what errors call the file
  const std::map<std::string, GgufValue, std::less<>>& metadata() const { return metadata_; }
  const std::map<std::string, GgufTensor, std::less<>>& tensors() const { return tensors_; }

  // Typed look-ups: nullopt / nullptr when the key is absent, Error when it is there with another type.
  std::optional<std::int64_t> integer(std::string_view key) const;
  std::optional<double> number(std::string_view key) const;  // integers too
  std::optional<bool> boolean(std::string_view key) const;
  const std::string* string(std::string_view key) const;
  const std::vector<std::string>* strings(std::string_view key) const;
  const std::vector<std::int64_t>* integers(std::string_view key) const;
  const std::vector<double>* numbers(std::string_view key) const;

 private:
  void parse(std::span<const std::byte> bytes);
  std::string label_;
  std::optional<MappedFile> file_;
  std::map<std::string, GgufValue, std::less<>> metadata_;
  std::map<std::string, GgufTensor, std::less<>> tensors_;
};

}  // namespace keel
