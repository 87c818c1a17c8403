#include "lab/quality/cached_decode.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "base/option_error.h"

namespace keel {
namespace {

double log_sum_exp(std::span<const float> logits) {
  const double largest = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float logit : logits) sum += std::exp(logit - largest);
  return largest + std::log(sum);
}

}  // namespace

CachedDecode::CachedDecode(Device device, const LoadedModel& model, const DecodeArm& arm, DecodeLimits limits, WorkerPool& workers)
    : arm_(arm), limits_(limits), vocabulary_(model.config.vocabulary) {
  const ModelConfig& config = model.config;
  check(limits.documents > 0 && limits.tokens > 1 && arm.prompt_chunk > 0 && arm.step_rows >= 0, "limits of a cached decode");
  const std::int64_t longest = std::min(config.max_positions, config.context_limit.value_or(config.max_positions));
  if (limits.tokens > longest) refuse_option("documents of {} tokens are past the model's longest context, {}", limits.tokens, longest);
  const KvGeometry geometry{config.layers, config.kv_heads, config.head_dim, arm.page_size};
  const KvLayout layout(arm.format, geometry, page_order(device));
  const auto formats = paged_attention_formats();
  if (std::find(formats.begin(), formats.end(), arm.format) == formats.end()) {
    refuse_option("KV cache type {}: no attention kernel for this pair", to_string(arm.format));
  }
  executor_ = make_executor(device, model, layout,
                            {.max_tokens = std::max(arm.prompt_chunk, limits.documents),
                             .max_sequences = limits.documents,
                             .max_logit_rows = limits.documents,
                             .max_context = limits.tokens,
                             .graphs = arm.graphs},
                            workers);
  const std::int64_t pages = (limits.tokens + arm.page_size - 1) / arm.page_size;
  pool_ = std::make_unique<KvPool>(layout, arm.scales, limits.documents * pages * layout.page_bytes(), page_memory(device));
  executor_->bind(*pool_);
  // Dealt in turn, so that no document's pages are neighbours.
  pages_.resize(static_cast<std::size_t>(limits.documents));
  for (std::int64_t i = 0; i < pool_->pages(); ++i) pages_[static_cast<std::size_t>(i % limits.documents)].push_back(*pool_->allocate());
}

CachedDecode::~CachedDecode() = default;

void CachedDecode::add_row(std::int64_t document, std::int64_t position) {
  const PageId page = pages_[document][position / arm_.page_size];
  rows_.tokens.push_back(documents_[document].tokens[position]);
  rows_.positions.push_back(static_cast<std::int32_t>(position));
  rows_.slots.push_back(page * arm_.page_size + position % arm_.page_size);
}

void CachedDecode::prefill(std::int64_t document) {
  const std::int64_t end = documents_[document].first_target - 1;
  for (std::int64_t begin = 0; begin < end; begin += arm_.prompt_chunk) {
    const std::int64_t rows = std::min(arm_.prompt_chunk, end - begin);
    rows_.clear();
    for (std::int64_t i = 0; i < rows; ++i) add_row(document, begin + i);
    rows_.sequences.push_back({.first_row = 0, .rows = rows, .context = begin + rows, .pages = pages_[document].data()});
    executor_->forward(rows_, {});
  }
}

void CachedDecode::begin(std::span<const DecodeDocument> documents) {
  check(static_cast<std::int64_t>(documents.size()) <= limits_.documents, "no more documents at once than the limits say");
  documents_.assign(documents.begin(), documents.end());
  next_.clear();
  running_.clear();
  for (std::int64_t i = 0; i < static_cast<std::int64_t>(documents.size()); ++i) {
    const DecodeDocument& document = documents_[i];
    check(document.first_target >= 1 && document.targets() >= 1 && static_cast<std::int64_t>(document.tokens.size()) <= limits_.tokens,
          "a document has a token before its first target and fits the limits");
    prefill(i);
    next_.push_back(document.first_target - 1);
    running_.push_back(i);
  }
}

std::span<const float> CachedDecode::step() {
  std::erase_if(running_, [&](std::int64_t i) { return next_[i] + 1 >= static_cast<std::int64_t>(documents_[i].tokens.size()); });
  const auto count = static_cast<std::int64_t>(running_.size());
  if (count == 0) return {};
  const std::int64_t at_once = arm_.step_rows == 0 ? count : arm_.step_rows;
  std::span<const float> logits;
  for (std::int64_t begin = 0; begin < count; begin += at_once) {
    rows_.clear();
    const std::int64_t rows = std::min(at_once, count - begin);
    for (std::int64_t row = 0; row < rows; ++row) {
      const std::int64_t document = running_[begin + row], position = next_[document]++;
      add_row(document, position);
      rows_.sequences.push_back({.first_row = row, .rows = 1, .context = position + 1, .pages = pages_[document].data()});
      rows_.logit_rows.push_back(row);
    }
    logits = executor_->forward(rows_, {}).logits;
    if (at_once >= count) return logits;
    logits_.resize(static_cast<std::size_t>(count * vocabulary_));
    std::copy(logits.begin(), logits.end(), logits_.begin() + begin * vocabulary_);
  }
  return logits_;
}

void decode_side_by_side(std::span<CachedDecode* const> arms,
                         std::span<const DecodeDocument> documents,
                         std::int64_t at_once,
                         WorkerPool& workers,
                         const TargetRows& consumer,
                         const std::function<void(std::int64_t ended)>& on_batch) {
  const auto count = static_cast<std::int64_t>(documents.size());
  std::vector<std::span<const float>> logits(arms.size());
  for (std::int64_t begin = 0; begin < count; begin += at_once) {
    const std::int64_t batch = std::min(at_once, count - begin);
    for (CachedDecode* arm : arms) arm->begin(documents.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(batch)));
    for (std::int64_t target = 0;; ++target) {
      for (std::size_t arm = 0; arm < arms.size(); ++arm) logits[arm] = arms[arm]->step();
      const std::span<const std::int64_t> running = arms.front()->running();
      if (running.empty()) break;
      const std::size_t vocabulary = logits.front().size() / running.size();
      workers.parallel_for(static_cast<std::int64_t>(running.size()), [&](std::int64_t row, int) {
        std::vector<std::span<const float>> rows;
        for (const auto& of_arm : logits) rows.push_back(of_arm.subspan(static_cast<std::size_t>(row) * vocabulary, vocabulary));
        consumer(begin + running[static_cast<std::size_t>(row)], target, rows);
      });
    }
    if (on_batch) on_batch(begin + batch);
  }
}

double nll_of(std::span<const float> logits, std::int32_t token) {
  return log_sum_exp(logits) - logits[static_cast<std::size_t>(token)];
}

std::int32_t top_of(std::span<const float> logits) {
  return static_cast<std::int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

double kl_of(std::span<const float> p, std::span<const float> q) {
  const double p_total = log_sum_exp(p), q_total = log_sum_exp(q);
  double sum = 0;
  for (std::size_t i = 0; i < p.size(); ++i) {
    const double log_p = p[i] - p_total;
    sum += std::exp(log_p) * (log_p - (q[i] - q_total));
  }
  return sum;
}

}  // namespace keel
