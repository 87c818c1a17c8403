// Counters and gauges of the engine, as /metrics and the benchmarks read them.
#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace keel {

struct EngineStats {
  // gauges
  std::int64_t running = 0;
  std::int64_t waiting = 0;
  std::int64_t pages_held = 0;
  std::int64_t pages_cached = 0;
  std::int64_t pages_total = 0;
  // counters
  std::int64_t prompt_tokens = 0;      // computed or found cached
  std::int64_t generation_tokens = 0;
  std::int64_t prefix_queries = 0;     // prompt tokens looked up
  std::int64_t prefix_hits = 0;        // prompt tokens found
  std::int64_t preemptions = 0;
  std::int64_t steps = 0;
  std::int64_t prefill_rows = 0;       // rows computed, by kind
  std::int64_t decode_rows = 0;
  std::int64_t attended_tokens = 0;    // tokens that each computed row attended to, itself included, summed
  std::map<std::string, std::int64_t> finished;  // by reason
  // On devices with several ways through attention, by "route: reason": rows, and prompts, each counted once by the way of its last rows.
  std::map<std::string, std::int64_t> routes, prompt_routes;
  std::map<std::string, double> route_seconds;   // of the device, by route; with EngineOptions::profile_routes
};

}  // namespace keel
