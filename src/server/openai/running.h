// An HTTP request's work in the engine, owned: whatever ends the answer, what still runs is cancelled.
#pragma once

#include <memory>
#include <vector>

#include "server/openai/answer.h"

namespace keel {

// Thread rule: the connections' thread.
class RunningAnswer {
 public:
  // Submits every prompt, or throws RequestError (429, 503, 400) with none left running. `close` ends the connection.
  RunningAnswer(Api& api, const AnswerPlan& plan, std::function<void()> close);
  ~RunningAnswer();
  RunningAnswer(const RunningAnswer&) = delete;
  RunningAnswer& operator=(const RunningAnswer&) = delete;

  bool done() const { return open_choices_ == 0; }
  const Usage& usage() const { return usage_; }
  Usage usage_of(std::size_t index) const;

  struct Part {
    std::size_t index;  // of the choice, over all prompts
    Piece piece;
  };
  // What came since last time; empty after `timeout`. Throws RequestError when the engine gave up.
  boost::asio::awaitable<std::vector<Part>> next(std::chrono::milliseconds timeout);

 private:
  using Clock = std::chrono::steady_clock;
  struct Choice {
    bool begun = false;
    bool ended = false;
    std::int64_t completion_tokens = 0;
    Clock::time_point first, last;  // tokens
  };
  Part take(OutputQueue::Item item);
  void observe(Choice& choice, const OutputQueue::Item& item);

  Api& api_;
  const AnswerPlan& plan_;
  std::shared_ptr<OutputQueue> queue_;
  std::vector<RequestId> ids_;     // [prompts]
  std::vector<int> open_of_;       // [prompts] choices that have not ended
  std::vector<Choice> choices_;    // [prompts · n]
  std::size_t open_choices_;
  Usage usage_;
  Clock::time_point submitted_ = Clock::now();
};

}  // namespace keel
