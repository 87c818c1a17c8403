#include "lab/byte_plan.h"

#include <algorithm>

#include "base/bytes.h"
#include "base/option_error.h"

namespace keel {

std::vector<KvFormat> plan_formats(DType model_dtype) {
  const DType k16 = model_dtype == DType::bf16 ? DType::bf16 : DType::f16;
  std::vector<KvFormat> formats;
  for (const DType key : {k16, DType::e4m3}) {
    for (const DType value : {k16, DType::e4m3, DType::u4}) formats.push_back({key, value});
  }
  return formats;
}

PoolPlan plan_pool(const KvLayout& layout, std::int64_t pool_bytes) {
  const std::int64_t pages = layout.pages_in(pool_bytes);
  if (pages < 1) {
    refuse_option("a KV cache of {} bytes is too small for one page of {} tokens, which takes {} bytes in {}", pool_bytes,
                  layout.geometry().page_size, layout.page_bytes(), to_string(layout.format()));
  }
  return {.pages = pages,
          .slots = pages * layout.geometry().page_size,
          .allocated_bytes = pages * layout.page_bytes(),
          .unused_bytes = pool_bytes - pages * layout.page_bytes()};
}

std::int64_t resident_requests(const PoolPlan& pool, std::int64_t page_size, std::int64_t tokens) {
  return pool.pages / ((tokens + page_size - 1) / page_size);
}

double kv_traffic_share(double weight_bytes, double batch, double context, double bytes_per_token, double other_bytes) {
  const double cache = batch * context * bytes_per_token;
  return cache / (weight_bytes + cache + other_bytes);
}

std::int64_t cached_token_reads(std::int64_t generated, std::int64_t context) {
  return generated * context + generated * (generated - 1) / 2;
}

IoCommands io_commands(std::int64_t payload_bytes, std::int64_t transfer_bytes, std::int64_t block_bytes) {
  const std::int64_t commands = (payload_bytes + transfer_bytes - 1) / transfer_bytes;
  const auto rounded = [&](std::int64_t bytes) { return (bytes + block_bytes - 1) / block_bytes * block_bytes; };
  const std::int64_t whole = payload_bytes / transfer_bytes;
  const std::int64_t bytes = whole * rounded(transfer_bytes) + rounded(payload_bytes - whole * transfer_bytes);
  return {.payload_bytes = payload_bytes,
          .load_commands = commands,
          .load_bytes = bytes,
          .store_commands = commands + 1,
          .store_bytes = bytes + kIoHeaderBytes};
}

double link_demand(const LinkWorkload& workload, double payload_bytes) {
  const double bytes = payload_bytes * workload.share;
  return std::max(bytes * workload.concurrent / workload.deadline_s, bytes * workload.events_per_second) / 1e9;
}

std::vector<LinkWorkload> default_workloads() {
  return {{.name = "decode, streaming overflow", .moves = "the whole cache again every step", .deadline_s = 0.010, .events_per_second = 0},
          {.name = "prefix reload or resume", .moves = "the cache once, before the request goes on", .deadline_s = 1, .events_per_second = 0},
          {.name = "prefill to decode hand-over", .moves = "the cache once, from worker to worker", .deadline_s = 1, .events_per_second = 0}};
}

ModelConfig tensor_parallel_rank(const ModelConfig& config, std::int64_t ranks) {
  if (ranks < 1) refuse_option("--tensor-parallel-size must be at least 1, found {}", ranks);
  ModelConfig rank = config;
  const auto divide = [&](const char* what, std::int64_t& size) {
    if (size % ranks != 0) refuse_option("--tensor-parallel-size {} does not divide the model's {} {}", ranks, size, what);
    size /= ranks;
  };
  divide("KV heads", rank.kv_heads);
  divide("query heads", rank.heads);
  divide("feed-forward columns", rank.intermediate);
  divide("vocabulary rows", rank.vocabulary);
  return rank;
}

namespace {

void check_options(const ModelConfig& config, const PlanOptions& options) {
  const auto positive = [](const char* flag, std::int64_t value, std::int64_t most) {
    if (value < 1 || value > most) refuse_option("--{} must be between 1 and {}, found {}", flag, most, value);
  };
  positive("block-size", options.page_size, kMaxPageSize);
  positive("context", options.context, std::int64_t{1} << 31);
  positive("output", options.output, std::int64_t{1} << 31);
  positive("batch", options.batch, 1 << 20);
  positive("max-num-seqs", options.max_sequences, 1 << 16);
  positive("max-num-batched-tokens", options.max_tokens, 1 << 20);
  positive("chunk-tokens", options.chunk_tokens, 1 << 24);
  positive("max-transfer-bytes", options.transfer_bytes, std::int64_t{1} << 40);
  if (options.transfer_bytes % kIoBlockBytes != 0) {
    refuse_option("--max-transfer-bytes must be a multiple of {}, found {}", kIoBlockBytes, options.transfer_bytes);
  }
  if (options.max_sequences > options.max_tokens) {
    refuse_option("--max-num-seqs {} is more than --max-num-batched-tokens {}", options.max_sequences, options.max_tokens);
  }
  if (options.pool_bytes > 0 && options.gpu_memory_bytes > 0) {
    refuse_option("--kv-cache-memory-bytes and --gpu-memory both say how large the pool is: give one of them");
  }
  if (options.curve && options.pool_bytes == 0 && options.gpu_memory_bytes == 0) {
    refuse_option("--fit wants a pool to fill: give --kv-cache-memory-bytes or --gpu-memory");
  }
  const std::int64_t longest = config.context_limit ? std::min(*config.context_limit, config.max_positions) : config.max_positions;
  if (options.context + options.output > longest) {
    refuse_option("--context {} and --output {} pass the model's {} positions{}", options.context, options.output, longest,
                  config.context_limit ? " (" + config.context_limit_reason + ")" : "");
  }
}

// Of the GPU's memory what weights, scratch and reserve leave; 0, and why, where that is no page.
void take_gpu_pool(FormatPlan& row, const BytePlan& plan) {
  const PlanOptions& options = plan.options;
  const auto allowed = static_cast<std::int64_t>(options.gpu_memory_utilization * static_cast<double>(options.gpu_memory_bytes));
  row.pool_bytes = allowed - plan.weights.device - plan.scratch_bytes - options.reserved_bytes;
  if (row.pool_bytes >= row.page_bytes) return;
  row.gpu_refusal = fmt::format("{} of {} leave no page beside weights of {} and scratch of {}", options.gpu_memory_utilization, format_bytes(options.gpu_memory_bytes),
                                format_bytes(plan.weights.device), format_bytes(plan.scratch_bytes));
  row.pool_bytes = 0;
}

FormatPlan plan_format(const KvFormat& format, const BytePlan& plan) {
  const PlanOptions& options = plan.options;
  const KvLayout layout(format, {plan.rank.layers, plan.rank.kv_heads, plan.rank.head_dim, options.page_size});
  FormatPlan row{.format = format, .bytes_per_token_layer = layout.bytes_per_token() / plan.rank.layers, .bytes_per_token = layout.bytes_per_token(), .page_bytes = layout.page_bytes(),
                 .pool_bytes = options.pool_bytes, .pool = {}, .link_gbps = {}, .gpu_refusal = ""};
  if (options.gpu_memory_bytes > 0) take_gpu_pool(row, plan);
  if (row.pool_bytes > 0) {
    row.pool = plan_pool(layout, row.pool_bytes);
    row.residents = resident_requests(*row.pool, options.page_size, plan.request_slots);
  }
  row.traffic_share = kv_traffic_share(static_cast<double>(plan.weights.step), static_cast<double>(options.batch), static_cast<double>(options.context),
                                       static_cast<double>(row.bytes_per_token), options.other_step_bytes);
  if (__builtin_mul_overflow(plan.token_reads, row.bytes_per_token, &row.generation_bytes) || __builtin_mul_overflow(options.context, row.bytes_per_token, &row.payload_bytes)) {
    refuse_option("--context {} and --output {} at {} bytes a token: wanted fewer than 2^63 bytes of cache to be read, found {} tokens of them", options.context, options.output,
                  row.bytes_per_token, plan.token_reads);
  }
  for (const LinkWorkload& workload : options.workloads) row.link_gbps.push_back(link_demand(workload, static_cast<double>(row.payload_bytes)));
  row.chunk = io_commands(options.chunk_tokens * row.bytes_per_token, options.transfer_bytes);
  return row;
}

// Where a format's residents lie on the measured curve, against the first format's.
void place_on_curve(FormatPlan& row, const FormatPlan& first, const Hill& curve) {
  if (row.residents == 0 || first.residents == 0) return;
  const auto from = static_cast<double>(first.residents), factor = static_cast<double>(row.residents) / from;
  row.curve_tokens_per_s = curve.at(static_cast<double>(row.residents));
  row.throughput_x = curve.throughput_gain(from, factor);
  row.token_time_x = curve.token_time_gain(from, factor);
}

}  // namespace

BytePlan make_byte_plan(const std::string& model, const ModelConfig& config, PlanOptions options) {
  check_options(config, options);
  if (options.workloads.empty()) options.workloads = default_workloads();
  if (options.formats.empty()) options.formats = plan_formats(config.dtype);
  BytePlan plan{.model = model, .rank = tensor_parallel_rank(config, options.ranks), .options = options, .weights = {}, .scratch = {}, .formats = {}};
  plan.weights = weight_bytes(plan.rank);
  plan.request_tokens = options.context + options.output;
  plan.request_slots = (plan.request_tokens - 1 + options.page_size - 1) / options.page_size * options.page_size;
  plan.token_reads = cached_token_reads(options.output, options.context);
  plan.scratch = cuda_scratch(plan.rank,
                              {.max_sequences = options.max_sequences,
                               .max_tokens = options.max_tokens,
                               .max_logit_rows = std::max<std::int64_t>(options.max_sequences, 64),
                               .max_context = plan.request_tokens},
                              options.multiprocessors);
  for (const NamedBytes& part : plan.scratch) plan.scratch_bytes += part.bytes;
  for (const KvFormat& format : options.formats) {
    plan.formats.push_back(plan_format(format, plan));
    if (options.curve) place_on_curve(plan.formats.back(), plan.formats.front(), options.curve->hill);
  }
  return plan;
}

}  // namespace keel
