#include "lab/qualify/qualify.h"

#include <algorithm>
#include <cstdlib>
#include <optional>

#include "base/log.h"
#include "base/option_error.h"
#include "base/text_file.h"
#include "base/utc_time.h"
#include "files/gguf.h"
#include "kernels/cpu_features.h"
#include "lab/qualify/gates.h"
#include "lab/qualify/model_digest.h"
#include "lab/qualify/production.h"
#include "lab/qualify/production_faults.h"
#include "lab/qualify/record.h"

namespace keel {
namespace {

namespace fs = std::filesystem;

std::unique_ptr<Tokenizer> open_tokenizer(const ModelPath& path) {
  if (path.kind == ModelFiles::gguf) return load_tokenizer(GgufFile(path.path));
  if (path.kind == ModelFiles::hf_folder) return load_tokenizer(path.path);
  fail("{}: no tokenizer beside the config, so no text can be scored", path.path.string());
}

Trial make_trial(const QualifyOptions& options, WorkerPool& workers) {
  Trial trial{.tokenizer = open_tokenizer(options.model),
              .model = load_model(options.model, options.load),
              .subject = {},
              .control_scales = {},
              .kv_scales = options.kv_scales,
              .panel = {},
              .broken = options.broken};
  const ModelConfig& config = trial.model.config;
  const KvGeometry geometry{config.layers, config.kv_heads, config.head_dim};
  for (const auto& [flag, type] : {std::pair("--control", options.control), {"--candidate", options.candidate}}) {
    if (type == "auto") refuse_option("{} auto: wanted a type by its name, such as k16v8: auto stands for what was qualified", flag);
  }
  const KvFormat control = parse_kv_format(options.control, config.dtype), candidate = parse_kv_format(options.candidate, config.dtype);
  if (bits(control.key) < 16 || bits(control.value) < 16) {
    refuse_option("--control {}: what others are compared with has 16 bits or more on both sides", options.control);
  }
  const auto scales = [&](KvFormat format) { return options.kv_scales.empty() ? KvScales::unit(geometry) : read_calibration(options.kv_scales, geometry, format); };
  trial.control_scales = scales(control);
  trial.subject = {.model_name = options.model.name,
                   .model_digest = model_digest(options.model, options.load, workers),
                   .tokenizer_digest = tokenizer_digest(options.model, workers),
                   .weights = trial.model.weights.format,
                   .control = control,
                   .candidate = candidate,
                   .scales = scales(candidate),
                   .device = choose_device(options.device)};
  std::optional<ChatTemplate> chat_template;
  if (!trial.tokenizer->chat_template().empty()) chat_template.emplace(trial.tokenizer->chat_template());
  const std::int64_t longest = std::min(config.max_positions, config.context_limit.value_or(config.max_positions));
  trial.panel = make_panel(options.panel, *trial.tokenizer, chat_template ? &*chat_template : nullptr, longest, config.vocabulary);
  if (static_cast<std::int64_t>(trial.panel.text.size()) < kProductionTokens) {
    refuse_option("{}: {} tokens of text, and the production gate reads {}", trial.panel.text_name, trial.panel.text.size(), kProductionTokens);
  }
  return trial;
}

// One file name for model, format, device and plan.
fs::path default_output(const Subject& subject, const std::string& plan_sha256) {
  const fs::path folder = qualification_folder();
  if (folder.empty()) refuse_option("--output: neither XDG_DATA_HOME nor HOME is set, so the record needs a place of its own");
  std::string model = subject.model_name;
  std::ranges::replace_if(model, [](char c) { return c == '/' || c == ' '; }, '-');
  return folder / fmt::format("{}.{}.{}.{}.json", model, short_name(subject.candidate), subject.device == Device::cuda ? "cuda" : "cpu", plan_sha256.substr(0, 12));
}

class Run {
 public:
  explicit Run(const QualifyOptions& options);
  Qualification go();

 private:
  fs::path beside(std::string_view ending) const { return fs::path(output_).replace_extension(ending); }
  std::optional<Qualification> earlier() const;
  void freeze();
  GateResult run_gate(std::string_view gate, Journal& journal);
  Qualification write(std::vector<GateResult> gates, const Journal& journal, const std::string& device);

  const QualifyOptions& options_;
  WorkerPool workers_;
  Trial trial_;
  nlohmann::json plan_;
  std::string hash_;
  fs::path output_;
};

Run::Run(const QualifyOptions& options) : options_(options), workers_(options.threads), trial_(make_trial(options, workers_)) {
  plan_ = make_plan(trial_.subject, trial_.panel, options.panel, options.version, trial_.model.config.vocabulary);
  if (!options.broken.empty()) plan_["broken_on_purpose"] = options.broken;
  hash_ = plan_hash(plan_);
  output_ = options.output.empty() ? default_output(trial_.subject, hash_) : options.output;
  if (output_.extension() != ".json" || output_.filename().string().ends_with(kPlanEnding)) {
    refuse_option("--output {}: wanted a file name that ends with .json, and not with {}, which plans have", output_.string(), kPlanEnding);
  }
  std::error_code failed;
  if (output_.has_parent_path()) fs::create_directories(output_.parent_path(), failed);
  if (failed) fail("{}: cannot be made: {}", output_.parent_path().string(), failed.message());
}

// A record that is there already: of this plan it is the answer; of another one it is not touched.
std::optional<Qualification> Run::earlier() const {
  if (!fs::exists(output_)) return std::nullopt;
  const Record record = read_record(output_);
  if (record.plan_sha256 != hash_) fail("{}: the record of another plan; give another --output ({})", output_.string(), plan_difference(record.plan, plan_));
  return Qualification{.verdict = record.verdict, .gates = record.gates, .plan_sha256 = hash_, .record = output_, .report = beside(".html"), .plan = beside(kPlanEnding), .was_there = true};
}

void Run::freeze() {
  const fs::path file = beside(kPlanEnding);
  if (fs::exists(file)) {
    const nlohmann::json frozen = read_plan(file);
    if (frozen != plan_) fail("{}: this run is not the frozen plan ({}); give another --output", file.string(), plan_difference(frozen, plan_));
    log_info("goes by the frozen plan {}", hash_.substr(0, 12));
  } else {
    freeze_plan(file, plan_);
    log_info("plan {} is frozen in {}", hash_.substr(0, 12), file.string());
  }
}

GateResult Run::run_gate(std::string_view gate, Journal& journal) {
  if (gate == "production") return run_production(trial_, workers_, journal);
  if (gate == "nll") return run_nll(trial_, workers_, journal);
  return run_answers(trial_, gate == "retrieval" ? trial_.panel.needles : trial_.panel.questions, workers_, journal);
}

Qualification Run::write(std::vector<GateResult> gates, const Journal& journal, const std::string& device) {
  nlohmann::ordered_json effective = nlohmann::ordered_json::object();
  for (const ArmPlan& arm : kArms) {
    for (const AnswerPanel* panel : {&trial_.panel.needles, &trial_.panel.questions}) {
      if (const nlohmann::json* found = journal.find("effective " + panel->gate, arm.name, 0)) effective[arm.name].push_back(nlohmann::ordered_json(*found));
    }
  }
  nlohmann::ordered_json times{{"begun", *journal.find("begun", "", 0)}, {"ended", utc_time()}, {"seconds", nlohmann::ordered_json::object()}};
  for (const char* gate : kGates) times["seconds"][gate] = seconds_of(journal, gate);
  const nlohmann::ordered_json record = make_record(
      {.plan = plan_,
       .version = options_.version,
       .commit = options_.commit,
       .device = device,
       .cpu_target = chosen_target(),
       .threads = workers_.threads(),
       .effective = std::move(effective),
       .gates = gates,
       .does_not_cover = {"other weights, tokenizers, cache formats or scales than those named here, other device classes and other build lines",
                          fmt::format("contexts longer than {} tokens", trial_.panel.longest_context()),
                          "text, tasks and languages unlike the panel's, and sampling other than greedy",
                          "speed: nothing here was timed for comparison",
                          "a gate that fails shows that preservation was not established, not that harm was; a native floor that fails says nothing about the cache"},
       .times = std::move(times)});
  write_text_file(beside(".html"), record_report(record));
  write_text_file(output_, record.dump(1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
  const Verdict verdict = overall(gates);
  return {.verdict = verdict, .gates = std::move(gates), .plan_sha256 = hash_, .record = output_, .report = beside(".html"), .plan = beside(kPlanEnding)};
}

Qualification Run::go() {
  if (auto found = earlier()) return std::move(*found);
  freeze();
  if (options_.freeze_only) return {.plan_sha256 = hash_, .plan = beside(kPlanEnding)};

  // Says what the device is; and as long as it lives a GPU holds the weights, which all that come share.
  DecodeArm smallest = trial_.decode_arm(kArms[0]);
  smallest.graphs = false;
  CachedDecode holder(trial_.subject.device, trial_.model, smallest, {.documents = 1, .tokens = 16}, workers_);
  const std::string device = holder.executor().description();
  Journal journal(beside(".journal.jsonl"), {{"journal", "keel-qualification"},
                                             {"version", 2},
                                             {"plan_sha256", hash_},
                                             {"keel_version", options_.version},
                                             {"keel_commit", options_.commit},
                                             {"device", device},
                                             {"cpu_target", chosen_target()},
                                             {"threads", workers_.threads()}});
  if (auto found = earlier()) return std::move(*found);  // another run may have ended while this one began
  if (journal.resumed() > 0) log_info("goes on with {} entries of an earlier run", journal.resumed());
  if (options_.panel.questions_file.empty()) log_info("questions: the built-in sums, which models/tiny knows; most others miss their floor and want --questions (GSM8K's form)");
  journal.add({.gate = "begun", .arm = "", .item = 0, .found = utc_time()});

  std::vector<GateResult> gates;
  bool failed = false, stopped = false;
  for (const char* gate : kGates) {
    if (failed || stopped) {
      gates.push_back({.gate = gate, .why = failed ? "an earlier gate failed" : "left for a later run"});
      continue;
    }
    gates.push_back(run_gate(gate, journal));
    log_info("{}: {}: {}", gate, name(gates.back().verdict), gates.back().why);
    failed = gates.back().verdict != Verdict::pass;
    stopped = options_.stop_after == gate;
  }
  if (overall(gates) == Verdict::not_reached) return {.verdict = Verdict::not_reached, .gates = std::move(gates), .plan_sha256 = hash_, .plan = beside(kPlanEnding)};
  return write(std::move(gates), journal, device);
}

}  // namespace

std::filesystem::path qualification_folder() {
  const char* data = std::getenv("XDG_DATA_HOME");
  if (data != nullptr && *data != '\0') return fs::path(data) / "keel/qualifications";
  const char* home = std::getenv("HOME");
  return home != nullptr && *home != '\0' ? fs::path(home) / ".local/share/keel/qualifications" : fs::path();
}

Qualification qualify(const QualifyOptions& options) {
  if (!options.stop_after.empty() && std::find(std::begin(kGates), std::end(kGates), options.stop_after) == std::end(kGates)) {
    refuse_option("--stop-after {}: wanted {}", options.stop_after, fmt::join(kGates, ", "));
  }
  if (!options.broken.empty()) find_fault(options.broken);
  return Run(options).go();
}

}  // namespace keel
