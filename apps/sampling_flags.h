// Sampling parameters as flags; what is not given comes from the model's generation_config.json, then the usual defaults.
#pragma once

#include <CLI/CLI.hpp>

#include <optional>
#include <string>
#include <vector>

#include "engine/request.h"
#include "model/config.h"

namespace keel {

struct SamplingFlags {
  std::optional<double> temperature, top_p, min_p, repetition_penalty;
  std::optional<std::int64_t> top_k;
  std::optional<std::uint64_t> seed;
  std::int64_t max_tokens = 128;
  std::vector<std::string> stop;
  bool ignore_eos = false;

  void add_to(CLI::App& command);
  SamplingParams params(const ModelConfig& config) const;
};

}  // namespace keel
