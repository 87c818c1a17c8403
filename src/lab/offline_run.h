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
  std::int64_t attended_tokens = 0;  // tokens that each row attended to, itself included, summed
  std::int64_t logit_rows = 0;       // rows that gave a token
};

struct OfflineRun {
  std::vector<RequestTimes> requests;
  std::vector<StepTime> steps;
  double duration_s = 0;
  std::int64_t preemptions = 0, prefix_hits = 0;
  std::int64_t most_running = 0;  // sequences, after any step
  RouteCounts routes;  // rows that went each way through attention, on devices with several
  RouteSeconds route_seconds;  // where the engine times them
};

// Submits all items at once and steps until each has its tokens; end-of-text does not stop them. Throws Error when the
// engine refuses one. `on_end` is called as each request ends.
OfflineRun run_offline(Engine& engine,
                       std::span<const WorkItem> items,
                       double temperature,
                       const std::function<void()>& on_end = {});

// What a model's steps compute and read, per row. Calculated: what a step must do, whatever the device does beside it.
struct StepWork {
  double flops_a_row;             // the layers' products, of the last one only queries, keys and values
  double flops_a_logit_row;       // the rest of the last layer, and the head
  double flops_an_attended_token; // attention's two products, of all layers; a causal row attends to itself and what is before it
  std::int64_t weight_bytes;      // read once a step: all but an embedding that is not the head too
  std::int64_t bytes_per_token;   // of the cache
};
StepWork work_of(const ModelConfig& config, const Attestation& attestation);

// A phase is the steps of one kind: prefill holds those with any prompt rows (decode rows may ride along), decode the rest.
struct PhaseFigures {
  std::int64_t steps = 0, rows = 0, attended_tokens = 0, logit_rows = 0;
  double seconds = 0;
  Sample step_s;

  double rows_per_s() const { return static_cast<double>(rows) / seconds; }
  double rows_per_step() const { return static_cast<double>(rows) / static_cast<double>(steps); }
  double flops_per_s(const StepWork& work) const;
  // Of decode steps, whose rows each read their sequence's cache: the weights once a step, and the cache up to and with the row itself.
  double bytes_per_step(const StepWork& work) const;
  double bytes_per_s(const StepWork& work) const;
};

struct Phases {
  PhaseFigures prefill, decode;
};
Phases phases_of(std::span<const StepTime> steps);

}  // namespace keel
