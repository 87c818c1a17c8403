#include "lab/qualify/plan.h"

#include "base/error.h"
#include "base/json.h"
#include "base/text_file.h"
#include "lab/qualify/production.h"
#include "lab/stats.h"

namespace keel {

std::string device_class(Device device) { return device == Device::cuda ? "cuda sm_90" : "cpu"; }

std::string build_line(std::string_view version) {
  const std::size_t minor = version.find('.');
  const std::size_t patch = minor == std::string_view::npos ? minor : version.find('.', minor + 1);
  return "keel " + std::string(version.substr(0, patch));
}

nlohmann::json subject_json(const Subject& subject, std::string_view version) {
  return {{"model", subject.model_name},
          {"model_digest", subject.model_digest},
          {"tokenizer_digest", subject.tokenizer_digest},
          {"weights", subject.weights},
          {"control", to_string(subject.control)},
          {"candidate", to_string(subject.candidate)},
          {"scales", subject.scales.description()},
          {"scales_digest", hex(subject.scales.digest())},
          {"device_class", device_class(subject.device)},
          {"build_line", build_line(version)},
          {"page_size", subject.page_size}};
}

std::string subject_difference(const nlohmann::json& recorded, const nlohmann::json& here) {
  const auto text = [](const nlohmann::json& subject, const char* key) {
    const nlohmann::json& value = subject.at(key);
    const std::string words = value.is_string() ? value.get<std::string>() : value.dump();
    return std::string_view(key).ends_with("digest") ? words.substr(0, 12) + "…" : words;
  };
  if (recorded.at("model_digest") != here.at("model_digest")) {
    return fmt::format("it is about {} {}, and this is {} {}{}", text(recorded, "model"), text(recorded, "model_digest"), text(here, "model"), text(here, "model_digest"),
                       recorded.at("model") == here.at("model") ? ": the same name with other weights" : "");
  }
  struct Part {
    const char *key, *name;
  };
  for (const auto& [key, name] : {Part{"tokenizer_digest", "the tokenizer"}, Part{"weights", "weights held as"}, Part{"control", "the control"}, Part{"scales_digest", "the scales (--kv-scales)"},
                                  Part{"device_class", "the device"}, Part{"build_line", "the build"}, Part{"page_size", "the page size"}}) {
    if (recorded.at(key) != here.at(key)) return fmt::format("it was made with {} {}, and here it is {}", name, text(recorded, key), text(here, key));
  }
  return {};
}

nlohmann::json make_plan(const Subject& subject, const Panel& panel, const PanelOptions& options, std::string_view version, std::int64_t vocabulary) {
  using nlohmann::json;
  json arms = json::array();
  for (const ArmPlan& arm : kArms) {
    arms.push_back({{"arm", arm.name},
                    {"format", to_string(arm.candidate ? subject.candidate : subject.control)},
                    {"nll_prompt_chunk", arm.prompt_chunk},
                    {"nll_step_rows", arm.step_rows},
                    {"requests_at_once", arm.requests_at_once},
                    {"batched_tokens", arm.batched_tokens}});
  }
  const BootstrapPlan bootstrap;
  const NllRule nll = nll_rule(vocabulary);
  const auto gate = [](const AnswerPanel& asked, const std::string& right) {
    return json{{"gate", asked.gate},
                {"panel", asked.name},
                {"panel_sha256", asked.sha256},
                {"items", asked.items.size()},
                {"answer_tokens", asked.answer_tokens},
                {"right", right},
                {"engine_failures", "no answer: the run ends and the same command asks again"},
                {"bound", "one-sided Clopper-Pearson upper limit of items that the control has right and the candidate wrong"},
                {"confidence", kConfidence},
                {"limit", asked.rule.limit},
                {"floor", {{"control_right_at_least", asked.rule.floor}}}};
  };
  json retrieval = gate(panel.needles, "the answer's first run of digits is the pass key; no finite logit is wrong");
  retrieval["lengths"] = panel.needle_lengths;
  retrieval["haystack"] = options.haystack_in_message ? "in the user's message" : "before the conversation";
  const json questions = gate(panel.questions, "the number after the last '" + panel.questions.mark + "' is the wanted one; cut-off answers and no finite logit are wrong");
  return {
      {"plan", "keel-qualification-plan"},
      {"version", kPlanVersion},
      {"subject", subject_json(subject, version)},
      {"panel", {{"text", panel.text_name}, {"text_sha256", panel.text_sha256}, {"sha256", panel.digest()}, {"seed", options.seed}, {"longest_context_tokens", panel.longest_context()}}},
      {"arms", arms},
      {"order", "production, nll, retrieval, questions; a gate that fails ends the run, and those after it are not reached"},
      {"gates",
       json::array({{{"gate", "production"}, {"faults_detected", "all that apply"}, {"least_faults", kLeastFaults}},
                    {{"gate", "nll"},
                     {"documents", panel.documents.size()},
                     {"prompt_tokens", panel.prompt_tokens},
                     {"targets", panel.targets},
                     {"documents_at_once", kDocumentsAtOnce},
                     {"bound", "one-sided percentile bootstrap upper limit of the mean over documents of candidate minus control"},
                     {"confidence", bootstrap.confidence},
                     {"draws", bootstrap.draws},
                     {"seed", bootstrap.seed},
                     {"generator", "SplitMix64's finalizer; draw d takes documents floor(n * unit(seed, d * n + i)), i = 0 .. n-1"},
                     {"quantile", "the smallest drawn mean that at least confidence * draws means do not exceed"},
                     {"limit", nll.limit},
                     {"floor", {{"control_nll_at_most", nll.floor}}}},
                    retrieval, questions})}};
}

std::string plan_hash(const nlohmann::json& plan) { return hex(sha256(plan.dump())); }

void freeze_plan(const std::filesystem::path& file, const nlohmann::json& plan) {
  write_text_file(file, nlohmann::json{{"plan", plan}, {"sha256", plan_hash(plan)}}.dump(1) + "\n");
}

nlohmann::json read_plan(const std::filesystem::path& file) {
  const std::string text = read_text_file(file);
  if (const auto problem = json_problem(text)) fail("{}: {}", file.string(), *problem);
  const nlohmann::json json = nlohmann::json::parse(text);
  if (!json.is_object() || !json.contains("plan") || !json.contains("sha256") || !json["sha256"].is_string()) {
    fail("{}: wanted a frozen plan, an object with plan and sha256", file.string());
  }
  const std::string found = plan_hash(json["plan"]), frozen = json["sha256"];
  if (found != frozen) fail("{}: edited after it was frozen: its contents hash to {}, and it was frozen as {}", file.string(), found, frozen);
  return json["plan"];
}

std::string plan_difference(const nlohmann::json& frozen, const nlohmann::json& wanted) {
  std::string words;
  int told = 0;
  for (const auto& step : nlohmann::json::diff(frozen, wanted)) {
    if (++told > 3) return words + "; …";
    const nlohmann::json::json_pointer at(step["path"].get<std::string>());
    const auto value = [&](const nlohmann::json& json) { return json.contains(at) ? shortened(json[at].dump(), 60) : std::string("nothing"); };
    words += fmt::format("{}{}: frozen {}, wanted {}", words.empty() ? "" : "; ", at.to_string(), value(frozen), value(wanted));
  }
  return words;
}

}  // namespace keel
