// The two routes through cuDNN, behind PrefillAttention.
#pragma once

#include <vector>

#include "device/cuda.h"
#include "kernels/paged_attention/cudnn_sdpa.h"
#include "kernels/paged_attention/plan_tally.h"
#include "kernels/paged_attention/prefill_cuda.h"
#include "kernels/paged_attention/prefill_cuda_gather.h"

namespace keel::cuda {

class NativePrefill {
 public:
  // Throws Error where the workspace does not hold the least that gather() works with.
  NativePrefill(const KvLayout& layout, DType dtype, std::int64_t heads, std::int64_t max_rows, std::int64_t workspace_bytes);

  // With `build_only` they note the plans that they would run, and launch nothing; build_noted builds them, and returns the refusal of
  // the first that cuDNN does not have. `refused` as PrefillAttention's.
  void fresh(cudaStream_t stream, const PrefillAttentionArgs& args, bool build_only, std::vector<PrefillRefusal>* refused = nullptr);
  void gather(cudaStream_t stream, const PrefillAttentionArgs& args, bool build_only, std::vector<PrefillRefusal>* refused = nullptr);
  std::size_t noted() const { return noted_.size(); }
  std::string build_noted();
  void choose_mask(const PrefillAttentionArgs& args, std::int64_t rows);
  std::int64_t tokens() const { return tokens_; }  // of contexts that are gathered whole
  std::int64_t plans_built() const { return sdpa_.built(); }
  std::int64_t workspace_bytes() const { return workspace_.bytes() + integers_.bytes() + sdpa_.workspace_bytes(); }

 private:
  SdpaShape shape(const PrefillAttentionArgs& args) const;
  GatherArgs pages(const PrefillAttentionArgs& args);  // of no sequence yet, into the workspace
  SdpaShape exact_shape(const PrefillAttentionArgs& args, std::span<const PrefillSequence> group, bool gathered) const;  // group: evenly apart
  void run_exact(cudaStream_t stream, const PrefillAttentionArgs& args, std::span<const PrefillSequence> group, bool gathered, bool build_only);
  void run_ragged(cudaStream_t stream, const PrefillAttentionArgs& args, std::span<const PrefillSequence> group, bool gathered, bool build_only);
  void run_tiles(cudaStream_t stream, const PrefillAttentionArgs& args, const PrefillSequence& sequence, bool build_only);

  KvLayout layout_;
  DType dtype_;
  std::int64_t heads_;
  std::int64_t token_bytes_;  // of keys, and of values, gathered
  // The workspace: keys [tokens_ and spare rows, G, D], values likewise, then one block of rows that is being merged from tiles.
  std::int64_t tokens_ = 0;
  std::int64_t merged_rows_ = 0;
  DeviceBuffer<std::byte> workspace_;
  std::byte* values_ = nullptr;
  std::byte* tile_ = nullptr;     // [merged_rows_, H, D] in the model's type
  float* sum_ = nullptr;          // [merged_rows_, H, D]
  float* tile_stats_ = nullptr;   // [H, merged_rows_]
  float* stats_ = nullptr;        // [merged_rows_, H]
  DeviceBuffer<std::int32_t> integers_;
  CudnnSdpa sdpa_;
  PlanTally tally_;
  bool top_left_ = true;  // the form of the causal mask over whole tiles of square attention, where both mean the same
  std::vector<SdpaShape> noted_;
};

}  // namespace keel::cuda
