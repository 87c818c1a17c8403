// Documents as cached decode: what stands before the first target is computed as prompt chunks, every target's logits come from a
// decode step that reads the cache. Several arms (formats, scales) take the same steps side by side, so that their rows can be
// compared one by one and no logits are kept.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "model/executor.h"

namespace keel {

// tokens[first_target] and all that follow are targets; 1 <= first_target < tokens.size().
struct DecodeDocument {
  std::span<const std::int32_t> tokens;
  std::int64_t first_target;
  std::int64_t targets() const { return static_cast<std::int64_t>(tokens.size()) - first_target; }
};

struct DecodeArm {
  KvFormat format;
  KvScales scales;
  std::int64_t prompt_chunk = 512;  // rows of a prompt's forward
  std::int64_t step_rows = 0;       // sequences of a decode step's forward, 0 = all that run: another split rounds differently
  std::int64_t page_size = 16;
  bool graphs = true;               // CUDA
};

struct DecodeLimits {
  std::int64_t documents;  // that run at once
  std::int64_t tokens;     // of the longest
};

// One arm's cache and executor. Thread rule: one call at a time.
class CachedDecode {
 public:
  // `model` and `workers` must outlive it. Throws Error for contexts past the model's and formats that the device does not serve.
  CachedDecode(Device device, const LoadedModel& model, const DecodeArm& arm, DecodeLimits limits, WorkerPool& workers);
  ~CachedDecode();

  // Forgets what ran before and computes the documents' tokens in front of the last before the first target. At most
  // limits.documents; their tokens must stay until the last step.
  void begin(std::span<const DecodeDocument> documents);
  // The documents that have a target left, by index in what began, and the step's logits: [running, vocabulary], valid until
  // the next call. Empty when all have ended.
  std::span<const std::int64_t> running() const { return running_; }
  std::span<const float> step();

  Executor& executor() { return *executor_; }
  KvPool& pool() { return *pool_; }

 private:
  void add_row(std::int64_t document, std::int64_t position);
  void prefill(std::int64_t document);

  const DecodeArm arm_;
  DecodeLimits limits_;
  std::int64_t vocabulary_;
  std::unique_ptr<KvPool> pool_;
  std::unique_ptr<Executor> executor_;
  std::vector<std::vector<PageId>> pages_;  // [documents]
  std::vector<DecodeDocument> documents_;
  std::vector<std::int64_t> running_, next_;  // next_: [documents], position whose token is fed next
  StepRows rows_;
  std::vector<float> logits_;  // of a step in several forwards
};

// Called once a target with each arm's logits of it, [arms][vocabulary]. Calls of different documents may come at the same
// time from several threads; one document's come in order.
using TargetRows = std::function<void(std::int64_t document, std::int64_t target, std::span<const std::span<const float>> rows)>;

// All documents through all arms, limits.documents at a time in the given order: which documents share a step depends on
// nothing else. All arms were made with the same limits. `on_batch`, where given, hears after each batch how many have ended.
void decode_side_by_side(std::span<CachedDecode* const> arms,
                         std::span<const DecodeDocument> documents,
                         std::int64_t at_once,
                         WorkerPool& workers,
                         const TargetRows& consumer,
                         const std::function<void(std::int64_t ended)>& on_batch = {});

// Of one row of logits, in f64. Not finite where the logits are not.
double nll_of(std::span<const float> logits, std::int32_t token);
std::int32_t top_of(std::span<const float> logits);  // the lowest of equals
// KL(p || q) in nats, of the two rows' distributions.
double kl_of(std::span<const float> p, std::span<const float> q);

}  // namespace keel
