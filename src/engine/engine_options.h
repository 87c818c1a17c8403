// What an engine can be told, and what that comes to for a model.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>

#include "kv/layout.h"
#include "model/config.h"
#include "model/executor.h"

namespace keel {

struct EngineOptions {
  std::string device = "auto";              // auto, cpu or cuda
  std::string kv_cache_dtype = "auto";
  // 0 = CPU: enough for max_num_seqs · max_model_len, at most 4 GiB or half of what is available; CUDA: what gpu_memory_utilization leaves
  std::int64_t kv_cache_memory_bytes = 0;
  double gpu_memory_utilization = 0.9;      // CUDA: of the device's memory, what may be in use, by all programs, once the cache is there
  bool enforce_eager = false;               // CUDA: no graphs
  bool profile_routes = false;              // CUDA: time each way through attention by itself; no graphs
  bool attention_plans = false;             // CUDA: build the common ones at start (seconds), so that no request waits for them
  std::int64_t max_model_len = 0;           // 0 = the model's own, cut to what the pool holds (said aloud)
  std::int64_t max_num_seqs = 64;
  std::int64_t max_num_batched_tokens = 0;  // 0 = 2,048 on the CPU; on CUDA 8,192, where a step of many rows is computed faster a row
  std::int64_t block_size = 16;
  std::int64_t max_queued = 1024;           // waiting requests past which submit refuses
  bool enable_prefix_caching = true;
  bool enable_chunked_prefill = true;
  int threads = 0;
  std::uint64_t seed = 0;                   // for requests without one
  std::filesystem::path kv_scales;          // calibration file; empty = unit scales
  std::function<std::unique_ptr<Executor>(std::unique_ptr<Executor>)> wrap_executor = {};  // of tests: what stands before the device's own
};

// These throw OptionError naming the flag.
void check_options(const EngineOptions& options);
// The most tokens a sequence may have; `wanted` is max_model_len.
std::int64_t longest_context(const ModelConfig& config, std::int64_t wanted);
// Of the KV cache, where sequences have up to `context` tokens.
std::int64_t pool_bytes(Device device, Executor& executor, const KvLayout& layout, const EngineOptions& options, std::int64_t context);

}  // namespace keel
