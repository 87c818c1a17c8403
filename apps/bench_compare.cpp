// keel bench compare PLAN: arms in paired blocks, judged by the rules of a frozen plan.
#include <fmt/format.h>

#include <cstdlib>
#include <filesystem>

#include "base/error.h"
#include "base/log.h"
#include "base/option_error.h"
#include "base/text_file.h"
#include "bench.h"
#include "lab/compare/measure.h"
#include "lab/compare/report.h"

namespace keel {
namespace {

namespace fs = std::filesystem;

struct CompareFlags {
  std::string plan, output;
  bool freeze = false;
  std::int64_t pilot = 0;
};

fs::path output_of(const CompareFlags& flags) { return flags.output.empty() ? fs::path(flags.plan).replace_extension("results") : fs::path(flags.output); }

MeasureOptions measure_options(const CompareFlags& flags) {
  const fs::path runs = output_of(flags) / "runs";
  MeasureOptions options{.program = fs::read_symlink("/proc/self/exe").string(), .log_folder = runs.string(), .api_key = "", .pilot = flags.pilot > 0};
  if (const char* key = std::getenv("OPENAI_API_KEY")) options.api_key = key;
  return options;
}

void freeze(const CompareFlags& flags, const ComparePlan& plan, const std::string& folder) {
  const MeasureOptions options = measure_options(flags);
  const PlanJson frozen = frozen_plan(plan, folder, [&](const CompareArm& arm) {
    fs::create_directories(options.log_folder);
    return subject_of(plan, arm, options);
  });
  write_text_file(flags.plan, frozen.dump(2) + "\n");
  const ComparePlan check = read_compare_plan(read_text_file(flags.plan), flags.plan);
  fmt::print("{}: frozen, SHA-256 {}\n", flags.plan, check.sha256);
  for (std::size_t block = 0; block < check.order.size(); ++block) fmt::print("  block {}: {}\n", block + 1, fmt::join(check.order[block], ", "));
  const std::size_t cycle = check.arms.size() % 2 == 0 ? check.arms.size() : 2 * check.arms.size();
  if (check.blocks % static_cast<std::int64_t>(cycle) != 0) log_warning("{} blocks are no multiple of {}: the order is not balanced to the end", check.blocks, cycle);
  const bool gains = std::ranges::any_of(check.comparisons, [](const PlannedComparison& one) { return one.kind == ComparisonKind::gain; });
  if (gains && least_adjusted_p(check) > kMostGainP) {
    log_warning("{} blocks with a family of {} can confirm no gain: even all wins give an adjusted p of {:.4g}", check.blocks, check.family, least_adjusted_p(check));
  }
}

// What the pilots came to; 2 where an arm does not run.
int tell_pilots(const BlockJournal& journal, const fs::path& file) {
  bool failed = false;
  for (const CompareBlock& block : journal.blocks()) {
    for (const ArmRun& run : block.runs) {
      failed |= !run.error.empty();
      fmt::print("pilot {}, {}: {}\n", block.number, run.arm, !run.error.empty() ? "failed: " + run.error : fmt::format("{:.6g} output tokens/s", run.figures.at(ArmMetric::output_rate)));
    }
  }
  fmt::print("Pilots are in {} and count in nothing.\n", file.string());
  return failed ? 2 : 0;
}

int compare(const CompareFlags& flags) {
  const ComparePlan plan = read_compare_plan(read_text_file(flags.plan), flags.plan);
  const std::string folder = fs::path(flags.plan).parent_path().string();
  if (flags.freeze) return freeze(flags, plan, folder), 0;
  if (plan.sha256.empty() && flags.pilot == 0) refuse_option("{} is not frozen: nothing is measured before `keel bench compare {} --freeze`; --pilot runs without", flags.plan, flags.plan);
  const fs::path output = output_of(flags);
  const MeasureOptions options = measure_options(flags);
  fs::create_directories(options.log_folder);
  const PlanJson head{{"keel_version", KEEL_VERSION}, {"keel_commit", kCommit[0] != '\0' ? PlanJson(kCommit) : PlanJson()}, {"pilot", options.pilot}};
  const fs::path file = output / (options.pilot ? "pilot.jsonl" : "raw.jsonl");
  if (options.pilot) fs::remove(file);  // it tells of the plan and the arms as they are now
  BlockJournal journal(file, plan, head);
  const std::int64_t blocks = options.pilot ? flags.pilot : plan.blocks, done = static_cast<std::int64_t>(journal.blocks().size());
  if (done > 0 && done < blocks) log_info("{} of {} blocks are in {} already", done, blocks, output.string());
  const auto runner = [&](const CompareArm& arm, std::int64_t block) {
    ArmRun run = measure_arm(plan, arm, block, options);
    if (!run.error.empty()) log_line("error", fmt::format("{}, block {}: failed: {}", arm.name, block, run.error));
    return run;
  };
  run_blocks(plan, journal, blocks, runner, [&](std::int64_t block, const std::string& arm) { log_info("{} {} of {}: {}", options.pilot ? "pilot" : "block", block, blocks, arm); });
  if (options.pilot) return tell_pilots(journal, file);
  const CompareResult result = judge(plan, journal.blocks(), folder);
  write_text_file(output / "report.json", as_json(plan, result, journal.blocks()).dump(2, ' ', false, PlanJson::error_handler_t::replace) + "\n");
  write_text_file(output / "report.html", to_html(plan, result, journal.blocks()));
  const std::string text = to_text(plan, result);
  write_text_file(output / "report.txt", text);
  fmt::print("{}", text);
  log_info("{}: raw.jsonl, report.json, report.html, report.txt", output.string());
  return result.exit_code;
}

}  // namespace

void add_bench_compare(CLI::App& bench) {
  auto flags = std::make_shared<CompareFlags>();
  CLI::App* command = bench.add_subcommand("compare", "Arms in paired blocks, judged by a frozen plan");
  command->add_option("plan", flags->plan, "The plan: docs/formats/compare-plan.md")->required();
  command->add_flag("--freeze", flags->freeze, "Write the order of the arms and the plan's hash into it; measure nothing");
  command->add_option("--pilot", flags->pilot, "Run so many blocks apart, to see whether it works: they count in nothing")->check(CLI::Range(std::int64_t{1}, std::int64_t{1000}));
  command->add_option("-o,--output", flags->output, "Folder of the results (the plan's name with .results); a run that was stopped goes on there");
  command->footer("Exit codes: 0 every planned gain confirmed, 1 not, 2 not reached or a wrong plan; of --pilot 0 every arm ran, 2 not. A key for endpoints is taken from OPENAI_API_KEY.");
  command->callback([flags] {
    int code = 2;
    try {
      code = compare(*flags);
    } catch (const OptionError&) {
      throw;
    } catch (const std::exception& error) {  // no verdict was reached: never 1, which is one
      log_line("error", error.what());
    }
    if (code != 0) throw CLI::RuntimeError(code);
  });
}

}  // namespace keel
