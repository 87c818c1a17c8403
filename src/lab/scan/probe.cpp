#include "lab/scan/probe.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/error.h"
#include "kernels/rope/rope.h"

namespace keel {
namespace {

constexpr std::int64_t kMostAtOnce = 128;          // rows of a step; SmolLM2 on two threads: 4 % less time than 64 rows, 3 % more than 256
constexpr std::int64_t kCacheBytes = 512LL << 20;  // of the sequences that run together
constexpr std::int64_t kLogitBytes = 64LL << 20;   // of a step
constexpr float kLargestE4m3 = 448, kLeastNormalE4m3 = 0x1p-6f;

struct Distribution {
  float largest = 0;
  double log_sum = 0;  // of exp(logit - largest)
  std::size_t top = 0;
};

Distribution distribution_of(std::span<const float> logits, float* exponentials) {
  Distribution result;
  result.top = static_cast<std::size_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
  result.largest = logits[result.top];
  double sum = 0;
  for (std::size_t i = 0; i < logits.size(); ++i) {
    const float e = std::exp(logits[i] - result.largest);
    if (exponentials != nullptr) exponentials[i] = e;
    sum += e;
  }
  result.log_sum = std::log(sum);
  return result;
}

}  // namespace

double VariantFigures::perplexity_times() const { return std::exp(nll_rise); }

Probe::Probe(const LoadedModel& model, std::vector<std::vector<std::int32_t>> documents, WorkerPool& workers)
    : model_(model), config_(model.config), documents_(std::move(documents)), workers_(workers),
      format_(parse_kv_format("k16v16", config_.dtype)) {
  check(!documents_.empty(), "a probe has documents");
  const auto tokens = static_cast<std::int64_t>(documents_.front().size());
  for (const auto& document : documents_) check(std::ssize(document) == tokens && tokens >= 2, "documents of one length, with a target each");
  const KvGeometry geometry{config_.layers, config_.kv_heads, config_.head_dim};
  const std::int64_t sequence_bytes = KvLayout(format_, geometry).bytes_per_token() * tokens;
  at_once_ = std::max<std::int64_t>(2, std::min({kMostAtOnce, kCacheBytes / sequence_bytes, kLogitBytes / (4 * config_.vocabulary)}));
  decode_ = std::make_unique<CachedDecode>(Device::cpu, model, DecodeArm{.format = format_, .scales = KvScales::unit(geometry)},
                                           DecodeLimits{.documents = at_once_, .tokens = tokens}, workers);
  decode_->executor().on_new_kv([this](std::int64_t layer, const StepRows& rows, float* k, float* v) { on_new_kv(layer, rows, k, v); });
  for (SeenSide* side : {&seen_.keys, &seen_.values}) {
    side->largest.resize(config_.layers * width());
    side->sum.resize(side->largest.size());
    side->sum_squares.resize(side->largest.size());
  }
}

std::int64_t Probe::work(std::int64_t variants, std::int64_t documents, std::int64_t targets) const {
  const std::int64_t blocks = std::max<std::int64_t>(1, (variants + at_once_ - 2) / (at_once_ - 1));
  return documents * (variants + blocks) * targets;
}

std::vector<VariantFigures> Probe::run(std::span<const Variant> variants, std::int64_t documents, std::int64_t targets,
                                       const std::function<void(std::int64_t)>& on_target) {
  const bool first_run = seen_.rows == 0;
  check(documents >= 1 && documents <= this->documents() && targets >= 1 && targets <= this->targets(), "as many documents and targets as there are");
  check(!first_run || (documents == this->documents() && targets == this->targets()), "the first run takes all of them");
  const auto count = std::ssize(variants);
  std::vector<std::vector<Sums>> totals(documents, std::vector<Sums>(count + 1));  // sums; [0] unrounded, in its first block
  std::vector<std::vector<double>> rises(documents, std::vector<double>(count));       // sums
  std::vector<Block> batch;
  std::int64_t rows = 0;
  const auto run_waiting = [&] {
    if (batch.empty()) return;
    const std::vector<std::vector<Sums>> found = run_batch(batch, variants, targets, on_target);
    for (std::size_t b = 0; b < batch.size(); ++b) {
      const Block& block = batch[b];
      auto& of_document = totals[block.document];
      if (block.first_variant == 0) of_document[0] = found[b][0];
      for (std::int64_t v = 0; v < block.variants; ++v) {
        of_document[1 + block.first_variant + v] = found[b][1 + v];
        rises[block.document][block.first_variant + v] = found[b][1 + v].nll - found[b][0].nll;
      }
    }
    batch.clear();
    rows = 0;
  };
  for (std::int64_t document = 0; document < documents; ++document) {
    std::int64_t first = 0;
    do {
      const std::int64_t some = std::min(count - first, at_once_ - 1);
      if (rows + 1 + some > at_once_) run_waiting();
      batch.push_back({.document = document, .first_variant = first, .variants = some, .first_row = rows, .sees = first_run && first == 0});
      rows += 1 + some;
      first += some;
    } while (first < count);
  }
  run_waiting();

  if (first_run) {
    for (const auto& of_document : totals) native_nll_ += of_document[0].nll / static_cast<double>(documents * targets);
    find_largest();
  }
  std::vector<VariantFigures> figures(count);
  const double all = static_cast<double>(documents * targets);
  for (std::int64_t v = 0; v < count; ++v) {
    VariantFigures& mean = figures[v];
    mean.targets = documents * targets;
    for (std::int64_t document = 0; document < documents; ++document) {
      const Sums& sums = totals[document][1 + v];
      mean.nll += sums.nll / all;
      mean.nll_rise += rises[document][v] / all;
      mean.kl += sums.kl / all;
      mean.last_logit_error.push_back(sums.last_logit_error);
    }
    double squares = 0, agree = 0;
    for (std::int64_t document = 0; document < documents; ++document) {
      squares += std::pow(rises[document][v] / static_cast<double>(targets) - mean.nll_rise, 2);
      agree += static_cast<double>(totals[document][1 + v].agreements);
    }
    mean.top1 = agree / all;
    if (documents > 1) mean.nll_rise_error = std::sqrt(squares / static_cast<double>(documents * (documents - 1)));
  }
  return figures;
}

std::vector<std::vector<Probe::Sums>> Probe::run_batch(std::span<const Block> blocks, std::span<const Variant> variants, std::int64_t targets,
                                                       const std::function<void(std::int64_t)>& on_target) {
  std::vector<std::vector<Sums>> totals(blocks.size());
  std::vector<DecodeDocument> sequences;
  of_row_.clear();
  sees_.clear();
  struct Row {
    std::size_t block;
    std::int64_t variant;  // 0: unrounded
  };
  std::vector<Row> rows;
  for (std::size_t b = 0; b < blocks.size(); ++b) {
    totals[b].resize(1 + blocks[b].variants);
    for (std::int64_t v = 0; v <= blocks[b].variants; ++v) {
      sequences.push_back({.tokens = std::span(documents_[blocks[b].document]).first(targets + 1), .first_target = 1});  // no prompt: all rows of all steps are decode rows
      of_row_.push_back(v == 0 ? nullptr : &variants[blocks[b].first_variant + v - 1]);
      sees_.push_back(v == 0 && blocks[b].sees);
      rows.push_back({b, v});
    }
  }
  decode_->begin(sequences);
  const auto vocabulary = static_cast<std::size_t>(config_.vocabulary);
  std::vector<std::vector<float>> shares(blocks.size(), std::vector<float>(vocabulary));  // unrounded: exp(logit - largest)
  std::vector<Distribution> native(blocks.size());
  for (std::int64_t target = 1; target <= targets; ++target) {
    const std::span<const float> logits = decode_->step();
    check(decode_->running().size() == rows.size(), "documents of one length end together");
    const auto row_of = [&](std::size_t row) { return logits.subspan(row * vocabulary, vocabulary); };
    workers_.parallel_for(std::ssize(blocks), [&](std::int64_t b, int) {
      const auto own = row_of(static_cast<std::size_t>(blocks[b].first_row));
      native[b] = distribution_of(own, shares[b].data());
      totals[b][0].nll += native[b].log_sum - (own[documents_[blocks[b].document][target]] - native[b].largest);
    });
    workers_.parallel_for(std::ssize(rows), [&](std::int64_t row, int) {
      const auto [b, variant] = rows[row];
      if (variant == 0) return;
      const auto own = row_of(static_cast<std::size_t>(row)), unrounded = row_of(static_cast<std::size_t>(blocks[b].first_row));
      const Distribution rounded = distribution_of(own, nullptr);
      Sums& sums = totals[b][variant];
      sums.nll += rounded.log_sum - (own[documents_[blocks[b].document][target]] - rounded.largest);
      double weighted = 0;
      float furthest = 0;
      for (std::size_t i = 0; i < vocabulary; ++i) {
        const float difference = unrounded[i] - own[i];
        weighted += static_cast<double>(shares[b][i]) * difference;
        furthest = std::max(furthest, std::abs(difference));
      }
      sums.kl += weighted / std::exp(native[b].log_sum) - (native[b].largest - rounded.largest) - (native[b].log_sum - rounded.log_sum);
      sums.agreements += rounded.top == native[b].top;
      sums.last_logit_error = furthest;  // the last one stays
    });
    if (on_target) on_target(std::ssize(rows));
  }
  return totals;
}

void Probe::on_new_kv(std::int64_t layer, const StepRows& rows, float* k, float* v) {
  check(rows.sequences.size() == of_row_.size() && rows.tokens.size() == of_row_.size(), "a row each of the batch's sequences");
  for (std::size_t row = 0; row < of_row_.size(); ++row) {
    if (sees_[row]) see(layer, k + row * width(), v + row * width());
  }
  const auto holds_bias = [](const Variant* variant) {
    return variant != nullptr && (variant->spare == Spare::bias || variant->spare == Spare::displaced_bias);
  };
  const std::vector<float> offsets = std::ranges::any_of(of_row_, holds_bias) ? rotated_bias(layer, rows) : std::vector<float>();
  workers_.parallel_for(std::ssize(of_row_), [&](std::int64_t row, int) {
    const Variant* variant = of_row_[row];
    if (variant == nullptr || (variant->layer != kAllLayers && variant->layer != layer)) return;
    round_row(*variant, layer, true, holds_bias(variant) ? offsets.data() + row * width() : nullptr, k + row * width());
    round_row(*variant, layer, false, nullptr, v + row * width());
  });
}

void Probe::see(std::int64_t layer, const float* k, const float* v) {
  if (layer == 0) ++seen_.rows;
  for (const auto& [side, x] : {std::pair{&seen_.keys, k}, std::pair{&seen_.values, v}}) {
    side->elements += width();
    for (std::int64_t i = 0; i < width(); ++i) {
      const float size = std::abs(x[i]);
      const std::int64_t at = layer * width() + i;
      side->largest[at] = std::max(side->largest[at], size);
      side->sum[at] += x[i];
      side->sum_squares[at] += static_cast<double>(x[i]) * x[i];
      side->saturating += size > kLargestE4m3;
      side->coarse += size > 0 && size < kLeastNormalE4m3;
    }
  }
}

// [rows, kv_heads, head_dim]: the layer's key bias, for Spare::displaced_bias displaced, as RoPE turns it at each row's position.
std::vector<float> Probe::rotated_bias(std::int64_t layer, const StepRows& rows) {
  const float* bias = model_.weights.layers[layer].k_bias;
  check(bias != nullptr, "only models with key biases have theirs spared");
  const std::int64_t count = std::ssize(of_row_), dim = config_.head_dim;
  std::vector<float> offsets(count * width());
  for (std::int64_t row = 0; row < count; ++row) {
    const std::int64_t shift = of_row_[row] != nullptr && of_row_[row]->spare == Spare::displaced_bias ? dim / 4 : 0;
    for (std::int64_t i = 0; i < width(); ++i) offsets[row * width() + i / dim * dim + (i + shift) % dim] = bias[i];
  }
  std::vector<float> angles(count * config_.rotary_dim);
  const Stream stream{&workers_};
  rope_angles(stream, {.positions = rows.positions, .inverse_frequencies = config_.inverse_frequencies.data(),
                       .rotary_dim = config_.rotary_dim, .magnitude = config_.rope_magnitude, .angles = angles.data()});
  rope(stream, {.x = offsets.data(), .tokens = count, .token_stride = width(), .heads = config_.kv_heads, .head_dim = dim,
                .rotary_dim = config_.rotary_dim, .pairs = config_.rope_pairs, .angles = angles.data()});
  return offsets;
}

// `x`: one token's keys or values, [kv_heads, head_dim]; `offset`, where given, stays exact.
void Probe::round_row(const Variant& variant, std::int64_t layer, bool keys, const float* offset, float* x) const {
  const Rounding rounding = keys ? variant.keys : variant.values;
  if (rounding == Rounding::none) return;
  const std::int64_t dim = config_.head_dim;
  const auto is_spared = [&](std::int64_t i) {
    if (!keys) return false;
    if (variant.spare == Spare::rotated) return i % dim < config_.rotary_dim;
    if (variant.spare == Spare::unrotated) return i % dim >= config_.rotary_dim;
    return variant.spare == Spare::largest && static_cast<bool>(is_largest_[layer * width() + i]);
  };
  const std::vector<float> exact(x, x + width());
  const std::vector<float>& largest = (keys ? seen_.keys : seen_.values).largest;
  for (std::int64_t first = 0; first < width(); first += dim) {
    float scale = 1;
    if (variant.calibrated) {
      const auto head = largest.begin() + layer * width() + first;
      if (const float most = *std::max_element(head, head + dim); most > 0) scale = most / kLargestE4m3;
    }
    if (offset != nullptr) {
      for (std::int64_t i = first; i < first + dim; ++i) x[i] -= offset[i];
    }
    round_trip(rounding, scale, {x + first, static_cast<std::size_t>(dim)});
    if (offset != nullptr) {
      for (std::int64_t i = first; i < first + dim; ++i) x[i] += offset[i];
    }
  }
  for (std::int64_t i = 0; i < width(); ++i) {
    if (is_spared(i)) x[i] = exact[i];
  }
}

void Probe::find_largest() {
  const std::int64_t dim = config_.head_dim, some = std::max<std::int64_t>(1, dim / 16);
  is_largest_.assign(seen_.keys.largest.size(), false);
  std::vector<std::int64_t> order(dim);
  for (std::int64_t head = 0; head < config_.layers * config_.kv_heads; ++head) {
    std::iota(order.begin(), order.end(), head * dim);
    std::ranges::stable_sort(order, std::greater(), [&](std::int64_t i) { return seen_.keys.largest[i]; });
    for (std::int64_t i = 0; i < some; ++i) is_largest_[order[i]] = true;
  }
}

}  // namespace keel
