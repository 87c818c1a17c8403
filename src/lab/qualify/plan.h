// The frozen plan: everything that decides what will be scored and how it will be judged, as canonical JSON (keys sorted, no
// spaces), whose SHA-256 heads every record. Nothing is scored before the plan is on disk.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "kv/scales.h"
#include "lab/qualify/panel.h"
#include "model/executor.h"

namespace keel {

// What a verdict is about. A record speaks for a run only where all of this but the name is equal.
struct Subject {
  std::string model_name;
  std::string model_digest, tokenizer_digest;
  std::string weights;  // "safetensors f16"
  KvFormat control, candidate;
  KvScales scales;      // of the candidate
  Device device = Device::cpu;
  std::int64_t page_size = 16;
};

// "cpu" or "cuda sm_90", and the releases whose kernels round alike: "keel 0.1".
std::string device_class(Device device);
std::string build_line(std::string_view version);

inline constexpr int kPlanVersion = 2;
inline constexpr std::int64_t kDocumentsAtOnce = 8;  // of NLL

// How the three arms run. The rerun is the control again, its work cut another way, as another batch on a busy server would be.
struct ArmPlan {
  const char* name;
  bool candidate;
  std::int64_t prompt_chunk, step_rows;           // of NLL
  std::int64_t requests_at_once, batched_tokens;  // of retrieval and questions
};
inline constexpr ArmPlan kArms[] = {{"control", false, 512, 0, 10, 2048}, {"rerun", false, 192, 3, 7, 1024}, {"candidate", true, 512, 0, 10, 2048}};

nlohmann::json subject_json(const Subject& subject, std::string_view version);
// Why what a record says of `recorded` says nothing of `here`: the first thing that differs, in words, but for the candidate's
// format; empty where nothing does. `recorded` has every key of `here`, of its type.
std::string subject_difference(const nlohmann::json& recorded, const nlohmann::json& here);

nlohmann::json make_plan(const Subject& subject, const Panel& panel, const PanelOptions& options, std::string_view version, std::int64_t vocabulary);
std::string plan_hash(const nlohmann::json& plan);

inline constexpr std::string_view kPlanEnding = ".plan.json";
// `file` holds {"plan": …, "sha256": …}.
void freeze_plan(const std::filesystem::path& file, const nlohmann::json& plan);
// Throws Error where the contents are not what was frozen.
nlohmann::json read_plan(const std::filesystem::path& file);

// The first places where two plans differ, in words; empty where they do not.
std::string plan_difference(const nlohmann::json& frozen, const nlohmann::json& wanted);

}  // namespace keel
