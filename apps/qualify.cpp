// keel qualify: is this KV cache format safe on this model, by gates fixed before anything is scored.
#include <fmt/format.h>

#include "base/log.h"
#include "bench.h"
#include "lab/qualify/qualify.h"

namespace keel {
namespace {

struct QualifyFlags {
  ModelFlags model;
  QualifyOptions options;
  std::string panel, text, questions;
  std::int64_t needles = 0;  // 0 = the panel's
};

int exit_code(Verdict verdict) { return verdict == Verdict::pass ? 0 : verdict == Verdict::fail ? 1 : 2; }

// The verdict's exit code.
int run(const QualifyFlags& flags) {
  QualifyOptions options = flags.options;
  options.model = find_model(flags.model.model);
  options.load = flags.model.load_options();
  if (!flags.panel.empty()) options.panel = read_panel(flags.panel);
  if (flags.needles > 0) options.panel.needle_cases = flags.needles;
  if (!flags.text.empty()) options.panel.text_file = flags.text;
  if (!flags.questions.empty()) options.panel.questions_file = flags.questions;
  options.version = KEEL_VERSION;
  options.commit = kCommit;
  const Qualification found = qualify(options);
  if (options.freeze_only) {
    fmt::print("plan {} in {}\n", found.plan_sha256, found.plan.string());
    return 0;
  }
  fmt::print("{} against {} on {}: {}{}\n", options.candidate, options.control, options.model.name, name(found.verdict),
             found.was_there ? " (the record of an earlier run, which is not repeated)" : "");
  for (const GateResult& gate : found.gates) fmt::print("  {:<11} {:<12} {}\n", gate.gate, name(gate.verdict), gate.why);
  fmt::print("plan {}\n", found.plan_sha256);
  if (!found.record.empty()) fmt::print("record {}\nreport {}\n", found.record.string(), found.report.string());
  return exit_code(found.verdict);
}

// A run that breaks off has judged nothing: that is no failed gate.
int run_or_break_off(const QualifyFlags& flags) {
  try {
    return run(flags);
  } catch (const std::exception& error) {
    log_line("error", error.what());
    return exit_code(Verdict::not_reached);
  }
}

}  // namespace

void add_qualify(CLI::App& app) {
  auto flags = std::make_shared<QualifyFlags>();
  QualifyOptions& options = flags->options;
  CLI::App* command = app.add_subcommand("qualify", "Is a KV cache format safe on this model: frozen gates, a record, a report");
  command->footer("Exit codes: 0 every gate passes, 1 a gate fails, 2 no verdict: gates left for later, a wrong command line, or a run that broke off.\n"
                  "The same command again goes on where a killed run stopped.");
  flags->model.add_to(*command);
  command->add_option("--candidate", options.candidate, "KV cache type to judge, such as k16v8")->required();
  command->add_option("--control", options.control, "KV cache type it is compared with")->capture_default_str();
  command->add_option("--panel", flags->panel, "JSON with other numbers of documents, cases, lengths: docs/qualify.md");
  command->add_option("--needles", flags->needles, "Cases of the retrieval gate: more of them bound the gross loss more finely (100)")->check(CLI::Range(1, 100'000));
  command->add_option("--text", flags->text, "Text for NLL and for haystacks (built-in prose)");
  command->add_option("--questions", flags->questions, "JSONL with question and answer, such as GSM8K's test set (built-in sums)");
  command->add_option("--kv-scales", options.kv_scales, "Scales of FP8 keys and values, made by `keel calibrate`");
  command->add_option("--device", options.device, "auto, cpu or cuda")->check(CLI::IsMember({"auto", "cpu", "cuda"}))->capture_default_str();
  command->add_option("-t,--threads", options.threads, "Threads that compute; 0 = one a processor")->capture_default_str();
  command->add_option("-o,--output", options.output, "The record, NAME.json; NAME.plan.json, NAME.journal.jsonl and NAME.html lie beside it (the folder that --kv-cache-dtype auto looks in)");
  command->add_option("--stop-after", options.stop_after, "production, nll, retrieval or questions: leave the gates behind it for a later run");
  command->add_option("--break", options.broken, "Make a fault of the production gate's list for real, such as 'value pages swapped': the gate must fail");
  command->add_flag("--freeze-only", options.freeze_only, "Write the plan and score nothing");
  command->callback([flags] {
    if (const int code = run_or_break_off(*flags); code != 0) throw CLI::RuntimeError(code);
  });
}

}  // namespace keel
