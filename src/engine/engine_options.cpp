#include "engine/engine_options.h"

#include <algorithm>

#include "base/bytes.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/option_error.h"

namespace keel {
namespace {

constexpr std::int64_t kDefaultPoolBytes = std::int64_t{4} << 30;

}  // namespace

void check_options(const EngineOptions& options) {
  const auto at_least_one = [](const char* flag, std::int64_t value, std::int64_t most) {
    if (value < 1 || value > most) refuse_option("--{} must be between 1 and {}, found {}", flag, most, value);
  };
  at_least_one("max-num-seqs", options.max_num_seqs, 1 << 16);
  at_least_one("max-num-batched-tokens", options.max_num_batched_tokens, 1 << 20);
  at_least_one("max-queued", options.max_queued, 1 << 20);
  if (options.max_model_len < 0) refuse_option("--max-model-len must be positive, found {}", options.max_model_len);
  if (options.kv_cache_memory_bytes < 0) refuse_option("--kv-cache-memory-bytes must be positive, found {}", options.kv_cache_memory_bytes);
  if (options.max_num_seqs > options.max_num_batched_tokens) {
    refuse_option("--max-num-seqs {} is more than --max-num-batched-tokens {}: a step must have room for one token of each sequence",
         options.max_num_seqs, options.max_num_batched_tokens);
  }
}

std::int64_t longest_context(const ModelConfig& config, std::int64_t wanted) {
  std::int64_t longest = config.max_positions;
  if (config.context_limit && *config.context_limit < longest) longest = *config.context_limit;
  if (wanted > longest && longest == config.context_limit) {
    refuse_option("--max-model-len {} is past {}: {}", wanted, longest, config.context_limit_reason);
  }
  if (wanted > longest) refuse_option("--max-model-len {} is more than the model's own {} positions", wanted, longest);
  return wanted > 0 ? wanted : longest;
}

std::int64_t pool_bytes(Device device, Executor& executor, const KvLayout& layout, const EngineOptions& options, std::int64_t context) {
  if (options.kv_cache_memory_bytes > 0) {
    if (layout.pages_in(options.kv_cache_memory_bytes) < 1) {
      refuse_option("--kv-cache-memory-bytes {} is too small for one page of {} tokens, which takes {} bytes in {}",
                    options.kv_cache_memory_bytes, layout.geometry().page_size, layout.page_bytes(), to_string(layout.format()));
    }
    if (const std::int64_t there = available_memory_bytes(); device == Device::cpu && options.kv_cache_memory_bytes > there) {
      log_warning("--kv-cache-memory-bytes {} is more than the {} of memory that are available: the process may be killed as the cache fills",
                  format_bytes(options.kv_cache_memory_bytes), format_bytes(there));
    }
    return options.kv_cache_memory_bytes;
  }
  if (device == Device::cuda) return executor.cache_bytes(options.gpu_memory_utilization);
  const std::int64_t page_size = layout.geometry().page_size;
  const std::int64_t pages_a_sequence = (context + page_size - 1) / page_size;
  const std::int64_t most = std::min(kDefaultPoolBytes, available_memory_bytes() / 2);
  const std::int64_t pages = std::min(pages_a_sequence * options.max_num_seqs, layout.pages_in(most));
  return pages * layout.page_bytes();
}

}  // namespace keel
