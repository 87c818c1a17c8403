#include "kv/format.h"

#include <optional>
#include <utility>

#include "base/option_error.h"

namespace keel {
namespace {

constexpr std::string_view kAccepted =
    "auto, k16v16, k16v8, k8v8, k16v4, fp8, one type for both (f32, f16, bf16, fp8_e4m3), or k=TYPE,v=TYPE with values also u4";

DType sixteen_bits(DType model_dtype) {
  return model_dtype == DType::bf16 ? DType::bf16 : DType::f16;
}

DType parse_side(std::string_view text, std::string_view whole) {
  if (auto type = parse_dtype(text)) return *type;
  refuse_option("'{}' in KV cache type '{}' is no type keel knows: wanted f32, f16, bf16, fp8_e4m3 or (values only) u4", text, whole);
}

KvFormat checked(KvFormat format) {
  if (format.key == DType::u4) {
    refuse_option("no kernel reads u4 keys (k={},v={}): keys may be f32, f16, bf16 or fp8_e4m3; the nearest that works is k8v8 or k16v4",
         name(format.key), name(format.value));
  }
  return format;
}

// "k=bf16,v=fp8_e4m3", either part optional and in any order.
KvFormat parse_pair(std::string_view text, KvFormat format) {
  std::string_view rest = text;
  bool key_named = false, value_named = false;
  const auto once = [&](bool& named, std::string_view side) {
    if (std::exchange(named, true)) refuse_option("KV cache type '{}' names {} twice", text, side);
  };
  while (!rest.empty()) {
    const std::size_t comma = rest.find(',');
    const std::string_view part = rest.substr(0, comma);
    rest = comma == std::string_view::npos ? std::string_view{} : rest.substr(comma + 1);
    if (part.starts_with("k=")) {
      once(key_named, "k");
      format.key = parse_side(part.substr(2), text);
    } else if (part.starts_with("v=")) {
      once(value_named, "v");
      format.value = parse_side(part.substr(2), text);
    } else {
      refuse_option("'{}' in KV cache type '{}': wanted k=TYPE or v=TYPE", part, text);
    }
  }
  return format;
}

}  // namespace

KvFormat parse_kv_format(std::string_view text, DType model_dtype) {
  const DType k16 = sixteen_bits(model_dtype);
  if (text == "auto" || text == "k16v16") return {k16, k16};
  if (text == "k16v8") return {k16, DType::e4m3};
  if (text == "k8v8" || text == "fp8") return {DType::e4m3, DType::e4m3};
  if (text == "k16v4") return {k16, DType::u4};
  if (text.find('=') != std::string_view::npos) return checked(parse_pair(text, {k16, k16}));
  if (auto type = parse_dtype(text)) return checked({*type, *type});
  refuse_option("'{}' is no KV cache type: wanted {}", text, kAccepted);
}

std::string to_string(const KvFormat& format) {
  return fmt::format("k={},v={}", name(format.key), name(format.value));
}

std::string short_name(const KvFormat& format) {
  if (format.key == DType::f32 || format.value == DType::f32) return to_string(format);
  if (format.key == DType::e4m3 && format.value != DType::e4m3) return to_string(format);  // parse_kv_format has no word
  if (bits(format.key) == 16 && bits(format.value) == 16 && format.key != format.value) return to_string(format);
  return fmt::format("k{}v{}", bits(format.key), bits(format.value));
}

}  // namespace keel
