#include "lab/sweep.h"

#include <algorithm>
#include <chrono>

#include "base/error.h"
#include "base/random.h"
#include "lab/sample.h"
#include "lab/workload.h"

namespace keel {

std::vector<SweepCell> sweep_order(const SweepOptions& options, std::int64_t repeat) {
  std::vector<SweepCell> cells;
  for (const std::int64_t context : options.contexts) {
    for (const std::int64_t batch : options.batches) cells.push_back({context, batch});
  }
  const std::uint64_t seed = random_u64(options.seed, static_cast<std::uint64_t>(repeat));
  for (std::size_t i = cells.size(); i > 1; --i) std::swap(cells[i - 1], cells[random_u64(seed, i) % i]);
  return cells;
}

std::int64_t sweep_output(const SweepCell& cell, const SweepOptions& options, const EngineOptions& engine) {
  const std::int64_t room = std::max<std::int64_t>(1, engine.max_num_batched_tokens - cell.batch);
  const std::int64_t prefill_steps = cell.batch == 1 ? 0 : (cell.batch * cell.context + room - 1) / room + cell.batch;
  return prefill_steps + options.warmup_steps + options.steps + 2;
}

std::optional<std::string> cell_problem(const SweepCell& cell, const SweepOptions& options, const EngineOptions& limits, const Attestation& engine) {
  const std::int64_t tokens = cell.context + sweep_output(cell, options, limits);
  const std::int64_t pages = (tokens + engine.page_size - 1) / engine.page_size * cell.batch;
  if (cell.batch > limits.max_num_seqs) return fmt::format("{} sequences are more than --max-num-seqs {}", cell.batch, limits.max_num_seqs);
  if (cell.batch >= limits.max_num_batched_tokens) return fmt::format("{} sequences are not less than --max-num-batched-tokens {}", cell.batch, limits.max_num_batched_tokens);
  if (!limits.enable_chunked_prefill && cell.context > limits.max_num_batched_tokens) return fmt::format("prompts of {} tokens pass --max-num-batched-tokens {} without chunked prefill", cell.context, limits.max_num_batched_tokens);
  if (tokens > engine.max_model_len) return fmt::format("{} tokens a sequence pass the longest context of {}", tokens, engine.max_model_len);
  if (pages > engine.pages) return fmt::format("{} pages of {} tokens are wanted, the cache has {}", pages, engine.page_size, engine.pages);
  return std::nullopt;
}

SweepMeasure measure_cell(Engine& engine, const SweepCell& cell, const SweepOptions& options, const EngineOptions& limits, std::uint64_t seed) {
  using Clock = std::chrono::steady_clock;
  const RandomWorkload work{.prompts = cell.batch, .input_tokens = cell.context, .output_tokens = sweep_output(cell, options, limits), .vocabulary = engine.config().vocabulary};
  std::int64_t begun = 0, ended = 0, context_tokens = 0;
  std::string problem;
  std::vector<RequestId> ids;
  std::vector<bool> has_token(static_cast<std::size_t>(cell.batch));
  for (const WorkItem& item : random_items(work, seed)) {
    Request request{.prompt = item.prompt};
    request.sampling = {.temperature = 0, .max_tokens = item.output_tokens, .ignore_eos = true};
    const std::size_t at = ids.size();
    const Submitted submitted = engine.submit(std::move(request), [&, at](const Output& output) {
      if (!output.tokens.empty() && !has_token[at]) has_token[at] = true, ++begun;
      context_tokens += output.prompt_tokens + output.completion_tokens - static_cast<std::int64_t>(output.tokens.size());
      if (output.finish == FinishReason::none) return;
      ++ended;
      if (problem.empty()) problem = output.error;
    });
    if (submitted.status != SubmitStatus::accepted) fail("context {}, batch {}: {}", cell.context, cell.batch, submitted.message);
    ids.push_back(submitted.id);
  }
  const auto need = [&](bool holds, const char* what) {
    if (!holds) fail("context {}, batch {}: {}{}{}", cell.context, cell.batch, what, problem.empty() ? "" : ": ", problem);
  };
  const EngineStats before = engine.stats();
  while (begun < cell.batch && ended == 0 && engine.has_work()) engine.step();
  for (std::int64_t i = 0; i < options.warmup_steps && ended == 0; ++i) engine.step();
  need(begun == cell.batch && ended == 0, "a sequence ended before the timed steps");
  const EngineStats from = engine.stats();
  context_tokens = 0;
  std::vector<double> step_s;
  double seconds = 0;
  for (std::int64_t i = 0; i < options.steps; ++i) {
    const auto start = Clock::now();
    engine.step();
    step_s.push_back(std::chrono::duration<double>(Clock::now() - start).count());
    seconds += step_s.back();
  }
  const EngineStats to = engine.stats();
  const std::int64_t read = context_tokens;
  need(ended == 0, "a sequence ended within the timed steps");
  need(to.prefill_rows == from.prefill_rows && to.decode_rows - from.decode_rows == cell.batch * options.steps, "the timed steps were not one row a sequence");
  need(to.preemptions == before.preemptions, "a sequence was preempted");
  need(to.prefix_hits == before.prefix_hits, "prompts were found cached");
  for (const RequestId id : ids) engine.cancel(id);
  while (engine.has_work()) engine.step();
  return {.cell = cell, .steps = options.steps, .seconds = seconds, .median_step_s = Sample(std::move(step_s)).median(),
          .mean_context = static_cast<double>(read) / static_cast<double>(cell.batch * options.steps)};
}

}  // namespace keel
