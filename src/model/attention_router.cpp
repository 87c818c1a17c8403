#include "model/attention_router.h"

#include <algorithm>

namespace keel {

std::string_view name(Route route) {
  switch (route) {
    case Route::decode: return "decode";
    case Route::fresh: return "fresh";
    case Route::gather: return "gather";
    case Route::plain: return "plain";
  }
  return "";
}

bool AttentionPlan::only(Route route) const {
  return std::all_of(routed.begin(), routed.end(), [&](const RoutedSequence& s) { return s.route == route; });
}

bool AttentionPlan::any(Route route) const {
  return std::any_of(routed.begin(), routed.end(), [&](const RoutedSequence& s) { return s.route == route; });
}

AttentionPlan plan_attention(std::span<const AttentionSequence> sequences, const RouteRefusals& refusals) {
  AttentionPlan plan;
  bool leading = true;
  for (std::size_t i = 0; i < sequences.size(); ++i) {
    const AttentionSequence& sequence = sequences[i];
    leading = leading && sequence.rows == 1;
    RoutedSequence routed{.sequence = static_cast<std::int64_t>(i), .route = Route::plain, .reason = ""};
    if (leading && refusals.decode.empty()) {
      routed.route = Route::decode;
      routed.reason = "decode";
      ++plan.decode_sequences;
    } else if (leading) {
      routed.reason = refusals.decode;
    } else if (!refusals.native.empty()) {
      routed.reason = refusals.native;
    } else if (sequence.rows == sequence.context) {
      routed.route = Route::fresh;
      routed.reason = "fresh prompt";
    } else if (sequence.rows >= kLeastGatherRows) {
      routed.route = Route::gather;
      routed.reason = "cached prefix or chunk";
    } else {
      routed.reason = "fewer rows than a gather is worth";
    }
    plan.routed.push_back(std::move(routed));
  }
  return plan;
}

}  // namespace keel
