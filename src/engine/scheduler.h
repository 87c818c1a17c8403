// Who runs in the next step, and with how many tokens: decode rows first, then prompts being prefilled, then admissions.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "engine/sequence.h"
#include "engine/stats.h"
#include "kv/pool.h"

namespace keel {

// One sequence's share of a step: `tokens` tokens from its position `computed` on. They reach the end of what is known
// exactly when logits are wanted.
struct BatchEntry {
  Sequence* sequence;
  std::int64_t tokens;
  bool wants_logits;
};

struct Batch {
  std::vector<BatchEntry> entries;  // decode entries first
  std::int64_t tokens = 0;
  bool empty() const { return entries.empty(); }
};

struct SchedulerLimits {
  std::int64_t max_num_seqs;
  std::int64_t max_num_batched_tokens;
  std::int64_t max_model_len;
  bool chunked_prefill;
  bool prefix_caching;
};

class Scheduler {
 public:
  Scheduler(KvPool& pool, SchedulerLimits limits);
  ~Scheduler();

  void add(std::unique_ptr<Sequence> sequence);
  // Removes the request's sequences, running or waiting, and frees their pages; says how many there were.
  std::int64_t remove(RequestId request);

  // Reserves pages for the batch; when they run out, preempts the latest arrivals (recompute later).
  //
  // Who is admitted: the first that waits, if the pool holds what it knows and, beside that, the next kForesightTokens of it and of
  // each running sequence, none counted past its prompt and max_tokens. So nobody is preempted within kForesightTokens steps of an
  // admission, answers up to that long are admitted exactly as many as fit, and long answers that may end early hold no room yet.
  static constexpr std::int64_t kForesightTokens = 256;
  Batch next();
  // Counts the batch's tokens as cached, publishes full pages.
  void commit(const Batch& batch);
  // Frees a finished sequence.
  void finish(Sequence& sequence);

  bool idle() const { return running_.empty() && waiting_.empty(); }
  std::int64_t running() const { return static_cast<std::int64_t>(running_.size()); }
  std::int64_t waiting() const { return static_cast<std::int64_t>(waiting_.size()); }
  std::int64_t preemptions() const { return preemptions_; }

 private:
  bool reserve(Sequence& sequence, std::int64_t tokens);
  std::int64_t foreseen_pages(const Sequence& sequence) const;  // that it does not hold yet
  void preempt(Sequence& sequence);
  bool admit(Batch& batch, std::int64_t& foreseen_pages);  // of all that run
  void find_cached_prefix(Sequence& sequence);
  void release_pages(Sequence& sequence);

  KvPool& pool_;
  SchedulerLimits limits_;
  std::deque<std::unique_ptr<Sequence>> waiting_;
  std::vector<std::unique_ptr<Sequence>> running_;  // in order of arrival
  std::int64_t preemptions_ = 0;
};

}  // namespace keel
