#include "engine/engine.h"

#include <algorithm>
#include <cmath>

#include "base/bytes.h"
#include "base/log.h"
#include "base/option_error.h"
#include "base/random.h"
#include "engine/sampler.h"
#include "kernels/cpu_features.h"

namespace keel {

// What other threads have left for the next step.
struct Engine::Inbox {
  std::vector<std::unique_ptr<Sequence>> submitted;
  std::vector<RequestId> cancelled;
  bool reset_prefix_cache = false;
  bool stopping = false;
  std::int64_t queued = 0;  // sequences waiting in the scheduler or here
  std::int64_t alive = 0;   // sequences not yet finished
  std::uint64_t next_id = 1;
  std::uint64_t arrivals = 0;
};

namespace {

constexpr std::int64_t kCpuBatchedTokens = 2048, kCudaBatchedTokens = 8192;
constexpr const char* kNoMemory = "the server ran out of memory while it computed this request";
constexpr std::int64_t kLogitRows = 64;  // rows of the vocabulary held at once, unless more sequences run

// Bytes of an embedding that no product reads, as the device stores it.
std::int64_t unread_embedding_bytes(const LoadedModel& model, Device device) {
  const WeightMatrix &embedding = model.weights.embedding, &head = model.weights.head;
  if (embedding.data == head.data) return 0;
  return device == Device::cuda ? embedding.rows * embedding.columns * 2 : embedding.bytes();
}

Output output_of(const Sequence& sequence) {
  return {.choice = sequence.choice,
          .admitted = *sequence.admitted,
          .prompt_tokens = sequence.prompt_tokens,
          .cached_tokens = sequence.cached_prompt_tokens,
          .completion_tokens = sequence.output_tokens()};
}

Output failure_of(const Sequence& sequence, std::string reason) {
  Output output = output_of(sequence);
  output.finish = FinishReason::error;
  output.error = std::move(reason);
  return output;
}

}  // namespace

Engine::Engine(LoadedModel model,
               std::shared_ptr<const Tokenizer> tokenizer,
               std::string model_name,
               EngineOptions options)
    : model_(std::move(model)),
      tokenizer_(std::move(tokenizer)),
      options_(std::move(options)),
      workers_(options_.threads),
      inbox_(std::make_unique<Inbox>()) {
  const Device device = choose_device(options_.device);
  if (options_.max_num_batched_tokens == 0) options_.max_num_batched_tokens = device == Device::cuda ? kCudaBatchedTokens : kCpuBatchedTokens;
  check_options(options_);
  if (options_.profile_routes && device != Device::cuda) refuse_option("--profile-routes times the ways through attention on --device cuda; the CPU has one");
  const ModelConfig& config = model_.config;
  const KvGeometry geometry{config.layers, config.kv_heads, config.head_dim, options_.block_size};
  const KvLayout layout(parse_kv_format(options_.kv_cache_dtype, config.dtype), geometry, page_order(device));
  const auto formats = paged_attention_formats();
  if (std::find(formats.begin(), formats.end(), layout.format()) == formats.end()) {
    refuse_option("KV cache type {}: no attention kernel for this pair; `keel inspect kernels` lists those there are",
         to_string(layout.format()));
  }
  KvScales scales = options_.kv_scales.empty()
                        ? KvScales::unit(geometry)
                        : read_calibration(options_.kv_scales, geometry, layout.format());

  std::int64_t context = longest_context(config, options_.max_model_len);
  executor_ = make_executor(device, model_, layout,
                            {.max_tokens = options_.max_num_batched_tokens,
                             .max_sequences = options_.max_num_seqs,
                             .max_logit_rows = std::max(options_.max_num_seqs, kLogitRows),
                             .max_context = context,
                             .graphs = !options_.enforce_eager && !options_.profile_routes,
                             .attention_plans = options_.attention_plans,
                             .profile_routes = options_.profile_routes},
                            workers_);
  if (options_.wrap_executor) executor_ = options_.wrap_executor(std::move(executor_));
  pool_ = std::make_unique<KvPool>(layout, std::move(scales), pool_bytes(device, *executor_, layout, options_, context), page_memory(device));
  executor_->bind(*pool_);
  if (pool_->slots() < context) {
    if (options_.max_model_len > 0) {
      refuse_option("--max-model-len {} does not fit the KV cache of {}, which holds {} tokens in {}", context,
           format_bytes(pool_->physical_bytes()), pool_->slots(), to_string(layout.format()));
    }
    log_warning("max-model-len is {} instead of the model's {}: that is what the KV cache of {} holds", pool_->slots(),
                context, format_bytes(pool_->physical_bytes()));
    context = pool_->slots();
  }
  if (!options_.enable_chunked_prefill && options_.max_num_batched_tokens < context) {
    refuse_option("without chunked prefill --max-num-batched-tokens ({}) must be at least --max-model-len ({})",
         options_.max_num_batched_tokens, context);
  }
  scheduler_ = std::make_unique<Scheduler>(
      *pool_, SchedulerLimits{.max_num_seqs = options_.max_num_seqs,
                              .max_num_batched_tokens = options_.max_num_batched_tokens,
                              .max_model_len = context,
                              .chunked_prefill = options_.enable_chunked_prefill,
                              .prefix_caching = options_.enable_prefix_caching});
  attestation_ = {.model = std::move(model_name),
                  .family = config.family,
                  .weights_format = model_.weights.format,
                  .format = layout.format(),
                  .scales = pool_->scales().description(),
                  .bytes_per_token = layout.bytes_per_token(),
                  .pages = pool_->pages(),
                  .page_size = geometry.page_size,
                  .slots = pool_->slots(),
                  .pool_bytes = pool_->physical_bytes(),
                  .weight_bytes = executor_->weight_bytes(),
                  .scratch_bytes = executor_->scratch_bytes(),
                  .max_model_len = context,
                  .unread_embedding_bytes = unread_embedding_bytes(model_, device),
                  .device_memory = device_memory(device),
                  .device = executor_->description(),
                  .cpu_target = chosen_target(),
                  .threads = workers_.threads()};
  eos_ids_ = config.eos_ids;
  if (tokenizer_ && tokenizer_->eos()) eos_ids_.push_back(*tokenizer_->eos());
  std::sort(eos_ids_.begin(), eos_ids_.end());
  eos_ids_.erase(std::unique(eos_ids_.begin(), eos_ids_.end()), eos_ids_.end());
  // A tokenizer may know more ids than the model has logits for.
  std::erase_if(eos_ids_, [&](TokenId id) { return id < 0 || id >= config.vocabulary; });
  publish_stats();
}

Engine::~Engine() = default;

Submitted Engine::submit(Request request, OutputSink sink) {
  const auto invalid = [](std::string message) { return Submitted{SubmitStatus::invalid, 0, std::move(message)}; };
  const std::int64_t vocabulary = model_.config.vocabulary;
  const auto prompt = static_cast<std::int64_t>(request.prompt.size());
  if (prompt == 0) return invalid("the prompt is empty: wanted at least one token");
  for (TokenId token : request.prompt) {
    if (token < 0 || token >= vocabulary) {
      return invalid(fmt::format("the prompt holds token {}; the vocabulary has ids 0 to {}", token, vocabulary - 1));
    }
  }
  if (std::string problem = request.sampling.problem(vocabulary); !problem.empty()) return invalid(problem);
  if (!request.sampling.stop.empty() && !tokenizer_) return invalid("stop strings need a tokenizer, and the model came without one");
  if (request.n < 1 || request.n > kMaxChoices) return invalid(fmt::format("n must be between 1 and {}, found {}", kMaxChoices, request.n));
  if (request.n > options_.max_queued) {
    return invalid(fmt::format("n must be at most {}, which is all the queue holds (--max-queued), found {}", options_.max_queued, request.n));
  }
  if (request.sampling.max_tokens > attestation_.max_model_len - prompt) {  // their sum may overflow
    return invalid(fmt::format("the longest context here is {} tokens, found {} in the prompt and {} to generate",
                               attestation_.max_model_len, prompt, request.sampling.max_tokens));
  }

  const auto shared = std::make_shared<const Request>(std::move(request));
  const SamplingParams& sampling = shared->sampling;
  const Digest root = prefix_root(pool_->layout(), pool_->scales(), shared->cache_salt);
  std::lock_guard lock(inbox_mutex_);
  if (inbox_->stopping) return {SubmitStatus::stopping, 0, "the server is shutting down"};
  if (inbox_->queued + shared->n > options_.max_queued) {
    return {SubmitStatus::queue_full, 0, fmt::format("{} requests are waiting, which is all the queue holds", inbox_->queued)};
  }
  const RequestId id = inbox_->next_id++;
  const std::uint64_t seed = sampling.seed.value_or(random_u64(options_.seed, id));
  for (int choice = 0; choice < shared->n; ++choice) {
    inbox_->submitted.push_back(std::make_unique<Sequence>(Sequence{
        .request_id = id,
        .choice = choice,
        .request = shared,
        .sink = sink,
        .seed = seed + static_cast<std::uint64_t>(choice),
        .arrival = inbox_->arrivals++,
        .tokens = shared->prompt,
        .prompt_tokens = prompt,
        .prefix_root = root,
        .stream = TokenStream(tokenizer_.get(), sampling.stop, sampling.include_stop_str_in_output, !sampling.skip_special_tokens)}));
  }
  inbox_->queued += shared->n;
  inbox_->alive += shared->n;
  inbox_changed_.notify_all();
  return {SubmitStatus::accepted, id, ""};
}

std::int64_t Engine::queue_room() const {
  std::lock_guard lock(inbox_mutex_);
  return std::max<std::int64_t>(0, options_.max_queued - inbox_->queued);
}

void Engine::cancel(RequestId id) {
  std::lock_guard lock(inbox_mutex_);
  inbox_->cancelled.push_back(id);
  inbox_changed_.notify_all();
}

void Engine::stop() {
  std::lock_guard lock(inbox_mutex_);
  inbox_->stopping = true;
  inbox_changed_.notify_all();
}

void Engine::reset_prefix_cache() {
  std::lock_guard lock(inbox_mutex_);
  inbox_->reset_prefix_cache = true;
}

bool Engine::has_work() const {
  std::lock_guard lock(inbox_mutex_);
  return inbox_->alive > 0 || !inbox_->cancelled.empty();
}

void Engine::wait_for_work(std::chrono::milliseconds timeout) {
  std::unique_lock lock(inbox_mutex_);
  inbox_changed_.wait_for(lock, timeout, [&] { return inbox_->alive > 0 || !inbox_->cancelled.empty() || inbox_->stopping; });
}

EngineStats Engine::stats() const {
  std::lock_guard lock(stats_mutex_);
  return stats_;
}

void Engine::step() {
  take_submissions();
  const Batch batch = scheduler_->next();
  if (!batch.empty()) {
    std::vector<Sampled> sampled;
    StepResult result;
    try {  // none of this changes what the scheduler or the pool knows
      gather_rows(batch);
      result = executor_->forward(rows_, device_samplings(batch));
      sampled = sample_batch(batch, result);
      report_prompts(batch);
    } catch (const std::bad_alloc&) {
      fail_batch(batch, kNoMemory);
      return publish_stats();
    } catch (const OutOfMemory& error) {
      fail_batch(batch, fmt::format("{}: {}", kNoMemory, error.what()));
      return publish_stats();
    }
    scheduler_->commit(batch);
    count_rows(batch, sampled, result.routed);
    emit(batch, sampled);
  }
  publish_stats();
}

void Engine::fail_batch(const Batch& batch, const std::string& reason) {
  log_warning("{}: {} sequences end", reason, batch.entries.size());
  for (const BatchEntry& entry : batch.entries) {
    Output output = failure_of(*entry.sequence, reason);
    output.engine_failed = true;
    send(*entry.sequence, output);
  }
}

void Engine::take_submissions() {
  std::lock_guard lock(inbox_mutex_);
  for (auto& sequence : inbox_->submitted) scheduler_->add(std::move(sequence));
  inbox_->submitted.clear();
  for (RequestId id : inbox_->cancelled) {
    const std::int64_t removed = scheduler_->remove(id);
    inbox_->alive -= removed;
    if (removed > 0) {
      std::lock_guard stats_lock(stats_mutex_);
      stats_.finished[std::string(name(FinishReason::abort))] += removed;
    }
  }
  inbox_->cancelled.clear();
  if (std::exchange(inbox_->reset_prefix_cache, false)) pool_->clear_cached();
}

void Engine::gather_rows(const Batch& batch) {
  const std::int64_t page_size = pool_->layout().geometry().page_size;
  rows_.clear();
  for (const auto& [sequence, tokens, wants_logits] : batch.entries) {
    const auto first_row = static_cast<std::int64_t>(rows_.tokens.size());
    for (std::int64_t i = 0; i < tokens; ++i) {
      const std::int64_t position = sequence->computed + i;
      rows_.tokens.push_back(sequence->tokens[position]);
      rows_.positions.push_back(static_cast<std::int32_t>(position));
      rows_.slots.push_back(sequence->pages[position / page_size] * page_size + position % page_size);
    }
    rows_.sequences.push_back({.first_row = first_row,
                               .rows = tokens,
                               .context = sequence->computed + tokens,
                               .pages = sequence->pages.data()});
    if (wants_logits) rows_.logit_rows.push_back(first_row + tokens - 1);
    rows_.keep_all = rows_.keep_all || (sequence->request->sampling.prompt_logprobs && sequence->output_tokens() == 0);
  }
}

// One a logit row: what a device's own sampler can do for the request, or none when it wants more.
std::vector<std::optional<DeviceSampling>> Engine::device_samplings(const Batch& batch) const {
  std::vector<std::optional<DeviceSampling>> samplings;
  for (const auto& [sequence, tokens, wants_logits] : batch.entries) {
    if (!wants_logits) continue;
    const SamplingParams& p = sequence->request->sampling;
    const bool host = p.logprobs || !p.logit_bias.empty() || p.repetition_penalty != 1 || p.presence_penalty != 0 ||
                      p.frequency_penalty != 0 || !forbidden(*sequence).empty();
    if (host) {
      samplings.push_back(std::nullopt);
    } else {
      samplings.push_back(DeviceSampling{.temperature = p.temperature, .top_p = p.top_p,
                                         .min_p = p.min_p,
                                         .top_k = static_cast<std::int32_t>(std::clamp<std::int64_t>(p.top_k, 0, model_.config.vocabulary)),
                                         .seed = sequence->seed, .draw = static_cast<std::uint64_t>(sequence->output_tokens())});
    }
  }
  return samplings;
}

// What may not be chosen yet: whatever would end the answer before min_tokens.
std::vector<TokenId> Engine::forbidden(const Sequence& sequence) const {
  const SamplingParams& params = sequence.request->sampling;
  if (sequence.output_tokens() >= params.min_tokens) return {};
  std::vector<TokenId> ids = params.stop_token_ids;
  ids.insert(ids.end(), eos_ids_.begin(), eos_ids_.end());
  return ids;
}

// One result an entry; those that want no logits keep token -1.
std::vector<Sampled> Engine::sample_batch(const Batch& batch, const StepResult& result) {
  std::vector<std::size_t> wanting;
  for (std::size_t i = 0; i < batch.entries.size(); ++i) {
    if (batch.entries[i].wants_logits) wanting.push_back(i);
  }
  std::vector<Sampled> sampled(batch.entries.size());
  const std::vector<std::optional<DeviceSampling>> on_device = device_samplings(batch);
  const std::size_t vocabulary = model_.config.vocabulary;
  workers_.parallel_for(static_cast<std::int64_t>(wanting.size()), [&](std::int64_t row, int) {
    if (!result.tokens.empty() && on_device[row]) {
      sampled[wanting[row]] = {.token = result.tokens[row], .report = std::nullopt};
      return;
    }
    const Sequence& sequence = *batch.entries[wanting[row]].sequence;
    const std::vector<TokenId> never = forbidden(sequence);
    sampled[wanting[row]] = sample({.logits = result.logits.subspan(row * vocabulary, vocabulary),
                                    .params = sequence.request->sampling,
                                    .tokens = sequence.tokens,
                                    .prompt_tokens = sequence.prompt_tokens,
                                    .forbidden = never,
                                    .seed = sequence.seed});
  });
  return sampled;
}

// Log-probabilities of prompt tokens, for the requests that want them: row of position p speaks of token p + 1.
void Engine::report_prompts(const Batch& batch) {
  const std::size_t vocabulary = model_.config.vocabulary;
  for (std::size_t i = 0; i < batch.entries.size(); ++i) {
    Sequence* const sequence = batch.entries[i].sequence;
    const std::int64_t tokens = batch.entries[i].tokens;
    const auto& count = sequence->request->sampling.prompt_logprobs;
    if (!count || sequence->output_tokens() > 0) continue;  // reported with the first token, even if computed again
    auto& reports = sequence->prompt_reports;
    if (reports.empty()) reports.push_back({.chosen = {sequence->tokens[0], NAN, 0}, .top = {}});
    std::vector<std::int64_t> rows;
    for (std::int64_t row = 0; row < tokens; ++row) {
      const std::int64_t target = sequence->computed + row + 1;
      if (target < sequence->prompt_tokens && target >= static_cast<std::int64_t>(reports.size())) {
        rows.push_back(rows_.sequences[i].first_row + row);
      }
    }
    for (std::size_t done = 0; done < rows.size();) {
      const std::size_t some = std::min<std::size_t>(rows.size() - done, executor_->max_logit_rows());
      const auto logits = executor_->logits(std::span(rows).subspan(done, some));
      std::vector<TokenReport> found(some);
      const std::size_t first = reports.size();
      workers_.parallel_for(static_cast<std::int64_t>(some), [&](std::int64_t row, int) {
        found[row] = report_token(logits.subspan(row * vocabulary, vocabulary), sequence->tokens[first + row], *count);
      });
      reports.insert(reports.end(), found.begin(), found.end());
      done += some;
    }
  }
}

void Engine::emit(const Batch& batch, const std::vector<Sampled>& sampled) {
  for (std::size_t i = 0; i < batch.entries.size(); ++i) {
    Sequence& sequence = *batch.entries[i].sequence;
    if (!batch.entries[i].wants_logits) continue;
    send(sequence, commit_token(sequence, sampled[i]));
  }
}

void Engine::send(Sequence& sequence, const Output& output) {
  const bool ended = output.finish != FinishReason::none;
  if (ended) finished(output.finish);
  sequence.sink(output);
  if (ended) scheduler_->finish(sequence);
}

// Appends the token and decides whether the choice ends with it.
Output Engine::commit_token(Sequence& sequence, const Sampled& sampled) {
  const SamplingParams& params = sequence.request->sampling;
  if (sampled.token < 0) {
    return failure_of(sequence, "the model gave no finite logit; its weights or the KV cache type may not suit this prompt");
  }
  Output output = output_of(sequence);
  if (sequence.output_tokens() == 0) output.prompt_reports = std::move(sequence.prompt_reports);
  sequence.tokens.push_back(sampled.token);
  output.tokens.push_back(sampled.token);
  if (sampled.report) output.reports.push_back(*sampled.report);
  output.completion_tokens = sequence.output_tokens();

  const bool may_stop = sequence.output_tokens() >= params.min_tokens;
  const auto holds = [&](const std::vector<TokenId>& ids) { return std::find(ids.begin(), ids.end(), sampled.token) != ids.end(); };
  if (may_stop && holds(params.stop_token_ids)) {
    output.finish = FinishReason::stop;
    output.stop_reason = std::to_string(sampled.token);
  } else if (may_stop && !params.ignore_eos && holds(eos_ids_)) {
    output.finish = FinishReason::stop;
  } else {
    TokenStream::Step text = sequence.stream.push(sampled.token, may_stop);
    output.text = std::move(text.text);
    if (text.stopped) {
      output.finish = FinishReason::stop;
      output.stop_reason = *text.stopped;
      return output;
    }
    if (sequence.output_tokens() >= params.max_tokens) output.finish = FinishReason::length;
  }
  if (output.finish != FinishReason::none) output.text += sequence.stream.finish();
  return output;
}

void Engine::finished(FinishReason reason) {
  {
    std::lock_guard lock(stats_mutex_);
    ++stats_.finished[std::string(name(reason))];
  }
  std::lock_guard lock(inbox_mutex_);
  --inbox_->alive;
}

void Engine::count_rows(const Batch& batch, const std::vector<Sampled>& sampled, std::span<const RoutedSequence> routed) {
  std::lock_guard lock(stats_mutex_);
  ++stats_.steps;
  for (std::size_t i = 0; i < batch.entries.size(); ++i) {
    const auto& [sequence, tokens, wants_logits] = batch.entries[i];
    // After commit: a decode entry has computed all that was known, more than its prompt.
    const bool decode = tokens == 1 && sequence->computed > sequence->prompt_tokens;
    (decode ? stats_.decode_rows : stats_.prefill_rows) += tokens;
    stats_.attended_tokens += tokens * (sequence->computed - tokens) + tokens * (tokens + 1) / 2;
    stats_.generation_tokens += sampled[i].token >= 0;
    if (wants_logits && sequence->output_tokens() == 0) {
      stats_.prompt_tokens += sequence->prompt_tokens;
      if (!routed.empty()) ++stats_.prompt_routes[fmt::format("{}: {}", name(routed[i].route), routed[i].reason)];
      if (options_.enable_prefix_caching && !sequence->request->sampling.prompt_logprobs) {
        stats_.prefix_queries += sequence->prompt_tokens;
        stats_.prefix_hits += sequence->cached_prompt_tokens;
      }
    }
  }
}

void Engine::publish_stats() {
  {
    std::lock_guard lock(inbox_mutex_);
    inbox_->queued = scheduler_->waiting() + static_cast<std::int64_t>(inbox_->submitted.size());
  }
  std::lock_guard lock(stats_mutex_);
  stats_.running = scheduler_->running();
  stats_.waiting = scheduler_->waiting();
  stats_.pages_held = pool_->held();
  stats_.pages_cached = pool_->cached();
  stats_.pages_total = pool_->pages();
  stats_.preemptions = scheduler_->preemptions();
  stats_.routes = executor_->routes();
  stats_.route_seconds = executor_->route_seconds();
}

}  // namespace keel
