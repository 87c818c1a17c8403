// Decode throughput over context and batch: steps in which every sequence decodes one token and none prefills.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/engine.h"

namespace keel {

struct SweepCell {
  std::int64_t context, batch;
};

struct SweepOptions {
  std::vector<std::int64_t> contexts, batches;
  std::int64_t steps = 32, warmup_steps = 4;  // timed, and before them
  std::int64_t repeats = 3;
  std::uint64_t seed = 0;
};

struct SweepMeasure {
  SweepCell cell;
  std::int64_t steps;
  double seconds;       // of the timed steps together
  double median_step_s;
  double mean_context;  // tokens that a sequence attended to, over the timed steps: a little more than the cell's

  double tokens_per_s() const { return static_cast<double>(cell.batch * steps) / seconds; }
};

// Every cell once a repeat, each repeat in an order of its own, so that a drift of the machine falls on all cells.
std::vector<SweepCell> sweep_order(const SweepOptions& options, std::int64_t repeat);

// Tokens that a sequence of the cell generates until the last timed step: those before it also decode while others prefill.
std::int64_t sweep_output(const SweepCell& cell, const SweepOptions& options, const EngineOptions& engine);

// Why this engine cannot hold the cell; none where it can.
std::optional<std::string> cell_problem(const SweepCell& cell, const SweepOptions& options, const EngineOptions& limits, const Attestation& engine);

// REQUIRES: no other work in the engine, no prefix caching, and cell_problem has none. Throws Error where the steps were not what they should be:
// a request failed, a sequence was preempted, a row was missing.
SweepMeasure measure_cell(Engine& engine, const SweepCell& cell, const SweepOptions& options, const EngineOptions& limits, std::uint64_t seed);

}  // namespace keel
