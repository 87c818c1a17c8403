// cuDNN's attention on 16-bit tensors in device memory: rows of any stride, causal or whole, equal lengths or many.
// A plan is built once for each SdpaShape (tens of milliseconds) and kept while it is among the last most_plans that were used.
#pragma once

#include <cuda_runtime_api.h>

#include <compare>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "base/dtype.h"
#include "base/error.h"

namespace keel::cuda {

enum class SdpaLengths : std::uint8_t {
  exact,   // every sequence has q_tokens and kv_tokens
  padded,  // those are bounds, the lengths lie in device memory; rows of out past a length are undefined
  ragged,  // so too, and sequences begin at offsets in device memory; rows of out past a length stay as they are
};

// Strides in elements.
struct SdpaShape {
  DType dtype;  // f16 or bf16
  std::int64_t heads, kv_heads, head_dim;
  float softmax_scale;
  SdpaLengths lengths = SdpaLengths::exact;
  bool causal = true;   // bottom-right: the last row sees every key
  bool square = false;  // every sequence has as many rows as tokens: the mask is given as top-left, which means the same
  bool stats = false;   // also the rows' log-sum-exp
  std::int64_t batch = 1, q_tokens, kv_tokens;
  std::int64_t q_stride, kv_stride, out_stride;                    // between tokens
  std::int64_t q_sequence = 0, kv_sequence = 0, out_sequence = 0;  // between sequences; 0 where ragged
  friend auto operator<=>(const SdpaShape&, const SdpaShape&) = default;
};

struct SdpaArgs {
  const void* q;
  const void* k;
  const void* v;
  void* out;
  float* stats = nullptr;  // [batch, heads, q_tokens], natural logarithm
  // Unless exact, device: [batch] lengths; ragged also [batch + 1] offsets in elements.
  const std::int32_t* q_lengths = nullptr;
  const std::int32_t* kv_lengths = nullptr;
  const std::int32_t* q_offsets = nullptr;
  const std::int32_t* kv_offsets = nullptr;
  const std::int32_t* out_offsets = nullptr;
};

// A call that cuDNN does not run. what() has the shape and cuDNN's words, reason() is one of few wordings, for counters.
class SdpaRefusal : public Error {
 public:
  SdpaRefusal(const char* reason, const std::string& what) : Error(what), reason_(reason) {}
  const char* reason() const { return reason_; }

 private:
  const char* reason_;
};

class CudnnSdpa {
 public:
  static constexpr std::size_t kMostPlans = 256;

  static constexpr std::int64_t kLeastWorkspaceBytes = 1 << 20;  // cuDNN 9.14: plans want 256 bytes, of many lengths 256 a sequence more

  explicit CudnnSdpa(std::size_t most_plans = kMostPlans, std::int64_t workspace_bytes = kLeastWorkspaceBytes);
  ~CudnnSdpa();

  // Builds the plans that there are not yet, and makes the workspace at least as large as the largest of them wants. Empty, or the
  // refusal of the first of them that is refused.
  std::string prepare(std::span<const SdpaShape> shapes);
  // Throws SdpaRefusal: cuDNN has no kernel for the shape, its plan wants more workspace than there is, or it fails.
  void run(cudaStream_t stream, const SdpaShape& shape, const SdpaArgs& args);
  std::int64_t workspace_bytes() const;  // device memory that the plans share
  // Of exact lengths, as many rows as tokens: the shape in the form of the causal mask (`square`) that takes less time on these tensors,
  // measured in turns. The forms mean the same; H200, 8 x 8,192: cuDNN 9.14 takes 2 % longer for bottom-right, 9.19 3 % for top-left.
  SdpaShape in_faster_form(cudaStream_t stream, const SdpaShape& shape, const SdpaArgs& args);
  bool has(const SdpaShape& shape) const;
  std::int64_t plans() const;  // kept
  std::int64_t built() const;  // so far

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace keel::cuda
