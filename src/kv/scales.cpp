#include "kv/scales.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/error.h"

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
  const std::filesystem::path partial = file.string() + ".partial";  // never leave half a file under the real name
  std::ofstream out(partial);
  out << json.dump(1) << '\n';
  out.close();
  std::error_code error;
  if (out.fail()) fail("{}: could not write the calibration file", file.string());
  std::filesystem::rename(partial, file, error);
  if (error) fail("{}: could not write the calibration file: {}", file.string(), error.message());
}

KvScales read_calibration(const std::filesystem::path& path, const KvGeometry& geometry, const KvFormat& format) {
  const std::string file = path.string();
  std::ifstream in(path);
  if (!in) fail("{}: no such calibration file", file);
  const nlohmann::json record = nlohmann::json::parse(in, nullptr, false);
  if (record.is_discarded() || !record.is_object()) fail("{}: not a JSON object", file);
  const nlohmann::json none;
  if (record.value("format", none) != "keel-kv-calibration" || record.value("version", none) != 1) {
    fail("{}: wanted \"format\": \"keel-kv-calibration\", \"version\": 1", file);
  }
  const auto number = [&](const char* key) {
    return record.contains(key) && record[key].is_number_integer() ? record[key].get<std::int64_t>() : -1;
  };
  if (number("layers") != geometry.layers || number("kv_heads") != geometry.kv_heads || number("head_dim") != geometry.head_dim) {
    fail("{}: calibrated for {} layers x {} KV heads x {} head dim, the model has {} x {} x {}", file, number("layers"),
         number("kv_heads"), number("head_dim"), geometry.layers, geometry.kv_heads, geometry.head_dim);
  }
  const nlohmann::json data = record.value("data", none);
  const std::size_t count = geometry.layers * geometry.kv_heads;
  const std::vector<float> key_maxima = read_maxima(record, "key_maxima", count, file);
  const std::vector<float> value_maxima = read_maxima(record, "value_maxima", count, file);
  const auto placeholder = [](const std::vector<float>& maxima) {
    return std::all_of(maxima.begin(), maxima.end(), [&](float m) { return m == 0 || m == kLargestE4m3; });
  };
  if (placeholder(key_maxima) || placeholder(value_maxima)) {
    fail("{}: every scale is 1, which is a placeholder and no calibration; leave the file out for unit scales", file);
  }
  return {ScaleOrigin::calibrated,
          fmt::format("{}, {} tokens of {}", path.filename().string(), number("tokens"), data.is_string() ? data.get<std::string>() : "?"),
          scales_of(key_maxima, format.key),
          scales_of(value_maxima, format.value)};
}

}  // namespace keel
