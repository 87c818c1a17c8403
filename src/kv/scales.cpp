#include "kv/scales.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/text_file.h"

namespace keel {
namespace {

constexpr float kLargestE4m3 = 448.0f;

std::vector<float> scales_of(const std::vector<float>& maxima, DType type) {
  std::vector<float> scales(maxima.size(), 1.0f);
  if (type != DType::e4m3) return scales;
  for (std::size_t i = 0; i < maxima.size(); ++i) {
    if (maxima[i] > 0) scales[i] = maxima[i] / kLargestE4m3;
  }
  return scales;
}

std::vector<float> read_maxima(const nlohmann::json& record, const char* key, std::size_t wanted, const std::string& file) {
  if (!record.contains(key) || !record[key].is_array() || record[key].size() != wanted) {
    fail("{}: '{}' must be an array of {} numbers (layers x KV heads)", file, key, wanted);
  }
  std::vector<float> maxima;
  for (const auto& item : record[key]) {
    const double value = item.is_number() ? item.get<double>() : -1;
    if (!(value >= 0) || !std::isfinite(static_cast<float>(value))) {
      fail("{}: '{}' holds {}: wanted finite numbers of at least 0", file, key, item.dump());
    }
    maxima.push_back(static_cast<float>(value));
  }
  return maxima;
}

}  // namespace

KvScales KvScales::unit(const KvGeometry& geometry) {
  const std::size_t count = geometry.layers * geometry.kv_heads;
  return {ScaleOrigin::unit, "", std::vector<float>(count, 1.0f), std::vector<float>(count, 1.0f)};
}

Digest KvScales::digest() const {
  std::vector<float> all = keys;
  all.insert(all.end(), values.begin(), values.end());
  return sha256(std::as_bytes(std::span(all)));
}

std::string KvScales::description() const {
  return origin == ScaleOrigin::unit ? "unit" : fmt::format("calibrated ({})", source);
}

void CalibrationRecord::observe(std::int64_t layer, std::int64_t tokens, const float* k, const float* v) {
  const auto raise = [&](const char* what, std::vector<float>& maxima, const float* x) {
    const std::int64_t row = geometry.kv_heads * geometry.head_dim;
    for (std::int64_t i = 0; i < tokens * row; ++i) {
      const std::int64_t head = i % row / geometry.head_dim;
      if (!std::isfinite(x[i])) fail("layer {}, KV head {}: a {} is {}, so there is no scale for it", layer, head, what, x[i]);
      float& maximum = maxima[layer * geometry.kv_heads + head];
      maximum = std::max(maximum, std::fabs(x[i]));
    }
  };
  raise("key", key_maxima, k);
  raise("value", value_maxima, v);
}

void check_calibration_target(const std::filesystem::path& file) {
  std::error_code ignored;
  // The finished file takes the place of what is there, and that may be no folder, device or link.
  const auto there = std::filesystem::symlink_status(file, ignored);
  if (std::filesystem::exists(there) && !std::filesystem::is_regular_file(there)) {
    fail("{}: wanted a new file or a plain one to replace, found something else", file.string());
  }
  const std::filesystem::path folder = file.has_parent_path() ? file.parent_path() : ".";
  if (!std::filesystem::is_directory(folder, ignored)) fail("{}: there is no folder {}", file.string(), folder.string());
}

void write_calibration(const std::filesystem::path& file, const CalibrationRecord& record) {
  const nlohmann::ordered_json json = {
      {"format", "keel-kv-calibration"},
      {"version", 1},
      {"model", record.model},
      {"data", record.data},
      {"tokens", record.tokens},
      {"layers", record.geometry.layers},
      {"kv_heads", record.geometry.kv_heads},
      {"head_dim", record.geometry.head_dim},
      {"key_maxima", record.key_maxima},
      {"value_maxima", record.value_maxima},
  };
  check_calibration_target(file);
  write_text_file(file, json.dump(1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
}

KvScales read_calibration(const std::filesystem::path& path, const KvGeometry& geometry, const KvFormat& format) {
  const std::string file = path.string();
  std::error_code ignored;
  std::ifstream in(path);
  if (!in || std::filesystem::is_directory(path, ignored)) fail("{}: no such calibration file", file);
  const nlohmann::json record = nlohmann::json::parse(in, nullptr, false);
  if (record.is_discarded() || !record.is_object()) fail("{}: not a JSON object", file);
  if (!record.contains("format") || record["format"] != "keel-kv-calibration" || !record.contains("version") ||
      record["version"] != 1) {
    fail("{}: wanted \"format\": \"keel-kv-calibration\", \"version\": 1", file);
  }
  const auto number = [&](const char* key) {
    return record.contains(key) && record[key].is_number_integer() ? record[key].get<std::int64_t>() : -1;
  };
  if (number("layers") != geometry.layers || number("kv_heads") != geometry.kv_heads || number("head_dim") != geometry.head_dim) {
    fail("{}: calibrated for {} layers x {} KV heads x {} head dim, the model has {} x {} x {}", file, number("layers"),
         number("kv_heads"), number("head_dim"), geometry.layers, geometry.kv_heads, geometry.head_dim);
  }
  const std::size_t count = geometry.layers * geometry.kv_heads;
  const std::vector<float> key_maxima = read_maxima(record, "key_maxima", count, file);
  const std::vector<float> value_maxima = read_maxima(record, "value_maxima", count, file);
  const auto placeholder = [](const std::vector<float>& maxima) {
    return std::all_of(maxima.begin(), maxima.end(), [&](float m) { return m == 0 || m == kLargestE4m3; });
  };
  if (placeholder(key_maxima) || placeholder(value_maxima)) {
    fail("{}: every scale is 1, which is a placeholder and no calibration; leave the file out for unit scales", file);
  }
  const std::string data = record.contains("data") && record["data"].is_string() ? record["data"] : "?";
  return {ScaleOrigin::calibrated,
          fmt::format("{}, {} tokens of {}", path.filename().string(), number("tokens"), data),
          scales_of(key_maxima, format.key),
          scales_of(value_maxima, format.value)};
}

}  // namespace keel
