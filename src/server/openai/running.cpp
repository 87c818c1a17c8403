#include "server/openai/running.h"

#include "base/log.h"

namespace keel {
namespace {

double seconds(std::chrono::steady_clock::duration time) { return std::chrono::duration<double>(time).count(); }

[[noreturn]] void refuse_for_now(const std::string& message) {
  throw RequestError({429, "too many requests are waiting: " + message, "", "rate_limit_exceeded"});
}

[[noreturn]] void refuse_submission(const Submitted& submitted) {
  switch (submitted.status) {
    case SubmitStatus::queue_full: refuse_for_now(submitted.message);
    case SubmitStatus::stopping: throw RequestError({503, "the server is shutting down"});
    default: throw RequestError({400, submitted.message});
  }
}

// Before anything is submitted: a request that will not be taken whole may not fill the queue first.
void check_queue(const Engine& engine, const AnswerPlan& plan) {
  const auto choices = static_cast<std::int64_t>(plan.requests.size()) * plan.n;
  if (choices > engine.max_queued()) {
    const std::string param = plan.n > engine.max_queued() ? "n" : "prompt";
    refuse(param, fmt::format("{}: wanted at most {} choices (prompts times n), which is all the queue holds (--max-queued), found {}",
                              param, engine.max_queued(), choices));
  }
  if (const std::int64_t room = engine.queue_room(); choices > room) {
    refuse_for_now(fmt::format("the queue has room for {} of {} choices", room, choices));
  }
}

}  // namespace

RunningAnswer::RunningAnswer(Api& api, const AnswerPlan& plan, std::function<void()> close)
    : api_(api),
      plan_(plan),
      open_of_(plan.requests.size(), plan.n),
      choices_(plan.requests.size() * static_cast<std::size_t>(plan.n)),
      open_choices_(choices_.size()) {
  check_queue(api.engine, plan);
  const auto overflow = [&metrics = api.metrics, close = std::move(close), id = plan.id] {
    log_warning("{}: the client does not read its answer; cancelled", id);
    metrics.overflowed();
    close();
  };
  // A step gives each choice one output, so the bound grows with them.
  queue_ = std::make_shared<OutputQueue>(api.io, api.options.max_backlog_outputs * choices_.size(), overflow);
  for (std::size_t prompt = 0; prompt < plan.requests.size(); ++prompt) {
    // Weak: an engine that failed keeps its sequences, and with them this, past the end of the io_context that the queue needs.
    const Submitted submitted =
        api.engine.submit(plan.requests[prompt], [queue = std::weak_ptr(queue_), prompt](const Output& output) {
          if (const auto open = queue.lock()) open->push(prompt, output);
        });
    if (submitted.status != SubmitStatus::accepted) {
      for (const RequestId id : ids_) api.engine.cancel(id);
      refuse_submission(submitted);
    }
    ids_.push_back(submitted.id);
    usage_.prompt_tokens += static_cast<std::int64_t>(plan.requests[prompt].prompt.size());
  }
  api.open.insert(queue_.get());
}

RunningAnswer::~RunningAnswer() {
  api_.open.erase(queue_.get());
  for (std::size_t prompt = 0; prompt < ids_.size(); ++prompt) {
    if (open_of_[prompt] > 0) api_.engine.cancel(ids_[prompt]);
  }
}

Usage RunningAnswer::usage_of(std::size_t index) const {
  const std::size_t prompt = index / static_cast<std::size_t>(plan_.n);
  return {.prompt_tokens = static_cast<std::int64_t>(plan_.requests[prompt].prompt.size()),
          .completion_tokens = choices_[index].completion_tokens};
}

void RunningAnswer::observe(Choice& choice, const OutputQueue::Item& item) {
  if (!item.output.tokens.empty()) {
    if (choice.completion_tokens == 0) {
      choice.first = item.when;
      api_.metrics.first_token(seconds(item.when - submitted_));
    } else {
      api_.metrics.next_token(seconds(item.when - choice.last));
    }
    choice.last = item.when;
  }
  if (item.output.finish == FinishReason::stop || item.output.finish == FinishReason::length) {
    const auto made = choice.completion_tokens + static_cast<std::int64_t>(item.output.tokens.size());
    api_.metrics.finished({.queue = seconds(item.output.admitted - submitted_),
                           .prefill = seconds(choice.first - item.output.admitted),
                           .decode = seconds(choice.last - choice.first),
                           .prompt_tokens = static_cast<std::int64_t>(plan_.requests[item.prompt].prompt.size()),
                           .generation_tokens = made});
  }
}

RunningAnswer::Part RunningAnswer::take(OutputQueue::Item item) {
  Output& output = item.output;
  const std::size_t index = item.prompt * static_cast<std::size_t>(plan_.n) + static_cast<std::size_t>(output.choice);
  Choice& choice = choices_.at(index);
  observe(choice, item);
  Part part{index, {.first = !choice.begun}};
  if (part.piece.first && output.choice == 0) usage_.cached_tokens += output.cached_tokens;
  choice.begun = true;
  if (!plan_.prompt_only) {
    const auto made = static_cast<std::int64_t>(output.tokens.size());
    choice.completion_tokens += made;
    usage_.completion_tokens += made;
    part.piece.text = std::move(output.text);
    part.piece.reports = std::move(output.reports);
    part.piece.stop_reason = std::move(output.stop_reason);
  }
  part.piece.prompt_reports = std::move(output.prompt_reports);
  part.piece.finish = output.finish;
  if (plan_.prompt_only && output.finish == FinishReason::stop) part.piece.finish = FinishReason::length;
  if (output.finish != FinishReason::none && !choice.ended) {
    choice.ended = true;
    --open_choices_;
    --open_of_[item.prompt];
  }
  if (output.finish == FinishReason::error) throw RequestError({500, output.error});
  if (output.finish == FinishReason::abort) throw RequestError({503, "the request was cancelled by the server"});
  return part;
}

boost::asio::awaitable<std::vector<RunningAnswer::Part>> RunningAnswer::next(std::chrono::milliseconds timeout) {
  std::vector<OutputQueue::Item> items = co_await queue_->take(timeout);
  if (queue_->ended()) throw RequestError(*queue_->ended());
  std::vector<Part> parts;
  parts.reserve(items.size());
  for (OutputQueue::Item& item : items) parts.push_back(take(std::move(item)));
  co_return parts;
}

}  // namespace keel
