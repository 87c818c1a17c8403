#include "model/limits.h"

#include "base/error.h"

namespace keel {

void check_geometry(const std::string& label, const ModelConfig& config) {
  if (config.heads % config.kv_heads != 0) {
    fail(
        "{}: {} query heads do not share {} KV heads evenly", label, config.heads, config.kv_heads);
  }
  if (config.head_dim % 16 != 0 || config.head_dim < 16 || config.head_dim > kMostHeadDim) {
    fail("{}: wanted a head dimension that is a multiple of 16 up to {}, found {}",
         label,
         kMostHeadDim,
         config.head_dim);
  }
  if (!(config.rms_epsilon > 0 && config.rms_epsilon < 1)) {
    fail("{}: wanted an RMS norm epsilon between 0 and 1, found {}", label, config.rms_epsilon);
  }
}

}  // namespace keel
