// Requests given to an engine directly, timed to their last token, and each step by what it computed.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "engine/engine.h"
#include "lab/request_times.h"
#include "lab/workload.h"

namespace keel {

struct StepTime {
  double seconds = 0;
  std::int64_t prefill_rows = 0, decode_rows = 0;
  std::int64_t context_tokens = 0;  // cached tokens that the sequences which got a token attended to, summed
};

struct OfflineRun {
  std::vector<RequestTimes> requests;
  std::vector<StepTime> steps;
  double duration_s = 0;
  std::int64_t preemptions = 0, prefix_hits = 0;
  RouteCounts routes;  // rows that went each way through attention, on devices with several
};

// Submits all items at once and steps until each has its tokens; end-of-text does not stop them. Throws Error when the
// engine refuses one. `on_end` is called as each request ends.
OfflineRun run_offline(Engine& engine,
                       std::span<const WorkItem> items,
                       double temperature,
                       const std::function<void()>& on_end = {});

// A phase is the steps of one kind: prefill holds those with any prompt rows (decode rows may ride along), decode the rest.
struct PhaseFigures {
  std::int64_t steps = 0, rows = 0, context_tokens = 0;
  double seconds = 0;
  Sample step_s;

  double rows_per_s() const { return static_cast<double>(rows) / seconds; }
  double rows_per_step() const { return static_cast<double>(rows) / static_cast<double>(steps); }
  // What the steps had to read, calculated: all weights once a step, and the cache of every sequence.
  double bytes_per_step(const Attestation& attestation) const;
  double bytes_per_s(const Attestation& attestation) const;
};

struct Phases {
  PhaseFigures prefill, decode;
};
Phases phases_of(std::span<const StepTime> steps);

}  // namespace keel
