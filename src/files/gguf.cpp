#include "files/gguf.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <type_traits>
#include <utility>

#include "base/error.h"
#include "files/printable.h"

namespace keel {
namespace {

static_assert(std::endian::native == std::endian::little, "GGUF fields are read as they lie");

constexpr std::uint32_t kMagic = 0x46554747;  // "GGUF"
constexpr std::int64_t kDefaultAlignment = 32;
constexpr std::uint64_t kMaxNameBytes = 65535;          // the format's own limit for keys
constexpr std::uint64_t kMaxArrayElements = 1u << 24;   // the largest vocabularies have 2^18 words
constexpr std::uint64_t kMaxDimensions = 4;             // ggml's
constexpr std::size_t kSmallestEntryBytes = 8 + 4 + 1;  // a key's length, a type, a one-byte value
constexpr std::size_t kSmallestTensorBytes =
    8 + 4 + 8 + 4 + 8;  // name length, rank, one size, type, offset

enum class ValueType : std::uint32_t {
  u8,
  i8,
  u16,
  i16,
  u32,
  i32,
  f32,
  boolean,
  string,
  array,
  u64,
  i64,
  f64,
};

std::size_t smallest_bytes(ValueType type) {
  switch (type) {
    case ValueType::u8:
    case ValueType::i8:
    case ValueType::boolean:
      return 1;
    case ValueType::u16:
    case ValueType::i16:
      return 2;
    case ValueType::u32:
    case ValueType::i32:
    case ValueType::f32:
      return 4;
    case ValueType::string:  // its length
    case ValueType::u64:
    case ValueType::i64:
    case ValueType::f64:
      return 8;
    case ValueType::array:
      return 12;
  }
  return 1;
}

struct Encoding {
  std::uint32_t type;
  std::int64_t block_elements;
  std::int64_t block_bytes;
};

constexpr Encoding kEncodings[] = {
    {0, 1, 4},       // F32
    {1, 1, 2},       // F16
    {2, 32, 18},     // Q4_0
    {3, 32, 20},     // Q4_1
    {8, 32, 34},     // Q8_0
    {12, 256, 144},  // Q4_K
    {13, 256, 176},  // Q5_K
    {14, 256, 210},  // Q6_K
    {30, 1, 2},      // BF16
};

// Reads the header from front to back. `where` names what is being read, for messages.
class Reader {
 public:
  Reader(const std::string& label, std::span<const std::byte> bytes)
      : label_(label), bytes_(bytes) {}

  std::size_t position() const { return position_; }
  std::size_t left() const { return bytes_.size() - position_; }

  template <class T>
  T read(std::string_view where) {
    T value;
    std::memcpy(&value, take(sizeof(T), where), sizeof(T));
    return value;
  }

  std::string read_string(std::string_view where, std::uint64_t longest) {
    const auto size = read<std::uint64_t>(where);
    if (size > longest)
      fail("{}: {}: wanted a string of at most {} bytes, found {}", label_, where, longest, size);
    return std::string(reinterpret_cast<const char*>(take(size, where)), size);
  }

  // A count of things of at least `smallest` bytes each: refused where the file cannot hold them.
  std::uint64_t read_count(std::string_view where, std::size_t smallest) {
    const auto count = read<std::uint64_t>(where);
    if (count > left() / smallest) {
      fail("{}: {}: the count {} does not fit the {} bytes left in the file",
           label_,
           where,
           count,
           left());
    }
    return count;
  }

  ValueType read_type(std::string_view where) {
    const auto type = read<std::uint32_t>(where);
    if (type > static_cast<std::uint32_t>(ValueType::f64)) {
      fail("{}: {}: wanted a value type of 0 to 12, found {}", label_, where, type);
    }
    return static_cast<ValueType>(type);
  }

  std::int64_t read_integer(ValueType type, std::string_view where) {
    switch (type) {
      case ValueType::u8:
        return read<std::uint8_t>(where);
      case ValueType::i8:
        return read<std::int8_t>(where);
      case ValueType::u16:
        return read<std::uint16_t>(where);
      case ValueType::i16:
        return read<std::int16_t>(where);
      case ValueType::u32:
        return read<std::uint32_t>(where);
      case ValueType::i32:
        return read<std::int32_t>(where);
      case ValueType::i64:
        return read<std::int64_t>(where);
      case ValueType::boolean:
        return read_bool(where) ? 1 : 0;
      default:
        break;
    }
    const auto value = read<std::uint64_t>(where);
    if (value > static_cast<std::uint64_t>(INT64_MAX)) {
      fail("{}: {}: wanted an integer below 2^63, found {}", label_, where, value);
    }
    return static_cast<std::int64_t>(value);
  }

  bool read_bool(std::string_view where) {
    const auto value = read<std::uint8_t>(where);
    if (value > 1) fail("{}: {}: wanted a bool of 0 or 1, found {}", label_, where, value);
    return value == 1;
  }

  double read_float(ValueType type, std::string_view where) {
    return type == ValueType::f32 ? static_cast<double>(read<float>(where)) : read<double>(where);
  }

  GgufValue read_value(std::string_view where) {
    const ValueType type = read_type(where);
    switch (type) {
      case ValueType::boolean:
        return read_bool(where);
      case ValueType::string:
        return read_string(where, left());
      case ValueType::f32:
      case ValueType::f64:
        return read_float(type, where);
      case ValueType::array:
        return read_array(where);
      default:
        return read_integer(type, where);
    }
  }

 private:
  GgufValue read_array(std::string_view where) {
    const ValueType type = read_type(where);
    if (type == ValueType::array) fail("{}: {}: arrays of arrays are not supported", label_, where);
    const std::uint64_t count = read_count(where, smallest_bytes(type));
    if (count > kMaxArrayElements) {
      fail("{}: {}: wanted at most {} elements, found {}", label_, where, kMaxArrayElements, count);
    }
    const auto fill = [&](auto read_one) {
      std::vector<decltype(read_one())> values;
      values.reserve(count);
      for (std::uint64_t i = 0; i < count; ++i) values.push_back(read_one());
      return values;
    };
    if (type == ValueType::string) return fill([&] { return read_string(where, left()); });
    if (type == ValueType::f32 || type == ValueType::f64)
      return fill([&] { return read_float(type, where); });
    return fill([&] { return read_integer(type, where); });
  }

  const std::byte* take(std::uint64_t size, std::string_view where) {
    if (size > left()) {
      fail("{}: {}: wanted {} bytes at offset {}, found the end of the file after {}",
           label_,
           where,
           size,
           position_,
           left());
    }
    const std::byte* start = bytes_.data() + position_;
    position_ += size;
    return start;
  }

  const std::string& label_;
  std::span<const std::byte> bytes_;
  std::size_t position_ = 0;
};

struct Extent {
  std::uint64_t begin;
  std::uint64_t end;
  const std::string* name;
};

// Bytes of the tensor, nullopt for an encoding not in the table (its size is then unknown and its data stay unread).
std::optional<std::uint64_t> size_of(const GgufTensor& tensor,
                                     const std::string& label,
                                     std::string_view where) {
  const auto* encoding = std::ranges::find(kEncodings, tensor.type, &Encoding::type);
  if (encoding == std::end(kEncodings)) return std::nullopt;
  const std::int64_t columns = tensor.shape.back();
  if (columns % encoding->block_elements != 0) {
    fail("{}: {}: type {} wants rows of a multiple of {} elements, found {}",
         label,
         where,
         tensor.type,
         encoding->block_elements,
         columns);
  }
  std::int64_t size = encoding->block_bytes;
  bool overflow = __builtin_mul_overflow(size, columns / encoding->block_elements, &size);
  for (std::size_t i = 0; i + 1 < tensor.shape.size(); ++i) {
    overflow = overflow || __builtin_mul_overflow(size, tensor.shape[i], &size);
  }
  if (overflow) fail("{}: {}: the shape's bytes pass 2^63", label, where);
  return static_cast<std::uint64_t>(size);
}

}  // namespace

GgufFile::GgufFile(const std::filesystem::path& path) : label_(path.string()) {
  file_.emplace(path);
  parse(file_->bytes());
}

GgufFile::GgufFile(std::string label, std::span<const std::byte> bytes) : label_(std::move(label)) {
  parse(bytes);
}

void GgufFile::parse(std::span<const std::byte> bytes) {
  Reader reader(label_, bytes);
  if (reader.read<std::uint32_t>("magic") != kMagic)
    fail("{}: wanted a GGUF file, found another magic number", label_);
  const auto version = reader.read<std::uint32_t>("version");
  if (version != 2 && version != 3) {
    fail("{}: wanted GGUF version 2 or 3, found {}{}",
         label_,
         version,
         (version & 0xffff) == 0 ? " (a big-endian file, which is not supported)" : "");
  }
  const std::uint64_t tensor_count = reader.read_count("tensor count", kSmallestTensorBytes);
  const std::uint64_t entry_count = reader.read_count("metadata count", kSmallestEntryBytes);

  for (std::uint64_t i = 0; i < entry_count; ++i) {
    std::string key = reader.read_string(fmt::format("metadata key {}", i), kMaxNameBytes);
    const std::string where = fmt::format("metadata {}", printable(key));
    GgufValue value = reader.read_value(where);
    if (!metadata_.emplace(std::move(key), std::move(value)).second)
      fail("{}: {}: the key appears twice", label_, where);
  }
  const std::int64_t alignment = integer("general.alignment").value_or(kDefaultAlignment);
  if (alignment <= 0 || alignment > (1 << 24) ||
      !std::has_single_bit(static_cast<std::uint64_t>(alignment))) {
    fail("{}: general.alignment: wanted a power of two up to 2^24, found {}", label_, alignment);
  }

  std::vector<std::pair<GgufTensor*, std::uint64_t>> offsets;
  offsets.reserve(tensor_count);
  for (std::uint64_t i = 0; i < tensor_count; ++i) {
    GgufTensor tensor;
    tensor.name = reader.read_string(fmt::format("name of tensor {}", i), kMaxNameBytes);
    const std::string where = fmt::format("tensor {}", printable(tensor.name));
    const auto rank = reader.read<std::uint32_t>(where);
    if (rank < 1 || rank > kMaxDimensions)
      fail("{}: {}: wanted 1 to 4 dimensions, found {}", label_, where, rank);
    for (std::uint32_t d = 0; d < rank; ++d) {
      const auto size = reader.read<std::uint64_t>(where);
      if (size == 0 || size > static_cast<std::uint64_t>(INT64_MAX)) {
        fail("{}: {}: wanted sizes of 1 to 2^63 - 1, found {}", label_, where, size);
      }
      tensor.shape.insert(tensor.shape.begin(), static_cast<std::int64_t>(size));
    }
    tensor.type = reader.read<std::uint32_t>(where);
    const auto offset = reader.read<std::uint64_t>(where);
    if (offset % static_cast<std::uint64_t>(alignment) != 0) {
      fail("{}: {}: wanted an offset aligned to {} bytes, found {}",
           label_,
           where,
           alignment,
           offset);
    }
    const auto [entry, added] = tensors_.emplace(tensor.name, std::move(tensor));
    if (!added) fail("{}: {}: the name appears twice", label_, where);
    offsets.emplace_back(&entry->second, offset);
  }

  const auto step = static_cast<std::uint64_t>(alignment);
  const std::uint64_t data_start = (reader.position() + step - 1) / step * step;
  const std::uint64_t data_bytes = bytes.size() > data_start ? bytes.size() - data_start : 0;
  std::vector<Extent> extents;
  for (const auto& [tensor, offset] : offsets) {
    const std::string where = fmt::format("tensor {}", printable(tensor->name));
    const std::optional<std::uint64_t> size = size_of(*tensor, label_, where);
    if (offset > data_bytes || (size && *size > data_bytes - offset)) {
      fail("{}: {}: its {} bytes at data offset {} pass the end of the file ({} bytes of data)",
           label_,
           where,
           size.value_or(0),
           offset,
           data_bytes);
    }
    if (!size) continue;
    tensor->bytes = bytes.subspan(data_start + offset, *size);
    extents.push_back({offset, offset + *size, &tensor->name});
  }
  std::ranges::sort(extents, {}, &Extent::begin);
  for (std::size_t i = 1; i < extents.size(); ++i) {
    if (extents[i].begin < extents[i - 1].end) {
      fail("{}: tensor {} overlaps tensor {}",
           label_,
           printable(*extents[i].name),
           printable(*extents[i - 1].name));
    }
  }
}

namespace {

template <class T>
constexpr const char* kKind = nullptr;
template <>
constexpr const char* kKind<std::int64_t> = "an integer";
template <>
constexpr const char* kKind<double> = "a float";
template <>
constexpr const char* kKind<bool> = "a bool";
template <>
constexpr const char* kKind<std::string> = "a string";
template <>
constexpr const char* kKind<std::vector<std::int64_t>> = "an array of integers";
template <>
constexpr const char* kKind<std::vector<double>> = "an array of floats";
template <>
constexpr const char* kKind<std::vector<std::string>> = "an array of strings";

const char* kind(const GgufValue& value) {
  return std::visit([](const auto& held) { return kKind<std::remove_cvref_t<decltype(held)>>; },
                    value);
}

template <class T>
const T* find(const GgufFile& file, std::string_view key) {
  const auto entry = file.metadata().find(key);
  if (entry == file.metadata().end()) return nullptr;
  const T* value = std::get_if<T>(&entry->second);
  if (value == nullptr) {
    fail("{}: metadata {}: wanted {}, found {}",
         file.label(),
         printable(key),
         kKind<T>,
         kind(entry->second));
  }
  return value;
}

template <class T>
std::optional<T> copied(const T* value) {
  return value == nullptr ? std::nullopt : std::optional<T>(*value);
}

}  // namespace

std::optional<std::int64_t> GgufFile::integer(std::string_view key) const {
  return copied(find<std::int64_t>(*this, key));
}

std::optional<double> GgufFile::number(std::string_view key) const {
  const auto entry = metadata_.find(key);
  if (entry != metadata_.end() && std::holds_alternative<std::int64_t>(entry->second)) {
    return static_cast<double>(std::get<std::int64_t>(entry->second));
  }
  return copied(find<double>(*this, key));
}

std::optional<bool> GgufFile::boolean(std::string_view key) const {
  return copied(find<bool>(*this, key));
}

const std::string* GgufFile::string(std::string_view key) const {
  return find<std::string>(*this, key);
}

const std::vector<std::string>* GgufFile::strings(std::string_view key) const {
  return find<std::vector<std::string>>(*this, key);
}

const std::vector<std::int64_t>* GgufFile::integers(std::string_view key) const {
  return find<std::vector<std::int64_t>>(*this, key);
}

const std::vector<double>* GgufFile::numbers(std::string_view key) const {
  return find<std::vector<double>>(*this, key);
}

}  // namespace keel
