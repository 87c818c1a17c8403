// The engine: continuous batching over a paged cache. server/ and lab/ are its clients.
//
// Thread rule: submit, cancel, and the readers may be called from any thread; step from one thread at a time.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/engine_options.h"
#include "engine/request.h"
#include "engine/sampler.h"
#include "engine/scheduler.h"
#include "engine/stats.h"
#include "model/executor.h"
#include "text/tokenizer.h"

namespace keel {

enum class SubmitStatus { accepted, queue_full, invalid, stopping };
struct Submitted {
  SubmitStatus status;
  RequestId id = 0;      // accepted
  std::string message;   // otherwise: what was wanted and what was found
};

// What really runs, for the start-up lines, /v1/models, metrics and records. Bytes are the allocator's.
struct Attestation {
  std::string model, family, weights_format;
  KvFormat format;
  std::string scales;  // KvScales::description()
  std::int64_t bytes_per_token, pages, page_size, slots, pool_bytes, weight_bytes, scratch_bytes, max_model_len;
  std::int64_t unread_embedding_bytes;  // of weight_bytes: an embedding that is not the head too, of which a step reads its rows' alone
  DeviceMemory device_memory;  // once all was bound
  std::string device;      // executor's description
  std::string cpu_target;  // the CPU kernels' instruction set
  int threads;
};

class Engine {
 public:
  // `tokenizer` may be null: then there is no text, no stop strings, and outputs carry tokens only.
  Engine(LoadedModel model, std::shared_ptr<const Tokenizer> tokenizer, std::string model_name, EngineOptions options);
  ~Engine();

  // Invalid requests are refused here, with the reason; they cost nothing else.
  Submitted submit(Request request, OutputSink sink);
  const EngineOptions& options() const { return options_; }  // with what 0 stood for
  std::int64_t max_queued() const { return options_.max_queued; }  // choices; more at once can never be submitted
  std::int64_t queue_room() const;                                 // choices that submit would take now
  void cancel(RequestId id);  // takes effect at the next step; the sink is not called again. Unknown ids are ignored.

  bool has_work() const;
  // Next batch -> rows -> forward -> sample -> commit and emit. Memory, the host's or the device's, that runs out while the batch
  // is computed ends the batch's sequences with FinishReason::error and nothing else. Any other exception leaves the engine unusable.
  void step();
  void wait_for_work(std::chrono::milliseconds timeout);  // returns when there is work, on stop(), or after the timeout
  void stop();  // no further submits; what runs goes on

  const Attestation& attestation() const { return attestation_; }
  EngineStats stats() const;
  const ModelConfig& config() const { return model_.config; }
  const Tokenizer* tokenizer() const { return tokenizer_.get(); }
  void reset_prefix_cache();

 private:
  void take_submissions();
  void gather_rows(const Batch& batch);
  std::vector<std::optional<DeviceSampling>> device_samplings(const Batch& batch) const;
  std::vector<TokenId> forbidden(const Sequence& sequence) const;
  std::vector<Sampled> sample_batch(const Batch& batch, const StepResult& result);
  void report_prompts(const Batch& batch);
  void count_rows(const Batch& batch, const std::vector<Sampled>& sampled, std::span<const RoutedSequence> routed);
  void emit(const Batch& batch, const std::vector<Sampled>& sampled);
  void fail_batch(const Batch& batch, const std::string& reason);
  Output commit_token(Sequence& sequence, const Sampled& sampled);
  void send(Sequence& sequence, const Output& output);
  void finished(FinishReason reason);
  void publish_stats();

  LoadedModel model_;
  std::shared_ptr<const Tokenizer> tokenizer_;
  EngineOptions options_;
  WorkerPool workers_;
  std::unique_ptr<KvPool> pool_;
  std::unique_ptr<Executor> executor_;
  std::unique_ptr<Scheduler> scheduler_;
  Attestation attestation_;
  std::vector<TokenId> eos_ids_;
  StepRows rows_;

  mutable std::mutex inbox_mutex_;
  std::condition_variable inbox_changed_;
  struct Inbox;
  std::unique_ptr<Inbox> inbox_;
  EngineStats stats_;  // guarded by stats_mutex_
  mutable std::mutex stats_mutex_;
};

}  // namespace keel
