#include "server/openai/generate.h"

#include "server/openai/logprobs.h"
#include "server/openai/running.h"
#include "server/sse.h"

namespace keel {
namespace {

void append(Piece& whole, Piece&& part) {
  whole.text += part.text;
  whole.reports.insert(whole.reports.end(), part.reports.begin(), part.reports.end());
  if (!part.prompt_reports.empty()) whole.prompt_reports = std::move(part.prompt_reports);
  whole.finish = part.finish;
  whole.stop_reason = std::move(part.stop_reason);
}

asio::awaitable<void> answer_whole(Api& api, const AnswerPlan& plan, RunningAnswer& running, Reply& reply) {
  std::vector<Piece> pieces(plan.requests.size() * static_cast<std::size_t>(plan.n));
  while (!running.done()) {
    std::vector<RunningAnswer::Part> parts = co_await running.next(api.options.ping_interval);
    for (RunningAnswer::Part& part : parts) append(pieces[part.index], std::move(part.piece));
  }
  Json answer = envelope(api, plan, false);
  Json choices = Json::array();
  for (std::size_t index = 0; index < pieces.size(); ++index) {
    choices.push_back(choice_json(api.tokenizer, plan, index, pieces[index]));
  }
  answer["choices"] = std::move(choices);
  answer["usage"] = usage_json(running.usage());
  if (plan.endpoint == Endpoint::chat && plan.prompt_logprobs) {
    answer["prompt_logprobs"] = prompt_logprobs(api.tokenizer, pieces.front().prompt_reports);
  }
  co_await reply.send(json_response(answer));
}

// A chunk up to its choices: the same for all of an answer, so made once.
std::string chunk_head(const Api& api, const AnswerPlan& plan) {
  std::string head = to_text(envelope(api, plan, true));
  head.back() = ',';  // instead of the brace
  return head + "\"choices\":[";
}

// The events of some parts. A part without anything to show makes none.
std::string events_of(Api& api,
                      const AnswerPlan& plan,
                      std::string_view head,
                      const RunningAnswer& running,
                      std::vector<RunningAnswer::Part>& parts,
                      std::vector<std::int64_t>& offsets) {
  std::string events;
  for (auto& [index, piece] : parts) {
    if (piece.text.empty() && piece.reports.empty() && piece.finish == FinishReason::none && !piece.first) continue;
    piece.text_offset = offsets[index];
    std::string chunk(head);
    chunk += to_text(choice_json(api.tokenizer, plan, index, piece)) + ']';
    offsets[index] = piece.text_offset;
    if (plan.include_usage) {
      chunk += ",\"usage\":" + to_text(plan.continuous_usage ? usage_json(running.usage_of(index)) : Json());
    }
    append_event(events, chunk + '}');
  }
  return events;
}

asio::awaitable<void> answer_stream(Api& api, const AnswerPlan& plan, RunningAnswer& running, Reply& reply) {
  co_await reply.begin_events();
  const std::string head = chunk_head(api, plan);
  std::vector<std::int64_t> offsets(plan.requests.size() * static_cast<std::size_t>(plan.n));
  std::optional<ApiError> failure;
  while (!running.done() && !failure) {
    std::string events;
    try {
      std::vector<RunningAnswer::Part> parts = co_await running.next(api.options.ping_interval);
      events = parts.empty() ? std::string(kEventsPing) : events_of(api, plan, head, running, parts, offsets);
    } catch (const RequestError& error) {
      failure = error.error();
    }
    if (!failure) co_await reply.write_events(events);
  }
  std::string last;
  if (failure) {
    append_event(last, to_text(error_json(*failure)));
  } else if (plan.include_usage) {
    append_event(last, head + "],\"usage\":" + to_text(usage_json(running.usage())) + '}');
  }
  last += kEventsDone;
  co_await reply.write_events(last);
  co_await reply.end_events();
}

}  // namespace

asio::awaitable<void> generate(Api& api, AnswerPlan plan, Reply& reply) {
  RunningAnswer running(api, plan, reply.close());
  if (plan.stream) {
    co_await answer_stream(api, plan, running, reply);
  } else {
    co_await answer_whole(api, plan, running, reply);
  }
}

}  // namespace keel
