// What `--kv-cache-dtype auto` stands for: the cheapest format that a record on this machine shows to be safe for exactly this
// model, device class, build line and scales; 16 bits where there is none.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "files/model_path.h"
#include "kv/layout.h"
#include "model/weights.h"

namespace keel {

struct QualifiedFormat {
  std::string kv_cache_dtype = "k16v16";
  std::filesystem::path record;      // empty: none
  std::vector<std::string> reasons;  // lines for the operator: what was chosen and why, and each record that was passed over
  std::string warning;               // contexts longer than the record's; empty = none
};

// All as the server would use it.
struct QualifiedQuestion {
  const ModelPath& path;
  const LoadOptions& load;
  const LoadedModel& model;
  std::filesystem::path kv_scales;  // empty = unit
  std::string device;               // as --device says
  std::string version;
  std::int64_t page_size = 16;
  std::int64_t longest_context = 0;  // --max-model-len; 0 = the model's own
  int threads = 0;
};

// Formats are tried as k8v8, then k16v8. The model's bytes are only read where the folder holds records. Records that cannot be read,
// were edited or are about something else are named in `reasons`.
QualifiedFormat qualified_format(const std::filesystem::path& folder, const QualifiedQuestion& question);

}  // namespace keel
