#include "lab/qualify/attention_check.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace keel {
namespace {

struct Judged {
  double worst = 0;
  std::int64_t wrong = 0;
  std::string first;
};

// One head of one query row over `seen` tokens, exactly, with the bound that the kernel that ran states for its error.
struct ExactRow {
  std::vector<double> value, bound;  // [head_dim]
};

struct Arithmetic {
  bool cuda = false, decode = false;
  double unit = 0;         // 16-bit outputs' roundoff
  double probability = 0;  // roundoff of a prefill kernel's probabilities
};

// `numbers` lie [tokens][stride] from `at` on.
ExactRow exact_row(const float* q, const std::vector<double>& keys, const std::vector<double>& values, const std::vector<double>& magnitudes,
                   std::int64_t seen, std::int64_t at, std::int64_t stride, std::int64_t head_dim, double softmax_scale, const Arithmetic& arithmetic) {
  std::vector<double> p(static_cast<std::size_t>(seen));
  double most = -INFINITY, size = 0;
  for (std::int64_t t = 0; t < seen; ++t) {
    double score = 0, terms = 0;
    for (std::int64_t dim = 0; dim < head_dim; ++dim) {
      const double term = q[dim] * keys[static_cast<std::size_t>(t * stride + at + dim)];
      score += term;
      terms += std::abs(term);
    }
    p[static_cast<std::size_t>(t)] = score * softmax_scale;
    most = std::max(most, score * softmax_scale);
    size = std::max(size, terms * softmax_scale);
  }
  double total = 0;
  for (double& x : p) total += x = std::exp(x - most);
  ExactRow row;
  for (std::int64_t dim = 0; dim < head_dim; ++dim) {
    double sum = 0, weight = 0, plain = 0;
    for (std::int64_t t = 0; t < seen; ++t) {
      const double v = values[static_cast<std::size_t>(t * stride + at + dim)];
      sum += p[static_cast<std::size_t>(t)] / total * v;
      weight += p[static_cast<std::size_t>(t)] / total * magnitudes[static_cast<std::size_t>(t * stride + at + dim)];
      plain += std::abs(v);
    }
    row.value.push_back(sum);
    if (!arithmetic.cuda) {
      row.bound.push_back((0x1p-18 + 0x1p-20 * size) * weight + 0x1p-100);
    } else if (arithmetic.decode) {
      row.bound.push_back((0x1p-17 + 0x1p-19 * size) * weight + arithmetic.unit * std::abs(sum) + 0x1p-25);
    } else {
      row.bound.push_back((arithmetic.probability + 0x1p-18 + 0x1p-20 * size) * weight + 0x1p-25 * plain / total +
                          arithmetic.unit * std::abs(sum) * 1.01 + 0x1p-24);
    }
  }
  return row;
}

}  // namespace

std::string AttentionFindings::by() const {
  std::string by;
  if (wrong_tokens > 0 || changed_tokens > 0) by = "stored bytes";
  if (wrong_elements > 0) by += by.empty() ? "attention output" : ", attention output";
  return by;
}

AttentionCheck::AttentionCheck(const ModelConfig& config, KvPool& pool, AttentionArithmetic arithmetic, bool decode_is_plain, WorkerPool& workers)
    : config_(config), pool_(pool), arithmetic_(arithmetic), decode_is_plain_(decode_is_plain), workers_(workers),
      history_(static_cast<std::size_t>(config.layers)) {}

void AttentionCheck::expect(const StepRows& rows, std::vector<std::int64_t> names) {
  rows_ = &rows;
  names_ = std::move(names);
  const std::int64_t most = *std::max_element(names_.begin(), names_.end());
  for (auto& layer : history_) layer.resize(std::max(layer.size(), static_cast<std::size_t>(most + 1)));
}

void AttentionCheck::note(std::string what) {
  if (findings_.first.empty()) findings_.first = std::move(what);
}

StoredToken AttentionCheck::stored(std::int64_t layer, std::int64_t page, std::int64_t slot) {
  const KvLayout& layout = pool_.layout();
  std::vector<std::byte> keys(static_cast<std::size_t>(layout.key_page_bytes())), values(static_cast<std::size_t>(layout.value_page_bytes()));
  pool_.read_page(layer, static_cast<PageId>(page), keys, values);
  return read_token(layout, keys, values, slot);
}

void AttentionCheck::overwrite(std::int64_t layer, std::int64_t page, std::int64_t slot, const StoredToken& token) {
  const KvLayout& layout = pool_.layout();
  std::vector<std::byte> keys(static_cast<std::size_t>(layout.key_page_bytes())), values(static_cast<std::size_t>(layout.value_page_bytes()));
  pool_.read_page(layer, static_cast<PageId>(page), keys, values);
  write_token(layout, keys, values, slot, token);
  pool_.write_page(layer, static_cast<PageId>(page), keys, values);
}

void AttentionCheck::before(AttentionCall& call) {
  check(rows_ != nullptr, "a forward's rows are told before it runs");
  q_.assign(call.q.begin(), call.q.end());
  if (call.layer == fault_layer_) fault_(call);
  compare_stored(call);
}

void AttentionCheck::compare_stored(const AttentionCall& call) {
  const KvLayout& layout = pool_.layout();
  const KvGeometry& geometry = layout.geometry();
  const std::int64_t width = geometry.kv_heads * geometry.head_dim, page_size = geometry.page_size;
  const KvLayerView view = pool_.layer(call.layer);  // its scales are the host's
  std::vector<std::byte> keys(static_cast<std::size_t>(layout.key_page_bytes())), values(static_cast<std::size_t>(layout.value_page_bytes()));
  for (std::size_t i = 0; i < rows_->sequences.size(); ++i) {
    const AttentionSequence& sequence = rows_->sequences[i];
    std::vector<StoredToken>& history = history_[static_cast<std::size_t>(call.layer)][static_cast<std::size_t>(names_[i])];
    const std::int64_t cached = sequence.context - sequence.rows;
    check(static_cast<std::int64_t>(history.size()) == cached, "a sequence's tokens come in order");
    for (std::int64_t position = 0; position < sequence.context; ++position) {
      if (position % page_size == 0) pool_.read_page(call.layer, sequence.pages[position / page_size], keys, values);
      StoredToken found = read_token(layout, keys, values, position % page_size);
      const auto where = [&] { return fmt::format("layer {}, sequence {}, position {}", call.layer, names_[i], position); };
      if (position < cached) {
        const StoredToken& old = history[static_cast<std::size_t>(position)];
        if (found.keys == old.keys && found.values == old.values && found.value_parameters == old.value_parameters) continue;
        ++findings_.changed_tokens;
        note(where() + ": the stored bytes have changed since they were written");
        continue;
      }
      const auto at = static_cast<std::size_t>((sequence.first_row + position - cached) * width);
      const std::span<const float> k = call.k.subspan(at, static_cast<std::size_t>(width)), v = call.v.subspan(at, static_cast<std::size_t>(width));
      StoredToken owed = encode_token(layout, k, v, view.key_scales, view.value_scales);
      ++findings_.tokens;
      if (const std::string wrong = difference(layout, found, owed, v); !wrong.empty()) {
        ++findings_.wrong_tokens;
        note(where() + ": " + wrong);
        history.push_back(std::move(owed));
      } else {
        history.push_back(std::move(found));
      }
    }
  }
}

void AttentionCheck::after(const AttentionCall& call) {
  ++findings_.calls;
  for (std::size_t i = 0; i < rows_->sequences.size(); ++i) judge(call, i);
}

void AttentionCheck::judge(const AttentionCall& call, std::size_t index) {
  const KvLayout& layout = pool_.layout();
  const KvLayerView view = pool_.layer(call.layer);
  const AttentionSequence& sequence = rows_->sequences[index];
  const std::vector<StoredToken>& history = history_[static_cast<std::size_t>(call.layer)][static_cast<std::size_t>(names_[index])];
  const std::int64_t heads = config_.heads, head_dim = config_.head_dim, group = heads / config_.kv_heads, stride = config_.kv_heads * head_dim;
  const double softmax_scale = 1 / std::sqrt(static_cast<double>(head_dim));

  std::vector<double> keys, values, magnitudes;
  for (const StoredToken& token : history) {
    const std::vector<double> k = key_numbers(layout, token, view.key_scales), v = value_numbers(layout, token, view.value_scales);
    // The CPU's bound is in the values themselves.
    const std::vector<double> m = arithmetic_ == AttentionArithmetic::cuda ? value_magnitudes(layout, token, view.value_scales) : v;
    for (const double x : m) magnitudes.push_back(std::abs(x));
    keys.insert(keys.end(), k.begin(), k.end());
    values.insert(values.end(), v.begin(), v.end());
  }
  const DType sixteen = config_.dtype == DType::bf16 ? DType::bf16 : DType::f16;
  const bool decode = sequence.rows == 1 && !decode_is_plain_;
  Arithmetic arithmetic{.cuda = arithmetic_ == AttentionArithmetic::cuda, .decode = decode, .unit = sixteen == DType::bf16 ? 0x1p-8 : 0x1p-11};
  arithmetic.probability = 2 * arithmetic.unit + (layout.format().value == DType::u4 ? 0x1p-11 : 0);
  // A prompt's rows see keys and values in the model's own type, which the stored ones times their scale may have to be rounded to;
  // the plain kernel does not round. Either reading is right.
  std::vector<double> rounded_keys, rounded_values;
  if (arithmetic.cuda && !decode) {
    const auto rounded = [&](const std::vector<double>& exact) {
      std::vector<double> result;
      for (const double x : exact) result.push_back(decode_stored(sixteen, encode_stored(sixteen, x)));
      return result;
    };
    rounded_keys = rounded(keys);
    rounded_values = rounded(values);
  }

  std::vector<Judged> judged(static_cast<std::size_t>(sequence.rows * heads));
  workers_.parallel_for(sequence.rows * heads, [&](std::int64_t task, int) {
    const std::int64_t row = task / heads, head = task % heads;
    const std::int64_t seen = sequence.context - sequence.rows + row + 1;
    const std::int64_t at = head / group * head_dim;
    const std::int64_t base = (sequence.first_row + row) * heads;
    const float* q = q_.data() + (base + head) * head_dim;
    const float* out = call.out.data() + (base + (head + (call.layer == fault_layer_ ? turned_heads_ : 0)) % heads) * head_dim;
    const ExactRow exact = exact_row(q, keys, values, magnitudes, seen, at, stride, head_dim, softmax_scale, arithmetic);
    std::optional<ExactRow> other;
    if (!rounded_keys.empty()) other = exact_row(q, rounded_keys, rounded_values, magnitudes, seen, at, stride, head_dim, softmax_scale, arithmetic);
    Judged& result = judged[static_cast<std::size_t>(task)];
    for (std::int64_t dim = 0; dim < head_dim; ++dim) {
      const auto d = static_cast<std::size_t>(dim);
      double share = std::abs(out[dim] - exact.value[d]) / exact.bound[d];
      if (other) share = std::fmin(share, std::abs(out[dim] - other->value[d]) / other->bound[d]);
      if (std::isnan(share)) share = INFINITY;
      result.worst = std::max(result.worst, share);
      if (share <= 1) continue;
      ++result.wrong;
      if (result.first.empty()) {
        result.first = fmt::format("layer {}, sequence {}, row {} of {}, head {}, dimension {}: {}, exact {} +- {}", call.layer, names_[index], row,
                                   sequence.rows, head, dim, out[dim], exact.value[d], exact.bound[d]);
      }
    }
  });
  for (const Judged& one : judged) {
    findings_.worst = std::max(findings_.worst, one.worst);
    findings_.wrong_elements += one.wrong;
    if (!one.first.empty()) note(one.first);
  }
  findings_.rows += sequence.rows;
  findings_.elements += sequence.rows * heads * head_dim;
}

}  // namespace keel
