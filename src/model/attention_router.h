// Which attention path serves which sequences of a CUDA step: decode rows first, then prefill, each with the reason.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kernels/paged_attention/paged_attention.h"

namespace keel {

enum class Route : std::uint8_t {
  decode,  // one row a sequence, over the pages
  fresh,   // a whole prompt with nothing cached: native attention on the activations
  gather,  // a chunk or a cached prefix: pages gathered, then native attention
  plain,   // keel's own kernel over the pages: any shape
};
std::string_view name(Route route);

// What a geometry and format are refused by; empty = served.
struct RouteRefusals {
  std::string decode;
  std::string native;
};

// Prompts' rows below which gathering is not worth its launches: 16 rows on 8,176 tokens take it 0.20 ms, the plain kernel 0.24 (four
// sequences; 64 rows: 0.20 and 0.31. H200).
constexpr std::int64_t kLeastGatherRows = 16;

struct RoutedSequence {
  std::int64_t sequence;  // index in the step
  Route route;
  std::string reason;  // why this route, for counters and logs: "decode", "fresh prompt", "cached prefix or chunk", or the refusal
};

// Leading sequences of one row are the decode rows; they come first and are contiguous.
struct AttentionPlan {
  std::int64_t decode_sequences = 0;  // on Route::decode
  std::vector<RoutedSequence> routed;  // one a sequence, in order
  bool only(Route route) const;
  bool any(Route route) const;
};

AttentionPlan plan_attention(std::span<const AttentionSequence> sequences, const RouteRefusals& refusals);

}  // namespace keel
