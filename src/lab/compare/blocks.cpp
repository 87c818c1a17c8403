#include "lab/compare/blocks.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "base/error.h"
#include "base/json.h"
#include "base/option_error.h"

namespace keel {
namespace {

constexpr const char* kRecord = "keel bench compare";

PlanJson as_json(const ArmRun& run) {
  PlanJson json{{"arm", run.arm}, {"status", run.error.empty() ? "ran" : "failed"}};
  if (!run.error.empty()) json["reason"] = run.error;
  json["figures"] = PlanJson::object();
  for (const auto& [metric, value] : run.figures) json["figures"][info(metric).key] = value;
  json["ran"] = run.ran;
  json["details"] = run.details;
  return json;
}

ArmRun run_of(const PlanJson& json, const std::string& where) {
  ArmRun run{.arm = json.at("arm"), .error = "", .figures = {}, .ran = json.at("ran"), .details = json.at("details")};
  if (json.at("status") != "ran") run.error = json.at("reason");
  for (const MetricInfo& metric : kArmMetrics) {
    const auto found = json.at("figures").find(metric.key);
    if (found == json.at("figures").end() || !found->is_number()) continue;
    const double value = *found;
    if (run.error.empty() && (!std::isfinite(value) || value <= 0)) refuse_option("{}: arm {}: {} is {}: wanted a number above 0", where, run.arm, metric.key, value);
    run.figures[metric.metric] = value;
  }
  return run;
}

void write_line(const std::string& path, const PlanJson& line) {
  std::ofstream out(path, std::ios::binary | std::ios::app);
  out << line.dump(-1, ' ', false, PlanJson::error_handler_t::replace) + '\n' << std::flush;
  if (!out) fail("{}: cannot be written", path);
}

// What a run claims is checked here, so that nothing that is no measurement reaches a ratio.
void check_run(ArmRun& run, const CompareArm& arm, const std::vector<CompareBlock>& earlier) {
  check(run.arm == arm.name, "a run carries its arm's name");
  if (!run.error.empty()) return;
  if (!run.figures.contains(ArmMetric::output_rate)) run.error = "the run has no throughput";
  for (const auto& [metric, value] : run.figures) {
    if (!std::isfinite(value) || value <= 0) run.error = fmt::format("{} is {}: wanted a number above 0", info(metric).key, value);
  }
  for (const CompareBlock& block : earlier) {
    for (const ArmRun& old : block.runs) {
      if (run.error.empty() && old.arm == run.arm && old.error.empty() && old.ran != run.ran) {
        run.error = fmt::format("ran as {}, in block {} as {}", shortened(run.ran.dump(), 400), block.number, shortened(old.ran.dump(), 400));
      }
    }
  }
}

}  // namespace

BlockJournal::BlockJournal(std::string path, const ComparePlan& plan, const PlanJson& head) : path_(std::move(path)), hash_(plan.sha256) {
  std::string text;
  if (std::ifstream in(path_, std::ios::binary); in) text.assign(std::istreambuf_iterator<char>(in), {});
  const std::size_t whole = text.rfind('\n') == std::string::npos ? 0 : text.rfind('\n') + 1;
  if (whole < text.size()) std::filesystem::resize_file(path_, whole), text.resize(whole);
  std::int64_t number = 0;
  for (std::size_t from = 0; from < text.size(); ++number) {
    const std::size_t end = text.find('\n', from);
    const std::string line = text.substr(from, end - from), where = fmt::format("{}:{}", path_, number + 1);
    from = end + 1;
    if (const auto problem = json_problem(line)) refuse_option("{}: {}", where, *problem);
    try {
      const PlanJson json = PlanJson::parse(line);
      if (json.at("plan_sha256") != hash_) {
        refuse_option("{}: belongs to the plan {}, not to {}: give another --output", where, shortened(json.at("plan_sha256").dump(), 18), hash_.substr(0, 16));
      }
      if (number == 0) continue;
      if (json.at("block") != number) refuse_option("{}: wanted block {}, found {}", where, number, json.at("block").dump());
      CompareBlock block{.number = number, .runs = {}};
      for (const PlanJson& run : json.at("runs")) block.runs.push_back(run_of(run, where));
      blocks_.push_back(std::move(block));
    } catch (const nlohmann::json::exception& error) {
      refuse_option("{}: {}", where, error.what());
    }
  }
  if (number > 0) return;
  PlanJson line{{"plan_sha256", hash_}, {"record", kRecord}};
  if (!head.is_null()) line.update(head);
  line["plan"] = plan.source;
  write_line(path_, line);
}

void BlockJournal::append(CompareBlock block) {
  PlanJson line{{"plan_sha256", hash_}, {"block", block.number}, {"runs", PlanJson::array()}};
  for (const ArmRun& run : block.runs) line["runs"].push_back(as_json(run));
  write_line(path_, line);
  blocks_.push_back(std::move(block));
}

void run_blocks(const ComparePlan& plan, BlockJournal& journal, std::int64_t blocks, const ArmRunner& runner,
                const std::function<void(std::int64_t, const std::string&)>& on_run) {
  const auto unfrozen = plan.order.empty() ? counterbalanced_order(plan.arms.size(), blocks, plan.seed) : std::vector<std::vector<std::size_t>>{};
  while (static_cast<std::int64_t>(journal.blocks().size()) < blocks) {
    CompareBlock block{.number = static_cast<std::int64_t>(journal.blocks().size()) + 1, .runs = {}};
    const auto row = static_cast<std::size_t>(block.number - 1);
    for (std::size_t place = 0; place < plan.arms.size(); ++place) {
      const CompareArm& arm = plan.arms[plan.order.empty() ? unfrozen[row][place] : plan.arm_at(plan.order[row % plan.order.size()][place])];
      if (on_run) on_run(block.number, arm.name);
      ArmRun run = runner(arm, block.number);
      check_run(run, arm, journal.blocks());
      block.runs.push_back(std::move(run));
    }
    journal.append(std::move(block));
  }
}

}  // namespace keel
