#include "engine/scheduler.h"

#include <algorithm>

#include "base/error.h"

namespace keel {
namespace {

std::int64_t pages_for(std::int64_t tokens, std::int64_t page_size) { return (tokens + page_size - 1) / page_size; }

// Both queues are kept in order of arrival, so that a preempted sequence returns to its old place.
template <class Queue>
void insert_by_arrival(Queue& queue, std::unique_ptr<Sequence> sequence) {
  const auto at = std::upper_bound(queue.begin(), queue.end(), sequence,
                                   [](const auto& a, const auto& b) { return a->arrival < b->arrival; });
  queue.insert(at, std::move(sequence));
}

}  // namespace

Scheduler::Scheduler(KvPool& pool, SchedulerLimits limits) : pool_(pool), limits_(limits) {}
Scheduler::~Scheduler() = default;

void Scheduler::add(std::unique_ptr<Sequence> sequence) { insert_by_arrival(waiting_, std::move(sequence)); }

std::int64_t Scheduler::remove(RequestId request) {
  for (auto& sequence : running_) {
    if (sequence->request_id == request) release_pages(*sequence);
  }
  const auto of_request = [&](const auto& sequence) { return sequence->request_id == request; };
  return static_cast<std::int64_t>(std::erase_if(running_, of_request) + std::erase_if(waiting_, of_request));
}

Batch Scheduler::next() {
  Batch batch;
  const auto take = [&](Sequence& sequence, std::int64_t tokens) {
    batch.entries.push_back({&sequence, tokens, tokens == sequence.uncomputed()});
    batch.tokens += tokens;
  };
  // Decode rows, earliest arrival first. Only they need new pages; the latest arrival gives way when there are none. It
  // is never one that is in the batch already, since those arrived earlier than the one that asks.
  for (std::size_t i = 0; i < running_.size(); ++i) {
    Sequence& sequence = *running_[i];
    if (!sequence.decoding()) continue;
    bool reserved = reserve(sequence, 1);
    while (!reserved && running_.size() > i + 1) {
      preempt(*running_.back());
      reserved = reserve(sequence, 1);
    }
    if (!reserved) {
      preempt(sequence);
      break;
    }
    take(sequence, 1);
  }
  // Prompts being prefilled: their pages were reserved when they were admitted.
  for (auto& sequence : running_) {
    const std::int64_t budget = limits_.max_num_batched_tokens - batch.tokens;
    if (!sequence->decoding() && budget > 0) take(*sequence, std::min(sequence->uncomputed(), budget));
  }
  std::int64_t foreseen = 0;
  for (const auto& sequence : running_) foreseen += foreseen_pages(*sequence);
  while (admit(batch, foreseen)) {
  }
  return batch;
}

bool Scheduler::admit(Batch& batch, std::int64_t& foreseen) {
  if (running() >= limits_.max_num_seqs || batch.tokens >= limits_.max_num_batched_tokens) return false;
  // A choice whose sibling is computing the same prompt waits for it, to find the pages in the prefix index.
  const auto has_prefilling_sibling = [&](const Sequence& sequence) {
    return limits_.prefix_caching && std::any_of(running_.begin(), running_.end(), [&](const auto& other) {
             return other->request_id == sequence.request_id && !other->decoding();
           });
  };
  const auto next = std::find_if(waiting_.begin(), waiting_.end(),
                                 [&](const auto& sequence) { return !has_prefilling_sibling(*sequence); });
  if (next == waiting_.end()) return false;

  Sequence& sequence = **next;
  find_cached_prefix(sequence);
  const std::int64_t budget = limits_.max_num_batched_tokens - batch.tokens;
  const bool whole_fits = sequence.uncomputed() <= budget;
  if ((!whole_fits && !limits_.chunked_prefill) || foreseen + foreseen_pages(sequence) > pool_.available()) {
    release_pages(sequence);
    return false;
  }
  check(reserve(sequence, sequence.uncomputed()), "what is known of a sequence is part of what is foreseen");
  foreseen += foreseen_pages(sequence);
  if (!sequence.admitted) {
    sequence.admitted = std::chrono::steady_clock::now();
    sequence.cached_prompt_tokens = sequence.computed;
  }
  const std::int64_t tokens = std::min(sequence.uncomputed(), budget);
  batch.entries.push_back({&sequence, tokens, tokens == sequence.uncomputed()});
  batch.tokens += tokens;
  std::unique_ptr<Sequence> admitted = std::move(*next);
  waiting_.erase(next);
  insert_by_arrival(running_, std::move(admitted));
  return true;
}

// False, and nothing changed, where pages run out.
bool Scheduler::reserve(Sequence& sequence, std::int64_t tokens) {
  const std::int64_t wanted = pages_for(sequence.computed + tokens, pool_.layout().geometry().page_size);
  const std::int64_t missing = wanted - static_cast<std::int64_t>(sequence.pages.size());
  if (missing > pool_.available()) return false;
  for (std::int64_t i = 0; i < missing; ++i) sequence.pages.push_back(*pool_.allocate());
  return true;
}

std::int64_t Scheduler::foreseen_pages(const Sequence& sequence) const {
  const auto known = static_cast<std::int64_t>(sequence.tokens.size());
  const std::int64_t longest = sequence.prompt_tokens + sequence.request->sampling.max_tokens - 1;  // the last token is never cached
  const std::int64_t pages = pages_for(std::min(known + kForesightTokens, longest), pool_.layout().geometry().page_size);
  return pages - static_cast<std::int64_t>(sequence.pages.size());
}

void Scheduler::preempt(Sequence& sequence) {
  release_pages(sequence);
  ++preemptions_;
  const auto at = std::find_if(running_.begin(), running_.end(), [&](const auto& s) { return s.get() == &sequence; });
  std::unique_ptr<Sequence> preempted = std::move(*at);
  running_.erase(at);
  insert_by_arrival(waiting_, std::move(preempted));
}

void Scheduler::find_cached_prefix(Sequence& sequence) {
  if (!limits_.prefix_caching || sequence.request->sampling.prompt_logprobs) return;
  const std::int64_t page_size = pool_.layout().geometry().page_size;
  // The last token is always computed, since its logits are wanted.
  const std::int64_t full_pages = (static_cast<std::int64_t>(sequence.tokens.size()) - 1) / page_size;
  for (std::int64_t page = 0; page < full_pages; ++page) {
    const Digest& previous = page == 0 ? sequence.prefix_root : sequence.page_hashes[page - 1];
    if (page == static_cast<std::int64_t>(sequence.page_hashes.size())) {
      sequence.page_hashes.push_back(
          prefix_hash(previous, std::span(sequence.tokens).subspan(page * page_size, page_size)));
    }
    const auto found = pool_.find(sequence.page_hashes[page]);
    if (!found) break;
    sequence.pages.push_back(*found);
  }
  sequence.computed = static_cast<std::int64_t>(sequence.pages.size()) * page_size;
  sequence.published_pages = static_cast<std::int64_t>(sequence.pages.size());
}

void Scheduler::commit(const Batch& batch) {
  const std::int64_t page_size = pool_.layout().geometry().page_size;
  for (const BatchEntry& entry : batch.entries) {
    Sequence& sequence = *entry.sequence;
    sequence.computed += entry.tokens;
    if (!limits_.prefix_caching) continue;
    for (std::int64_t page = sequence.published_pages; page < sequence.computed / page_size; ++page) {
      if (page == static_cast<std::int64_t>(sequence.page_hashes.size())) {
        const Digest& previous = page == 0 ? sequence.prefix_root : sequence.page_hashes[page - 1];
        sequence.page_hashes.push_back(
            prefix_hash(previous, std::span(sequence.tokens).subspan(page * page_size, page_size)));
      }
      pool_.publish(sequence.pages[page], sequence.page_hashes[page]);
      sequence.published_pages = page + 1;
    }
  }
}

void Scheduler::finish(Sequence& sequence) {
  release_pages(sequence);
  std::erase_if(running_, [&](const auto& other) { return other.get() == &sequence; });
}

void Scheduler::release_pages(Sequence& sequence) {
  // Last page first: the least recently released is taken first, and a prefix is worth more than what follows it.
  for (auto page = sequence.pages.rbegin(); page != sequence.pages.rend(); ++page) pool_.release(*page);
  sequence.pages.clear();
  sequence.computed = 0;
  sequence.published_pages = 0;
}

}  // namespace keel
