#include "lab/qualify/qualified_format.h"

#include <algorithm>

#include "base/error.h"
#include "lab/qualify/model_digest.h"
#include "lab/qualify/plan.h"
#include "lab/qualify/record.h"

namespace keel {
namespace {

namespace fs = std::filesystem;

constexpr const char* kCheapestFirst[] = {"k8v8", "k16v8"};

struct Found {
  fs::path file;
  Record record;
};

std::vector<Found> records_in(const fs::path& folder, std::vector<std::string>& reasons) {
  std::vector<fs::path> files;
  std::error_code failed;
  if (fs::exists(folder, failed)) {
    for (const auto& entry : fs::directory_iterator(folder, failed)) {
      const std::string name = entry.path().filename().string();
      if (name.ends_with(".json") && !name.ends_with(kPlanEnding)) files.push_back(entry.path());
    }
    if (failed) reasons.push_back(fmt::format("{}: no folder whose records can be read: {}", folder.string(), failed.message()));
  }
  std::sort(files.begin(), files.end());
  std::vector<Found> found;
  for (const fs::path& file : files) {
    try {
      found.push_back({file, read_record(file)});
    } catch (const Error& error) {
      reasons.push_back(fmt::format("record ignored: {}", error.what()));
    }
  }
  return found;
}

// Why the record does not let its candidate be taken; empty where it does.
std::string objection(const Record& record, const nlohmann::json& here) {
  if (std::string difference = subject_difference(record.subject, here); !difference.empty()) return difference;
  if (record.broken_on_purpose) return "its run was broken on purpose";
  if (record.verdict != Verdict::pass) return fmt::format("{} did not pass there: {}", here.at("candidate").get<std::string>(), record.why);
  return {};
}

}  // namespace

QualifiedFormat qualified_format(const fs::path& folder, const QualifiedQuestion& question) {
  QualifiedFormat result;
  const auto say = [&]<class... Args>(fmt::format_string<Args...> words, Args&&... args) { result.reasons.push_back(fmt::format(words, std::forward<Args>(args)...)); };
  const std::vector<Found> records = records_in(folder, result.reasons);
  if (records.empty()) {
    say("KV cache type auto: 16 bits, since there is no qualification record{}; `keel qualify` makes one", folder.empty() ? std::string() : " in " + folder.string());
    return result;
  }
  const ModelConfig& config = question.model.config;
  const KvGeometry geometry{config.layers, config.kv_heads, config.head_dim, question.page_size};
  WorkerPool workers(question.threads);
  Subject subject;
  subject.model_name = question.path.name;
  subject.model_digest = model_digest(question.path, question.load, workers);
  subject.tokenizer_digest = tokenizer_digest(question.path, workers);
  subject.weights = question.model.weights.format;
  subject.control = parse_kv_format("k16v16", config.dtype);
  subject.device = choose_device(question.device);
  subject.page_size = question.page_size;

  for (const auto& [file, record] : records) {
    const std::string candidate = record.subject.at("candidate");
    const bool is_taken = std::ranges::any_of(kCheapestFirst, [&](const char* dtype) { return candidate == to_string(parse_kv_format(dtype, config.dtype)); });
    if (!is_taken) say("record {} ignored: it is about {}, and auto takes {} for a model of {}", file.string(), candidate, fmt::join(kCheapestFirst, " or "), name(config.dtype));
  }
  for (const char* dtype : kCheapestFirst) {
    subject.candidate = parse_kv_format(dtype, config.dtype);
    subject.scales = question.kv_scales.empty() ? KvScales::unit(geometry) : read_calibration(question.kv_scales, geometry, subject.candidate);
    const nlohmann::json here = subject_json(subject, question.version);
    for (const auto& [file, record] : records) {
      if (record.subject.at("candidate") != here.at("candidate")) continue;
      if (const std::string why = objection(record, here); !why.empty()) {
        say("record {} ignored: {}", file.string(), why);
        continue;
      }
      result.kv_cache_dtype = dtype;
      result.record = file;
      say("KV cache type auto: {}, the cheapest that passed for this model, by record {} (plan {}), tested up to {} tokens", dtype, file.string(), record.plan_sha256.substr(0, 12),
          record.longest_context_tokens);
      const std::int64_t longest = question.longest_context > 0 ? question.longest_context : std::min(config.max_positions, config.context_limit.value_or(config.max_positions));
      if (longest > record.longest_context_tokens) {
        result.warning = fmt::format("KV cache type {} was tested up to {} tokens, and contexts of up to {} are served: nothing is known of it beyond (--max-model-len)", dtype,
                                     record.longest_context_tokens, longest);
      }
      return result;
    }
  }
  say("KV cache type auto: 16 bits, since no record in {} shows a smaller type to be safe for this model, device and build", folder.string());
  return result;
}

}  // namespace keel
