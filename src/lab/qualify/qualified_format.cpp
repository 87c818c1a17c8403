#include "lab/qualify/qualified_format.h"

#include <algorithm>

#include "base/error.h"
#include "lab/qualify/model_digest.h"
#include "lab/qualify/plan.h"
#include "lab/qualify/record.h"

namespace keel {
namespace {

namespace fs = std::filesystem;

struct Found {
  fs::path file;
  nlohmann::json record;
};

std::vector<Found> records_in(const fs::path& folder, std::vector<std::string>& reasons) {
  std::vector<Found> found;
  std::error_code none;
  std::vector<fs::path> files;
  if (fs::exists(folder, none) && !fs::is_directory(folder, none)) reasons.push_back(fmt::format("{} is no folder of qualification records", folder.string()));
  for (const auto& entry : fs::directory_iterator(folder, none)) {
    const std::string name = entry.path().filename().string();
    if (name.ends_with(".json") && !name.ends_with(".plan.json")) files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  for (const fs::path& file : files) {
    try {
      found.push_back({file, read_record(file)});
      const nlohmann::json& subject = found.back().record.at("plan").at("subject");
      for (const char* key : {"model", "model_digest", "tokenizer_digest", "candidate", "scales_digest", "device_class", "build_line"}) {
        if (!subject.at(key).is_string()) fail("{}: subject.{} is no text", file.string(), key);
      }
      if (!subject.at("page_size").is_number_integer()) fail("{}: subject.page_size is no number", file.string());
      if (!found.back().record.at("verdict").is_string()) fail("{}: the verdict is no text", file.string());
    } catch (const std::exception& error) {
      if (!found.empty() && found.back().file == file) found.pop_back();
      reasons.push_back(fmt::format("record ignored: {}", error.what()));
    }
  }
  return found;
}

}  // namespace

QualifiedFormat qualified_format(const fs::path& folder, const QualifiedQuestion& question) {
  QualifiedFormat result;
  const std::vector<Found> records = records_in(folder, result.reasons);
  if (records.empty()) {
    result.reasons.push_back(fmt::format("KV cache type auto: 16 bits, since there is no qualification record{}; `keel qualify` makes one",
                                         folder.empty() ? std::string() : " in " + folder.string()));
    return result;
  }
  WorkerPool workers(question.threads);
  const std::string digest = model_digest(question.model, question.load, workers), tokenizer = tokenizer_digest(question.model, workers);
  const std::string device = device_class(choose_device(question.device)), line = build_line(question.version);

  for (const auto& [file, record] : records) {
    const auto candidate = record.at("plan").at("subject").at("candidate").get<std::string>();
    const auto is = [&](const char* dtype) { return candidate == to_string(parse_kv_format(dtype, question.model_dtype)); };
    if (!is("k8v8") && !is("k16v8")) {
      result.reasons.push_back(fmt::format("record {} ignored: it is about {}, which auto does not take for a model of {}", file.string(), candidate, name(question.model_dtype)));
    }
  }
  for (const char* dtype : {"k8v8", "k16v8"}) {
    const KvFormat format = parse_kv_format(dtype, question.model_dtype);
    const KvScales scales = question.kv_scales.empty() ? KvScales::unit(question.geometry) : read_calibration(question.kv_scales, question.geometry, format);
    for (const auto& [file, record] : records) {
      const nlohmann::json& subject = record.at("plan").at("subject");
      const auto of = [&](const char* key) { return subject.at(key).get<std::string>(); };
      if (of("candidate") != to_string(format)) continue;
      const bool same_name = of("model") == question.model.name;
      const auto passed_over = [&](const std::string& why) {
        result.reasons.push_back(fmt::format("record {} ignored: {}", file.string(), why));
      };
      if (of("model_digest") != digest) {
        passed_over(fmt::format("it is about {} {}…, and this is {} {}…{}", of("model"), of("model_digest").substr(0, 12), question.model.name, digest.substr(0, 12),
                                same_name ? ": the same name with other weights" : ""));
      } else if (record.at("plan").contains("broken_on_purpose")) {
        passed_over("its run was broken on purpose");
      } else if (record.at("verdict") == "pass" && !every_gate_passed(record)) {
        passed_over("its verdict is not what its gates say: it was edited");
      } else if (record.at("verdict") != "pass") {
        passed_over(fmt::format("{} did not pass there: {}", dtype, record.value("why", "")));
      } else if (of("device_class") != device || of("build_line") != line) {
        passed_over(fmt::format("it was made by {} on {}, and this is {} on {}", of("build_line"), of("device_class"), line, device));
      } else if (subject.at("page_size") != question.geometry.page_size) {
        passed_over(fmt::format("it was made with pages of {} tokens, and this has pages of {}", subject.at("page_size").dump(), question.geometry.page_size));
      } else if (of("scales_digest") != hex(scales.digest())) {
        passed_over("it was made with other scales (--kv-scales)");
      } else if (of("tokenizer_digest") != tokenizer) {
        passed_over("it was made with another tokenizer");
      } else {
        result.kv_cache_dtype = dtype;
        result.record = file;
        result.reasons.push_back(fmt::format("KV cache type auto: {}, the cheapest that passed for this model, by record {} (plan {})", dtype, file.string(), record.at("plan_sha256").get<std::string>().substr(0, 12)));
        return result;
      }
    }
  }
  result.reasons.push_back(fmt::format("KV cache type auto: 16 bits, since no record in {} shows a smaller type to be safe for this model, device and build", folder.string()));
  return result;
}

}  // namespace keel
