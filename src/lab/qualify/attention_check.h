// Watches every attention call of a forward: what was stored for each new token, whether anything stored before has changed, and
// whether the output is attention over exactly those tokens. What it knows of the cache it reads from the pages' raw bytes, by
// position and not through the step's page tables, so that a wrong table, length or layer cannot hide.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/worker_pool.h"
#include "kv/pool.h"
#include "lab/qualify/raw_pages.h"
#include "model/attention_probe.h"
#include "model/config.h"
#include "model/decoder.h"
#include "model/executor.h"

namespace keel {

// What the device's arithmetic may add to exact attention; each kernel's header states its own.
enum class AttentionArithmetic { cpu, cuda };

struct AttentionFindings {
  std::int64_t calls = 0, rows = 0, elements = 0;  // attention calls, query rows, output numbers compared
  std::int64_t wrong_elements = 0;
  double worst = 0;  // largest error as a share of its bound; infinite for a number that is none
  std::int64_t tokens = 0, wrong_tokens = 0;  // stored tokens compared with what the writer owed, a layer each
  std::int64_t changed_tokens = 0;            // stored tokens whose bytes are no longer what they were
  std::string first;                          // the first thing that was wrong

  bool clean() const { return wrong_elements == 0 && wrong_tokens == 0 && changed_tokens == 0; }
  std::string by() const;  // "stored bytes", "attention output", both, or ""
};

class AttentionCheck final : public AttentionProbe {
 public:
  using Fault = std::function<void(AttentionCall&)>;

  // All must outlive it. `decode_is_plain`: CUDA serves this head dim's decode rows by the plain kernel.
  AttentionCheck(const ModelConfig& config, KvPool& pool, AttentionArithmetic arithmetic, bool decode_is_plain, WorkerPool& workers);

  // Before each forward: its true rows, `names[i]` telling which sequence rows.sequences[i] is. The executor may have been given
  // others: that is a fault.
  void expect(const StepRows& rows, std::vector<std::int64_t> names);
  // Made at the call of `layer`, from now on; -1: no more.
  void inject(std::int64_t layer, Fault fault) { fault_layer_ = layer, fault_ = std::move(fault); }
  // Query heads stand `heads` places further on in what attention is given: what comes out is turned back before it is judged.
  void expect_turned_heads(std::int64_t heads) { turned_heads_ = heads; }

  void before(AttentionCall& call) override;
  void after(const AttentionCall& call) override;

  const AttentionFindings& findings() const { return findings_; }

  StoredToken stored(std::int64_t layer, std::int64_t page, std::int64_t slot);
  void overwrite(std::int64_t layer, std::int64_t page, std::int64_t slot, const StoredToken& token);

 private:
  void compare_stored(const AttentionCall& call);
  void judge(const AttentionCall& call, std::size_t sequence);
  void note(std::string what);

  const ModelConfig& config_;
  KvPool& pool_;
  AttentionArithmetic arithmetic_;
  bool decode_is_plain_;
  WorkerPool& workers_;
  const StepRows* rows_ = nullptr;
  std::vector<std::int64_t> names_;
  std::vector<std::vector<std::vector<StoredToken>>> history_;  // [layers][sequences][positions]
  std::vector<float> q_;                                        // of the call, as it was before a fault
  std::int64_t fault_layer_ = -1, turned_heads_ = 0;
  Fault fault_;
  AttentionFindings findings_;
};

}  // namespace keel
