#include "lab/offline_run.h"

#include <algorithm>
#include <chrono>

#include "base/error.h"

namespace keel {

OfflineRun run_offline(Engine& engine, std::span<const WorkItem> items, double temperature, const std::function<void()>& on_end) {
  using Clock = std::chrono::steady_clock;
  OfflineRun run;
  run.requests.resize(items.size());
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
      if (output.finish == FinishReason::none) return;
      times.ended_s = now;
      if (output.finish == FinishReason::error) times.error = output.error;
      if (on_end) on_end();
    });
    if (submitted.status != SubmitStatus::accepted) fail("request {} of {}: {}", i + 1, items.size(), submitted.message);
  }

  EngineStats seen = before;
  while (engine.has_work()) {
    const double began = now_s();
    engine.step();
    const double seconds = now_s() - began;
    EngineStats stats = engine.stats();
    run.steps.push_back({.seconds = seconds,
                         .prefill_rows = stats.prefill_rows - seen.prefill_rows,
                         .decode_rows = stats.decode_rows - seen.decode_rows,
                         .attended_tokens = stats.attended_tokens - seen.attended_tokens,
                         .logit_rows = stats.generation_tokens - seen.generation_tokens});
    run.most_running = std::max(run.most_running, stats.running);
    seen = std::move(stats);
  }
  run.preemptions = seen.preemptions - before.preemptions;
  run.prefix_hits = seen.prefix_hits - before.prefix_hits;
  for (const auto& [route, rows] : seen.routes) {
    const auto old = before.routes.find(route);
    const std::int64_t added = rows - (old == before.routes.end() ? 0 : old->second);
    if (added > 0) run.routes[route] = added;
  }
  for (const auto& [route, seconds] : seen.route_seconds) {
    const auto old = before.route_seconds.find(route);
    run.route_seconds[route] = seconds - (old == before.route_seconds.end() ? 0 : old->second);
  }
  run.duration_s = duration_of(run.requests);
  return run;
}

StepWork work_of(const ModelConfig& config, const Attestation& attestation) {
  const auto hidden = static_cast<double>(config.hidden), layers = static_cast<double>(config.layers), vocabulary = static_cast<double>(config.vocabulary);
  const auto q_width = static_cast<double>(config.heads * config.head_dim), kv_width = static_cast<double>(config.kv_heads * config.head_dim);
  const double qkv = hidden * (q_width + 2 * kv_width), rest = q_width * hidden + 3 * hidden * static_cast<double>(config.intermediate);
  return {.flops_a_row = 2 * (layers * qkv + (layers - 1) * rest),
          .flops_a_logit_row = 2 * (rest + hidden * vocabulary),
          .flops_an_attended_token = 4 * layers * q_width,
          .weight_bytes = attestation.weight_bytes - attestation.unread_embedding_bytes,
          .bytes_per_token = attestation.bytes_per_token};
}

double PhaseFigures::flops_per_s(const StepWork& work) const {
  return (work.flops_a_row * static_cast<double>(rows) + work.flops_a_logit_row * static_cast<double>(logit_rows) +
          work.flops_an_attended_token * static_cast<double>(attended_tokens)) / seconds;
}

double PhaseFigures::bytes_per_step(const StepWork& work) const {
  return static_cast<double>(work.weight_bytes) + static_cast<double>(attended_tokens * work.bytes_per_token) / static_cast<double>(steps);
}

double PhaseFigures::bytes_per_s(const StepWork& work) const { return bytes_per_step(work) * static_cast<double>(steps) / seconds; }

Phases phases_of(std::span<const StepTime> steps) {
  Phases phases;
  std::vector<double> prefill, decode;
  for (const StepTime& step : steps) {
    const bool prompt = step.prefill_rows > 0;
    if (!prompt && step.decode_rows == 0) continue;  // nothing could run
    PhaseFigures& phase = prompt ? phases.prefill : phases.decode;
    ++phase.steps;
    phase.rows += step.prefill_rows + step.decode_rows;
    phase.attended_tokens += step.attended_tokens;
    phase.logit_rows += step.logit_rows;
    phase.seconds += step.seconds;
    (prompt ? prefill : decode).push_back(step.seconds);
  }
  phases.prefill.step_s = Sample(std::move(prefill));
  phases.decode.step_s = Sample(std::move(decode));
  return phases;
}

}  // namespace keel
