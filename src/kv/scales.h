// What stored keys and values are multiplied by, and where those numbers came from.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "base/sha256.h"
#include "kv/layout.h"

namespace keel {

enum class ScaleOrigin { unit, calibrated };

// One scale per layer and KV head for keys and for values. Only E4M3 uses them; 16-bit types and u4 keep 1.
struct KvScales {
  ScaleOrigin origin = ScaleOrigin::unit;
  std::string source;  // calibrated: file name and what it was made from
  std::vector<float> keys;    // [layers · kv_heads]
  std::vector<float> values;  // [layers · kv_heads]

  static KvScales unit(const KvGeometry& geometry);
  Digest digest() const;         // over format-relevant numbers; part of every prefix hash
  std::string description() const;  // "unit", "calibrated (scales.json, 12,288 tokens of prose.txt)"
};

// The calibration file: JSON, docs/formats/kv-scales.md. Scale = largest |x| / 448, 1 where nothing was seen.
struct CalibrationRecord {
  std::string model;        // name it was made for
  std::string data;         // file it was made from
  std::int64_t tokens = 0;
  KvGeometry geometry;
  std::vector<float> key_maxima;    // [layers · kv_heads], of |k| after RoPE
  std::vector<float> value_maxima;

  // Raises the layer's maxima to what `tokens` rows of k and v hold, each [kv_heads · head_dim]. Throws Error where one is
  // infinite or no number, from which no scale can be made.
  void observe(std::int64_t layer, std::int64_t tokens, const float* k, const float* v);
};
// Throws Error where write_calibration could not put its file: no folder, or something there that is no plain file.
void check_calibration_target(const std::filesystem::path& file);
void write_calibration(const std::filesystem::path& file, const CalibrationRecord& record);

// Throws Error for another geometry, a non-finite or non-positive scale, or a placeholder: all scales exactly 1.
KvScales read_calibration(const std::filesystem::path& file, const KvGeometry& geometry, const KvFormat& format);

}  // namespace keel
