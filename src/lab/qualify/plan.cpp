#include "lab/qualify/plan.h"

#include <cmath>

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
  const bool sums = options.questions_file.empty();
  const json gross_loss{{"bound", "one-sided Clopper-Pearson upper limit of items that the control has right and the candidate wrong"}, {"confidence", kConfidence}};
  json retrieval{{"gate", "retrieval"},
                 {"cases", panel.needles.size()},
                 {"lengths", panel.needle_lengths},
                 {"haystack", options.haystack_in_message ? "in the user's message" : "before the conversation"},
                 {"answer_tokens", panel.needle_answer_tokens},
                 {"right", "the answer's first run of digits is the pass key"},
                 {"limit", kRetrievalLimit},
                 {"floor", {{"control_right_at_least", kRetrievalFloor}}}};
  retrieval.update(gross_loss);
  json answers{{"gate", "questions"},
               {"panel", panel.questions_name},
               {"panel_sha256", panel.questions_sha256},
               {"questions", panel.questions.size()},
               {"answer_tokens", panel.answer_tokens},
               {"right", "the number after the last '" + panel.mark + "' is the wanted one; errors and cut-off answers are wrong"},
               {"limit", kAnswersLimit},
               {"floor", {{"control_right_at_least", sums ? kSumsFloor : kQuestionsFloor}}}};
  answers.update(gross_loss);
  return {
      {"plan", "keel-qualification-plan"},
      {"version", 1},
      {"subject",
       {{"model", subject.model_name},
        {"model_digest", subject.model_digest},
        {"tokenizer_digest", subject.tokenizer_digest},
        {"weights", subject.weights},
        {"control", to_string(subject.control)},
        {"candidate", to_string(subject.candidate)},
        {"scales", subject.scales.description()},
        {"scales_digest", hex(subject.scales.digest())},
        {"device_class", device_class(subject.device)},
        {"build_line", build_line(version)},
        {"page_size", subject.page_size}}},
      {"panel", {{"text", panel.text_name}, {"text_sha256", panel.text_sha256}, {"sha256", panel.digest()}, {"seed", options.seed}}},
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
                     {"limit", most_nll_rise()},
                     {"floor", {{"control_nll_at_most", kNllFloorShare * std::log(static_cast<double>(vocabulary))}}}},
                    retrieval, answers})}};
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
