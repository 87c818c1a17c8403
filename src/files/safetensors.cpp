#include "files/safetensors.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/json.h"
#include "files/printable.h"

namespace keel {
namespace {

using Json = nlohmann::json;

static_assert(std::endian::native == std::endian::little, "the header's length is read as it lies");

constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;  // the format's own limit
constexpr JsonLimits kJsonLimits = {.depth = 3, .allow_repeated_keys = false};  // header, tensor, shape
constexpr std::uint64_t kMaxDimensions = 8;

Json parse_json(const std::string& label, std::string_view text) {
  if (const auto problem = json_problem(text, kJsonLimits)) fail("{}: {}", label, *problem);
  return Json::parse(text);
}

std::optional<std::int64_t> element_bytes(std::string_view dtype) {
  constexpr std::pair<std::string_view, std::int64_t> kSizes[] = {{"F64", 8},
                                                                  {"F32", 4},
                                                                  {"F16", 2},
                                                                  {"BF16", 2},
                                                                  {"I64", 8},
                                                                  {"U64", 8},
                                                                  {"I32", 4},
                                                                  {"U32", 4},
                                                                  {"I16", 2},
                                                                  {"U16", 2},
                                                                  {"F8_E4M3", 1},
                                                                  {"F8_E5M2", 1},
                                                                  {"I8", 1},
                                                                  {"U8", 1},
                                                                  {"BOOL", 1}};
  for (const auto& [name, bytes] : kSizes) {
    if (name == dtype) return bytes;
  }
  return std::nullopt;
}

// The non-negative integers of an array at `key`.
std::vector<std::int64_t> integers(const Json& tensor, const char* key, const std::string& where) {
  const auto found = tensor.find(key);
  if (found == tensor.end() || !found->is_array() || found->size() > kMaxDimensions) {
    fail("{}: wanted {} as an array of at most {} integers", where, key, kMaxDimensions);
  }
  std::vector<std::int64_t> values;
  for (const Json& value : *found) {
    if (!value.is_number_unsigned() ||
        value.get<std::uint64_t>() > static_cast<std::uint64_t>(INT64_MAX)) {
      fail("{}: {}: wanted integers of 0 to 2^63 - 1, found {}",
           where,
           key,
           printable(value.dump()));
    }
    values.push_back(value.get<std::int64_t>());
  }
  return values;
}

SafetensorsTensor parse_tensor(const std::string& label,
                               const std::string& name,
                               const Json& json,
                               std::span<const std::byte> data) {
  const std::string where = fmt::format("{}: tensor {}", label, printable(name));
  if (!json.is_object()) fail("{}: wanted an object", where);
  const auto dtype = json.find("dtype");
  if (dtype == json.end() || !dtype->is_string()) fail("{}: wanted dtype as a string", where);
  SafetensorsTensor tensor{.name = name, .dtype = dtype->get<std::string>(), .file = label};
  const std::optional<std::int64_t> element = element_bytes(tensor.dtype);
  if (!element) fail("{}: the dtype {} is not supported", where, printable(tensor.dtype));
  tensor.shape = integers(json, "shape", where);
  const std::vector<std::int64_t> offsets = integers(json, "data_offsets", where);
  if (offsets.size() != 2 || offsets[0] > offsets[1])
    fail("{}: wanted data_offsets as [begin, end]", where);

  std::int64_t wanted = *element;
  for (const std::int64_t size : tensor.shape) {
    if (__builtin_mul_overflow(wanted, size, &wanted))
      fail("{}: the shape's bytes pass 2^63", where);
  }
  if (offsets[1] - offsets[0] != wanted) {
    fail("{}: {} [{}] wants {} bytes, found {}",
         where,
         tensor.dtype,
         fmt::join(tensor.shape, ", "),
         wanted,
         offsets[1] - offsets[0]);
  }
  if (static_cast<std::uint64_t>(offsets[1]) > data.size()) {
    fail("{}: it ends at data offset {}, but the file holds {} bytes of data",
         where,
         offsets[1],
         data.size());
  }
  tensor.bytes =
      data.subspan(static_cast<std::size_t>(offsets[0]), static_cast<std::size_t>(wanted));
  return tensor;
}

// The format wants the tensors to cover the data exactly: no overlap, no hole, nothing behind the last.
void check_cover(const std::string& label,
                 const SafetensorsMap& tensors,
                 std::span<const std::byte> data) {
  std::vector<const SafetensorsTensor*> order;
  for (const auto& [name, tensor] : tensors) order.push_back(&tensor);
  std::ranges::sort(order, {}, [](const SafetensorsTensor* t) {
    return std::pair(t->bytes.data(), t->bytes.data() + t->bytes.size());
  });
  const std::byte* reached = data.data();
  for (const SafetensorsTensor* tensor : order) {
    if (tensor->bytes.data() != reached) {
      fail("{}: tensor {} starts at data offset {}, wanted {} (tensors {})",
           label,
           printable(tensor->name),
           tensor->bytes.data() - data.data(),
           reached - data.data(),
           tensor->bytes.data() < reached ? "overlap" : "leave a hole");
    }
    reached += tensor->bytes.size();
  }
  if (reached != data.data() + data.size()) {
    fail("{}: the tensors end at data offset {}, but the file holds {} bytes of data",
         label,
         reached - data.data(),
         data.size());
  }
}

std::string_view text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// The shard files that an index names, each once.
std::set<std::string> shards_of(const std::string& label, const Json& index) {
  const auto map = index.find("weight_map");
  if (!index.is_object() || map == index.end() || !map->is_object() || map->empty()) {
    fail("{}: wanted a weight_map object from tensor to file", label);
  }
  std::set<std::string> shards;
  for (const auto& [tensor, file] : map->items()) {
    if (!file.is_string()) fail("{}: tensor {}: wanted a file name", label, printable(tensor));
    const auto name = file.get<std::string>();
    if (name.empty() || name.find_first_of(std::string_view("/\\\0", 3)) != std::string::npos ||
        name.starts_with('.')) {
      fail("{}: tensor {}: {} is not the plain name of a file beside the index",
           label,
           printable(tensor),
           printable(name));
    }
    shards.insert(name);
  }
  return shards;
}

}  // namespace

SafetensorsMap parse_safetensors(const std::string& label, std::span<const std::byte> bytes) {
  std::uint64_t header_bytes = 0;
  if (bytes.size() < sizeof(header_bytes)) {
    fail("{}: wanted a safetensors file, found {} bytes", label, bytes.size());
  }
  std::memcpy(&header_bytes, bytes.data(), sizeof(header_bytes));
  bytes = bytes.subspan(sizeof(header_bytes));
  if (header_bytes > std::min<std::uint64_t>(bytes.size(), kMaxHeaderBytes)) {
    fail("{}: a header of {} bytes does not fit the file ({} bytes left; at most {})",
         label,
         header_bytes,
         bytes.size(),
         kMaxHeaderBytes);
  }
  const Json header = parse_json(label, text_of(bytes.first(header_bytes)));
  if (!header.is_object()) fail("{}: the header is not a JSON object", label);
  const std::span<const std::byte> data = bytes.subspan(header_bytes);

  SafetensorsMap tensors;
  for (const auto& [name, json] : header.items()) {
    if (name != "__metadata__") tensors.emplace(name, parse_tensor(label, name, json, data));
  }
  check_cover(label, tensors, data);
  return tensors;
}

SafetensorsFolder::SafetensorsFolder(const std::filesystem::path& folder) {
  namespace fs = std::filesystem;
  const fs::path index_path = folder / "model.safetensors.index.json";
  Json index;
  std::vector<fs::path> paths;
  if (fs::exists(index_path)) {
    const MappedFile file(index_path);
    index = parse_json(index_path.string(), text_of(file.bytes()));
    for (const std::string& shard : shards_of(index_path.string(), index))
      paths.push_back(folder / shard);
  } else if (fs::exists(folder / "model.safetensors")) {
    paths.push_back(folder / "model.safetensors");
  } else {
    for (const auto& entry : fs::directory_iterator(folder)) {
      if (entry.path().extension() == ".safetensors") paths.push_back(entry.path());
    }
    if (paths.size() != 1) {
      fail(
          "{}: wanted model.safetensors, its index, or one *.safetensors file; found {} such files",
          folder.string(),
          paths.size());
    }
  }

  for (const fs::path& path : paths) {
    files_.emplace_back(path);
    for (auto& [name, tensor] : parse_safetensors(path.string(), files_.back().bytes())) {
      const auto [known, added] = tensors_.emplace(name, tensor);
      if (!added)
        fail("{}: tensor {} is also in {}", path.string(), printable(name), known->second.file);
    }
  }
  if (index.is_null()) return;
  for (const auto& [name, file] : index["weight_map"].items()) {
    const auto tensor = tensors_.find(name);
    const std::string path = (folder / file.get<std::string>()).string();
    if (tensor == tensors_.end() || tensor->second.file != path) {
      fail("{}: the index places tensor {} in {}, which does not hold it",
           index_path.string(),
           printable(name),
           path);
    }
  }
}

}  // namespace keel
