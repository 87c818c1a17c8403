#include "lab/offline_run.h"

#include <chrono>

#include "base/error.h"

namespace keel {

OfflineRun run_offline(Engine& engine, std::span<const WorkItem> items, double temperature, const std::function<void()>& on_end) {
  using Clock = std::chrono::steady_clock;
  OfflineRun run;
  run.requests.resize(items.size());
  StepTime step;
  const EngineStats before = engine.stats();
  const auto start = Clock::now();
  const auto now_s = [&] { return std::chrono::duration<double>(Clock::now() - start).count(); };

  for (std::size_t i = 0; i < items.size(); ++i) {
    Request request{.prompt = items[i].prompt};
    request.sampling = {.temperature = temperature, .max_tokens = items[i].output_tokens, .ignore_eos = true};
    RequestTimes& times = run.requests[i];
    times.sent_s = times.due_s = now_s();
    const Submitted submitted = engine.submit(std::move(request), [&](const Output& output) {
      const double now = now_s();
      times.token_s.insert(times.token_s.end(), output.tokens.size(), now);
      times.prompt_tokens = output.prompt_tokens;
      times.output_tokens = output.completion_tokens;
      // The newest token is not cached yet.
      step.context_tokens += output.prompt_tokens + output.completion_tokens - static_cast<std::int64_t>(output.tokens.size());
      if (output.finish == FinishReason::none) return;
      times.ended_s = now;
      if (output.finish == FinishReason::error) times.error = output.error;
      if (on_end) on_end();
    });
    if (submitted.status != SubmitStatus::accepted) fail("request {} of {}: {}", i + 1, items.size(), submitted.message);
  }

  EngineStats seen = before;
  while (engine.has_work()) {
    step = {};
    const double began = now_s();
    engine.step();
    step.seconds = now_s() - began;
    EngineStats stats = engine.stats();
    step.prefill_rows = stats.prefill_rows - seen.prefill_rows;
    step.decode_rows = stats.decode_rows - seen.decode_rows;
    run.steps.push_back(step);
    seen = std::move(stats);
  }
  run.preemptions = seen.preemptions - before.preemptions;
  run.prefix_hits = seen.prefix_hits - before.prefix_hits;
  for (const auto& [route, rows] : seen.routes) {
    const auto old = before.routes.find(route);
    const std::int64_t added = rows - (old == before.routes.end() ? 0 : old->second);
    if (added > 0) run.routes[route] = added;
  }
  run.duration_s = duration_of(run.requests);
  return run;
}

double PhaseFigures::bytes_per_step(const Attestation& attestation) const {
  return static_cast<double>(attestation.weight_bytes) +
         static_cast<double>(context_tokens * attestation.bytes_per_token) / static_cast<double>(steps);
}

double PhaseFigures::bytes_per_s(const Attestation& attestation) const {
  return bytes_per_step(attestation) * static_cast<double>(steps) / seconds;
}

Phases phases_of(std::span<const StepTime> steps) {
  Phases phases;
  std::vector<double> prefill, decode;
  for (const StepTime& step : steps) {
    const bool prompt = step.prefill_rows > 0;
    if (!prompt && step.decode_rows == 0) continue;  // nothing could run
    PhaseFigures& phase = prompt ? phases.prefill : phases.decode;
    ++phase.steps;
    phase.rows += step.prefill_rows + step.decode_rows;
    phase.context_tokens += step.context_tokens;
    phase.seconds += step.seconds;
    (prompt ? prefill : decode).push_back(step.seconds);
  }
  phases.prefill.step_s = Sample(std::move(prefill));
  phases.decode.step_s = Sample(std::move(decode));
  return phases;
}

}  // namespace keel
