// Documents decoded from the engine's own 16-bit cache with keys or values rounded on their way into it, many roundings side by
// side: every rounding is a sequence of the same steps, compared target by target with the unrounded one beside it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "lab/quality/cached_decode.h"
#include "lab/scan/round_trip.h"

namespace keel {

// What of the rounded keys is given back its exact value, to see what carries the damage.
enum class Spare : std::uint8_t {
  nothing,
  bias,            // the key bias: only what varies around it is rounded
  displaced_bias,  // the same numbers, each held for the channel a quarter of the head further: a control that must not help
  rotated,         // the channels that RoPE turns
  unrotated,       // those that it does not
  largest,         // the sixteenth of each head's channels with the largest |key| seen
};

inline constexpr std::int64_t kAllLayers = -1;

struct Variant {
  Rounding keys = Rounding::none, values = Rounding::none;
  std::int64_t layer = kAllLayers;  // rounded there alone
  Spare spare = Spare::nothing;
  bool calibrated = false;  // E4M3 with the scales that `keel calibrate` would make of what was seen; else unit scales
};

// Against the unrounded run, over all targets. Logarithms are natural.
struct VariantFigures {
  std::int64_t targets = 0;
  double nll = 0, nll_rise = 0;
  double nll_rise_error = 0;  // standard error of nll_rise over the documents; 0 of a single one
  double kl = 0;              // mean KL(unrounded || rounded)
  double top1 = 0;            // share of targets whose most likely token is the same
  std::vector<double> last_logit_error;  // [documents] largest |difference of a logit| at the last target

  double perplexity_times() const;
};

// Largest and mean magnitudes of the unrounded keys or values (keys after RoPE).
struct SeenSide {
  std::vector<float> largest;            // [layers · kv_heads · head_dim]
  std::vector<double> sum, sum_squares;  // likewise
  std::int64_t elements = 0, saturating = 0, coarse = 0;  // of E4M3 at unit scale: past 448; not 0 and below 2^-6, where steps no longer shrink
};
struct Seen {
  std::int64_t rows = 0;
  SeenSide keys, values;
};

// Thread rule: one call at a time.
class Probe {
 public:
  // `model` and `workers` must outlive it. All documents have the same length, at least 2 tokens; every token but the first is a target.
  Probe(const LoadedModel& model, std::vector<std::vector<std::int32_t>> documents, WorkerPool& workers);

  // The first `targets` of the first `documents`; the first call must take all of both, and sees keys and values. `on_target` hears of
  // every sequence's target done.
  std::vector<VariantFigures> run(std::span<const Variant> variants, std::int64_t documents, std::int64_t targets,
                                  const std::function<void(std::int64_t)>& on_target = {});

  std::int64_t documents() const { return static_cast<std::int64_t>(documents_.size()); }
  std::int64_t targets() const { return static_cast<std::int64_t>(documents_.front().size()) - 1; }  // of a document
  // What a run computes, unrounded sequences included, in targets: for progress bars.
  std::int64_t work(std::int64_t variants, std::int64_t documents, std::int64_t targets) const;
  double native_nll() const { return native_nll_; }  // of all documents
  const Seen& seen() const { return seen_; }
  const KvFormat& cache() const { return format_; }

 private:
  // A document's unrounded sequence and some variants behind it, in neighbouring rows.
  struct Block {
    std::int64_t document, first_variant, variants, first_row;
    bool sees;
  };
  struct Sums {  // over a sequence's targets
    double nll = 0, kl = 0;
    std::int64_t agreements = 0;   // same most likely token
    double last_logit_error = 0;
  };

  // [blocks][1 + the block's variants], the unrounded sequence first.
  std::vector<std::vector<Sums>> run_batch(std::span<const Block> blocks, std::span<const Variant> variants, std::int64_t targets,
                                           const std::function<void(std::int64_t)>& on_target);
  void on_new_kv(std::int64_t layer, const StepRows& rows, float* k, float* v);
  void see(std::int64_t layer, const float* k, const float* v);
  std::vector<float> rotated_bias(std::int64_t layer, const StepRows& rows);
  void round_row(const Variant& variant, std::int64_t layer, bool keys, const float* offset, float* x) const;
  void find_largest();
  std::int64_t width() const { return config_.kv_heads * config_.head_dim; }

  const LoadedModel& model_;
  const ModelConfig& config_;
  std::vector<std::vector<std::int32_t>> documents_;
  WorkerPool& workers_;
  KvFormat format_;
  std::int64_t at_once_;  // sequences
  std::unique_ptr<CachedDecode> decode_;
  std::vector<const Variant*> of_row_;  // of the running batch; null: unrounded
  std::vector<bool> sees_;              // likewise
  Seen seen_;
  std::vector<bool> is_largest_;  // [layers · kv_heads · head_dim] keys that Spare::largest leaves exact
  double native_nll_ = 0;
};

}  // namespace keel
