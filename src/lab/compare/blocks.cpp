#include "lab/compare/blocks.h"

#include "base/error.h"
#include "base/json.h"
#include "base/option_error.h"

namespace keel {
namespace {

constexpr const char* kRecord = "keel bench compare";

// So that every ratio of two is a number, too.
constexpr const char* kMeasurement = "a number from 1e-9 to 1e15";
bool is_measurement(double value) { return value >= 1e-9 && value <= 1e15; }

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
    if (run.error.empty() && !is_measurement(value)) refuse_option("{}: arm {}: {} is {}: wanted {}", where, run.arm, metric.key, value, kMeasurement);
    run.figures[metric.metric] = value;
  }
  return run;
}

// What a run claims is checked here, so that nothing that is no measurement reaches a ratio.
void check_run(ArmRun& run, const CompareArm& arm, const std::vector<CompareBlock>& earlier) {
  check(run.arm == arm.name, "a run carries its arm's name");
  if (!run.error.empty()) return;
  if (!run.figures.contains(ArmMetric::output_rate)) run.error = "the run has no throughput";
  for (const auto& [metric, value] : run.figures) {
    if (!is_measurement(value)) run.error = fmt::format("{} is {}: wanted {}", info(metric).key, value, kMeasurement);
  }
  for (const CompareBlock& block : earlier) {
    for (const ArmRun& old : block.runs) {
      if (run.error.empty() && old.arm == run.arm && old.error.empty() && old.ran != run.ran) {
        const auto words = [](const PlanJson& ran) { return shortened(ran.dump(-1, ' ', true), 400); };  // in ASCII: some are a server's
        run.error = fmt::format("ran as {}, in block {} as {}", words(run.ran), block.number, words(old.ran));
      }
    }
  }
}

}  // namespace

BlockJournal::BlockJournal(const std::filesystem::path& path, const ComparePlan& plan, const PlanJson& head) : lines_(path), hash_(plan.sha256) {
  if (lines_.lines().empty()) {
    PlanJson line{{"plan_sha256", hash_}, {"record", kRecord}};
    if (!head.is_null()) line.update(head);
    line["plan"] = plan.source;
    write(line);
  }
  for (std::size_t i = 0; i < lines_.lines().size(); ++i) {
    const std::string where = fmt::format("{}:{}", path.string(), i + 1);
    try {
      const PlanJson json = PlanJson::parse(lines_.lines()[i]);
      if (json.at("plan_sha256") != hash_) {
        refuse_option("{}: belongs to the plan {}, not to {}: give another --output", where, shortened(json.at("plan_sha256").dump(), 18), hash_.substr(0, 16));
      }
      if (i == 0) continue;
      CompareBlock block{.number = static_cast<std::int64_t>(i), .runs = {}};
      if (json.at("block") != block.number) refuse_option("{}: wanted block {}, found {}", where, block.number, json.at("block").dump());
      for (const PlanJson& run : json.at("runs")) block.runs.push_back(run_of(run, where));
      blocks_.push_back(std::move(block));
    } catch (const nlohmann::json::exception& error) {
      refuse_option("{}: {}", where, error.what());
    }
  }
}

void BlockJournal::write(const PlanJson& line) { lines_.append({{line.dump(-1, ' ', false, PlanJson::error_handler_t::replace)}}); }

void BlockJournal::append(CompareBlock block) {
  PlanJson line{{"plan_sha256", hash_}, {"block", block.number}, {"runs", PlanJson::array()}};
  for (const ArmRun& run : block.runs) line["runs"].push_back(as_json(run));
  write(line);
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
