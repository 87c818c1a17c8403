// safetensors: an 8-byte length, a JSON header, raw tensors. One file or a sharded set with its index, distrusted: bad
// JSON, overlapping or out-of-range offsets, sizes that disagree with shape and type throw Error naming file and tensor.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "files/mapped_file.h"

namespace keel {

struct SafetensorsTensor {
  std::string name;
  std::string dtype;                // "F32", "F16", "BF16", "I32", …
  std::vector<std::int64_t> shape;
  std::span<const std::byte> bytes;
  std::string file;                 // for messages
};

using SafetensorsMap = std::map<std::string, SafetensorsTensor, std::less<>>;

// The tensors of one file's bytes, which must outlive the result.
SafetensorsMap parse_safetensors(const std::string& label, std::span<const std::byte> bytes);

// The tensors of a model folder: model.safetensors.index.json with its shards, else model.safetensors, else the only
// *.safetensors file there.
class SafetensorsFolder {
 public:
  explicit SafetensorsFolder(const std::filesystem::path& folder);
  const SafetensorsMap& tensors() const { return tensors_; }

 private:
  std::vector<MappedFile> files_;
  SafetensorsMap tensors_;
};

}  // namespace keel
