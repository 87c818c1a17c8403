// What a KV cache of a model costs and holds, from its config alone. Every figure is calculated; nothing is measured here.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kv/layout.h"
#include "lab/hill_fit.h"
#include "model/config.h"

namespace keel {

// 16-bit keys with 16-, 8- and 4-bit values, then FP8 keys with the same.
std::vector<KvFormat> plan_formats(DType model_dtype);

struct PoolPlan {
  std::int64_t pages, slots, allocated_bytes, unused_bytes;
};
// Throws OptionError where not one page fits.
PoolPlan plan_pool(const KvLayout& layout, std::int64_t pool_bytes);
// Requests that hold `tokens` each, in pages of their own.
std::int64_t resident_requests(const PoolPlan& pool, std::int64_t page_size, std::int64_t tokens);

// B·T·b / (W + B·T·b + O): the cache's share of the bytes that a decode step reads.
double kv_traffic_share(double weight_bytes, double batch, double context, double bytes_per_token, double other_bytes);
// Cached tokens that `generated` steps read of a sequence that begins with `context`: G·C + G·(G-1)/2.
std::int64_t cached_token_reads(std::int64_t generated, std::int64_t context);

// A payload split into commands of at most `transfer_bytes`, each rounded up to `block_bytes`; a store writes one header more.
struct IoCommands {
  std::int64_t payload_bytes, load_commands, load_bytes, store_commands, store_bytes;
};
inline constexpr std::int64_t kIoBlockBytes = 4096, kIoHeaderBytes = 4096;
IoCommands io_commands(std::int64_t payload_bytes, std::int64_t transfer_bytes, std::int64_t block_bytes = kIoBlockBytes);

// Workloads that move a sequence's cache: the bytes must arrive within a deadline, and `events_per_second` must be sustained.
struct LinkWorkload {
  std::string name, moves;
  double deadline_s;
  double events_per_second;  // 0: one alone
  double share = 1;          // of the sequence's cache that moves
  double concurrent = 1;     // sequences that share the deadline
};
// Decimal GB/s; the larger of what the deadline and the rate want.
double link_demand(const LinkWorkload& workload, double payload_bytes);

// Of one rank; Error naming what does not divide.
ModelConfig tensor_parallel_rank(const ModelConfig& config, std::int64_t ranks);

struct WeightBytes {
  std::int64_t device;  // as the CUDA backend holds them: 16-bit or AWQ's packed matrices, 16-bit biases, f32 norms
  std::int64_t step;    // of those, what a decode step reads: all but an embedding that is not the head
};
WeightBytes weight_bytes(const ModelConfig& config);

struct StepLimits {
  std::int64_t max_sequences, max_tokens, max_logit_rows, max_context;
  std::int64_t prefill_workspace_bytes = std::int64_t{256} << 20;
};
struct NamedBytes {
  std::string name;
  std::int64_t bytes;
};
// The CUDA backend's buffers of model/cuda_decoder.h by their shapes, for `multiprocessors`. Not in it: the context and modules
// of CUDA, cuDNN's own plans, captured graphs. The same for every cache format: decode attention's part is the largest that any has.
std::vector<NamedBytes> cuda_scratch(const ModelConfig& config, const StepLimits& limits, int multiprocessors);

struct PlanOptions {
  std::int64_t pool_bytes = 0;        // either this,
  std::int64_t gpu_memory_bytes = 0;  // or the pool is what the GPU's memory leaves
  double gpu_memory_utilization = 0.9;
  std::int64_t reserved_bytes = 0;    // of the GPU's memory, for what cannot be calculated
  int multiprocessors = 132;
  std::int64_t context = 8192, output = 128, batch = 1;
  std::int64_t max_sequences = 64, max_tokens = 8192, page_size = 16, ranks = 1;
  double other_step_bytes = 0;
  std::int64_t transfer_bytes = 128 << 10, chunk_tokens = 256;
  std::vector<LinkWorkload> workloads;
  std::vector<KvFormat> formats;  // empty: plan_formats
  std::optional<MeasuredCurve> curve;  // then the pool's residents are batches on it
};
// Streaming every 10 ms, a reload within 1 s, a hand-over within 1 s.
std::vector<LinkWorkload> default_workloads();

struct FormatPlan {
  KvFormat format;
  std::int64_t bytes_per_token_layer, bytes_per_token, page_bytes;
  std::int64_t pool_bytes = 0;
  std::optional<PoolPlan> pool;
  std::int64_t residents = 0;
  double traffic_share = 0;
  std::int64_t generation_bytes = 0;  // of cache that one request's output tokens read
  std::int64_t payload_bytes = 0;     // of one sequence at `context`
  std::vector<double> link_gbps;      // one a workload
  IoCommands chunk{};
  double curve_tokens_per_s = 0;      // at as many sequences as are resident; with a curve and residents alone
  double throughput_x = 0, token_time_x = 0;  // against the first format
  std::string gpu_refusal;  // why the GPU's memory holds no pool in this format
};

struct BytePlan {
  std::string model;
  ModelConfig rank;  // one rank's share of the model
  PlanOptions options;
  WeightBytes weights;
  std::int64_t request_tokens = 0, request_slots = 0;  // context + output, and what it caches (all but the last token) in whole pages
  std::int64_t token_reads = 0;
  std::vector<NamedBytes> scratch;  // CUDA
  std::int64_t scratch_bytes = 0;
  std::vector<FormatPlan> formats;
};
BytePlan make_byte_plan(const std::string& model, const ModelConfig& config, PlanOptions options);

}  // namespace keel
