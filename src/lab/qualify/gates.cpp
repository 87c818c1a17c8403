#include "lab/qualify/gates.h"

#include <algorithm>
#include <chrono>
#include <cmath>

#include "base/error.h"
#include "base/log.h"
#include "engine/engine.h"
#include "lab/qualify/answer.h"
#include "lab/qualify/production.h"

namespace keel {
namespace {

using Json = nlohmann::json;

// Adds what a piece of a gate's work took when it ends well.
class GateClock {
 public:
  GateClock(Journal& journal, std::string gate) : journal_(journal), gate_(std::move(gate)) {}
  void stop() {
    std::int64_t next = 0;
    while (journal_.find("seconds", gate_, next) != nullptr) ++next;
    journal_.add({.gate = "seconds", .arm = gate_, .item = next, .found = std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count()});
  }

 private:
  Journal& journal_;
  std::string gate_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

bool has_all(const Journal& journal, const std::string& gate, const std::string& arm, std::int64_t first, std::int64_t last) {
  for (std::int64_t i = first; i < last; ++i) {
    if (journal.find(gate, arm, i) == nullptr) return false;
  }
  return true;
}

std::vector<Json> all_of(const Journal& journal, const std::string& gate, const std::string& arm, std::int64_t items) {
  std::vector<Json> all;
  for (std::int64_t i = 0; i < items; ++i) {
    const Json* item = journal.find(gate, arm, i);
    check(item != nullptr, "a gate is judged when all its items are there");
    all.push_back(*item);
  }
  return all;
}

// Of one document, over its targets.
struct DocumentSums {
  double control = 0, rerun = 0, candidate = 0, kl_rerun = 0, kl_candidate = 0;
  std::int64_t same_rerun = 0, same_candidate = 0;

  void add(std::span<const std::span<const float>> rows, TokenId token) {
    control += nll_of(rows[0], token);
    rerun += nll_of(rows[1], token);
    candidate += nll_of(rows[2], token);
    kl_rerun += kl_of(rows[0], rows[1]);
    kl_candidate += kl_of(rows[0], rows[2]);
    same_rerun += top_of(rows[0]) == top_of(rows[1]);
    same_candidate += top_of(rows[0]) == top_of(rows[2]);
  }
  Json means(std::int64_t targets) const {
    const auto mean = [&](double sum) { return std::isfinite(sum) ? Json(sum / static_cast<double>(targets)) : Json(); };
    return {{"control", mean(control)},
            {"rerun", mean(rerun)},
            {"candidate", mean(candidate)},
            {"kl_rerun", mean(kl_rerun)},
            {"kl_candidate", mean(kl_candidate)},
            {"same_top_rerun", same_rerun},
            {"same_top_candidate", same_candidate},
            {"targets", targets}};
  }
};

std::unique_ptr<Engine> arm_engine(const Trial& trial, const AnswerPanel& panel, const ArmPlan& arm, int threads) {
  const Subject& subject = trial.subject;
  const ModelConfig& config = trial.model.config;
  const KvFormat format = arm.candidate ? subject.candidate : subject.control;
  const KvLayout layout(format, {config.layers, config.kv_heads, config.head_dim, subject.page_size}, page_order(subject.device));
  const std::int64_t longest = panel.longest(), pages = (longest + subject.page_size - 1) / subject.page_size + 1;
  EngineOptions options;
  options.device = subject.device == Device::cuda ? "cuda" : "cpu";
  options.kv_cache_dtype = to_string(format);
  options.kv_cache_memory_bytes = arm.requests_at_once * pages * layout.page_bytes();
  options.max_model_len = longest;
  options.max_num_seqs = arm.requests_at_once;
  options.max_num_batched_tokens = arm.batched_tokens;
  options.block_size = subject.page_size;
  options.enable_prefix_caching = false;
  options.threads = threads;
  if (arm.candidate) options.kv_scales = trial.kv_scales;
  auto engine = std::make_unique<Engine>(trial.model, trial.tokenizer, subject.model_name, options);
  if (engine->attestation().format != format) fail("the {} arm runs {}, and the plan says {}", arm.name, to_string(engine->attestation().format), to_string(format));
  return engine;
}

Json effective(const Attestation& ran, const std::string& gate) {
  return {{"gate", gate},       {"format", to_string(ran.format)}, {"bytes_per_token", ran.bytes_per_token}, {"pool_bytes", ran.pool_bytes}, {"slots", ran.slots},
          {"scales", ran.scales}, {"device", ran.device},            {"weights", ran.weights_format}};
}

// A wave of requests through an engine, to their ends.
std::vector<Json> outcomes_of(Engine& engine, const AnswerPanel& panel, std::span<const PanelItem> items) {
  std::vector<Answer> answers(items.size());
  for (std::size_t i = 0; i < items.size(); ++i) {
    Request request{.prompt = items[i].prompt};
    request.sampling = {.temperature = 0, .max_tokens = panel.answer_tokens};
    const Submitted submitted = engine.submit(std::move(request), [&answers, i](const Output& output) { answers[i].add(output); });
    if (submitted.status != SubmitStatus::accepted) fail("{}: {}", items[i].label, submitted.message);
  }
  while (engine.has_work()) engine.step();
  std::vector<Json> outcomes;
  for (std::size_t i = 0; i < items.size(); ++i) outcomes.push_back(outcome_of(answers[i], items[i].label, items[i].wanted, panel.mark));
  return outcomes;
}

void run_arm(const Trial& trial, const AnswerPanel& panel, const ArmPlan& arm, int threads, Journal& journal, ProgressBar& progress) {
  const auto count = static_cast<std::int64_t>(panel.items.size());
  std::unique_ptr<Engine> engine;
  for (std::int64_t begin = 0; begin < count; begin += arm.requests_at_once) {
    const std::int64_t wave = std::min(arm.requests_at_once, count - begin);
    if (!has_all(journal, panel.gate, arm.name, begin, begin + wave)) {  // the whole wave again: who shares a batch is part of the plan
      GateClock clock(journal, panel.gate);
      if (!engine) {
        engine = arm_engine(trial, panel, arm, threads);
        journal.add({.gate = "effective " + panel.gate, .arm = arm.name, .item = 0, .found = effective(engine->attestation(), panel.gate)});
      }
      const std::vector<Json> outcomes = outcomes_of(*engine, panel, std::span(panel.items).subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(wave)));
      std::vector<Journal::Entry> entries;
      for (std::int64_t i = 0; i < wave; ++i) entries.push_back({.gate = panel.gate, .arm = arm.name, .item = begin + i, .found = outcomes[static_cast<std::size_t>(i)]});
      journal.add(entries);
      clock.stop();
    }
    progress.advance(wave);
  }
}

}  // namespace

DecodeArm Trial::decode_arm(const ArmPlan& arm) const {
  return {.format = arm.candidate ? subject.candidate : subject.control,
          .scales = arm.candidate ? subject.scales : control_scales,
          .prompt_chunk = arm.prompt_chunk,
          .step_rows = arm.step_rows,
          .page_size = subject.page_size};
}

GateResult run_production(const Trial& trial, WorkerPool& workers, Journal& journal) {
  const DecodeArm candidate = trial.decode_arm(kArms[2]);
  ProductionGate gate(trial.subject.device, trial.model, candidate, trial.subject.control, trial.panel.text, workers, trial.broken);
  const auto count = static_cast<std::int64_t>(gate.checks().size());
  ProgressBar progress("production", count);
  for (std::int64_t i = 0; i < count; ++i) {
    if (!has_all(journal, "production", "", i, i + 1)) {
      GateClock clock(journal, "production");
      const ProductionCheck& check = gate.checks()[static_cast<std::size_t>(i)];
      const ProductionFinding found = check.run();
      journal.add({.gate = "production", .arm = "", .item = i, .found = {{"name", check.name}, {"applies", found.applies}, {"passed", found.passed}, {"detail", found.detail}}});
      clock.stop();
    }
    progress.advance(1);
  }
  return judge_production(all_of(journal, "production", "", count), kLeastFaults);
}

GateResult run_nll(const Trial& trial, WorkerPool& workers, Journal& journal) {
  const Panel& panel = trial.panel;
  const auto count = static_cast<std::int64_t>(panel.documents.size());
  const auto judged = [&] { return judge_nll(all_of(journal, "nll", "", count), nll_rule(trial.model.config.vocabulary)); };
  if (has_all(journal, "nll", "", 0, count)) return judged();

  std::vector<std::unique_ptr<CachedDecode>> decodes;
  std::vector<CachedDecode*> arms;
  for (const ArmPlan& arm : kArms) {
    const DecodeLimits limits{.documents = kDocumentsAtOnce, .tokens = panel.prompt_tokens + panel.targets};
    decodes.push_back(std::make_unique<CachedDecode>(trial.subject.device, trial.model, trial.decode_arm(arm), limits, workers));
    arms.push_back(decodes.back().get());
  }
  ProgressBar progress("nll", count);
  for (std::int64_t begin = 0; begin < count; begin += kDocumentsAtOnce) {
    const std::int64_t batch = std::min(kDocumentsAtOnce, count - begin);
    if (!has_all(journal, "nll", "", begin, begin + batch)) {  // the whole batch again: which documents share a step is part of the plan
      GateClock clock(journal, "nll");
      std::vector<DecodeDocument> documents;
      for (std::int64_t i = 0; i < batch; ++i) documents.push_back({.tokens = panel.documents[static_cast<std::size_t>(begin + i)], .first_target = panel.prompt_tokens});
      std::vector<DocumentSums> sums(documents.size());
      decode_side_by_side(arms, documents, kDocumentsAtOnce, workers, [&](std::int64_t document, std::int64_t target, auto rows) {
        const auto i = static_cast<std::size_t>(document);
        sums[i].add(rows, documents[i].tokens[static_cast<std::size_t>(panel.prompt_tokens + target)]);
      });
      std::vector<Journal::Entry> entries;
      for (std::int64_t i = 0; i < batch; ++i) entries.push_back({.gate = "nll", .arm = "", .item = begin + i, .found = sums[static_cast<std::size_t>(i)].means(panel.targets)});
      journal.add(entries);
      clock.stop();
    }
    progress.advance(batch);
  }
  return judged();
}

GateResult run_answers(const Trial& trial, const AnswerPanel& panel, WorkerPool& workers, Journal& journal) {
  const auto count = static_cast<std::int64_t>(panel.items.size());
  ProgressBar progress(panel.gate, static_cast<std::int64_t>(std::size(kArms)) * count);
  for (const ArmPlan& arm : kArms) run_arm(trial, panel, arm, workers.threads(), journal, progress);
  std::vector<std::string> labels;
  for (const PanelItem& item : panel.items) labels.push_back(item.label);
  const auto found = [&](const ArmPlan& arm) { return all_of(journal, panel.gate, arm.name, count); };
  return judge_answers(panel.gate, labels, found(kArms[0]), found(kArms[1]), found(kArms[2]), panel.rule);
}

double seconds_of(const Journal& journal, const std::string& gate) {
  double seconds = 0;
  for (std::int64_t i = 0; const nlohmann::json* some = journal.find("seconds", gate, i); ++i) seconds += some->get<double>();
  return seconds;
}

}  // namespace keel
