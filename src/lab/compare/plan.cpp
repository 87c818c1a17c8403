#include "lab/compare/plan.h"

#include <algorithm>
#include <filesystem>
#include <numeric>

#include "base/error.h"
#include "base/random.h"
#include "base/sha256.h"
#include "base/text_file.h"
#include "lab/compare/fields.h"
#include "lab/compare/gate.h"
#include "lab/openai_load.h"
#include "lab/stats.h"

namespace keel {
namespace {

constexpr const char* kFormat = "keel-compare-plan";
constexpr std::int64_t kMany = std::int64_t{1} << 30;

// Arguments of a keel arm that belong to the plan.
constexpr const char* kPlanned[] = {"--dataset-name", "--random-input-len", "--input-len", "--random-output-len", "--output-len", "--random-range-ratio", "--num-prompts",
                                    "--num-warmups", "--output-json", "--save-detailed", "--repeat", "--temperature", "--metric-percentiles", "--percentile-metrics", "--seed",
                                    "--model", "-m", "--subject"};

void check_name(const std::string& name, const std::string& where) {
  const bool plain = !name.empty() && name.size() <= 64 && name.front() != '.' && name.find_first_not_of("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-") == std::string::npos;
  if (!plain) refuse_option("{}: wanted a name of letters, digits, '.', '_' and '-', found '{}'", where, shortened(name, 60));
}

KeelArm read_keel_arm(const PlanJson& json, const std::string& where) {
  Fields fields(json, where);
  KeelArm arm{.model = fields.text("model"), .program = fields.text("program", ""), .arguments = {}};
  if (fields.has("arguments")) arm.arguments = fields.texts("arguments");
  fields.end();
  for (const std::string& argument : arm.arguments) {
    for (const char* planned : kPlanned) {
      if (argument == planned || argument.starts_with(std::string(planned) + "=")) {
        refuse_option("{}: {}: the plan's workload says that, for all arms", fields.where("arguments"), argument);
      }
    }
  }
  return arm;
}

EndpointArm read_endpoint_arm(const PlanJson& json, const std::string& where) {
  Fields fields(json, where);
  EndpointArm arm{.url = fields.text("url"), .model = fields.text("model"), .path = fields.text("path", "/v1/completions"), .start = {},
                  .start_timeout_s = fields.integer("start_timeout_s", 1, 86400, 600), .reset = fields.text("reset", ""),
                  .vocabulary = fields.integer("vocabulary", 1, kMany, 10'000), .max_concurrency = fields.integer("max_concurrency", 0, 1 << 20, 0)};
  if (fields.has("start")) arm.start = fields.texts("start");
  fields.end();
  const auto address = parse_base_url(arm.url);
  if (!address) refuse_option("{}: {}", fields.where("url"), address.error());
  if (!arm.path.starts_with('/')) refuse_option("{}: wanted a path such as /v1/completions, found '{}'", fields.where("path"), arm.path);
  if (!arm.reset.empty() && !arm.reset.starts_with('/')) refuse_option("{}: wanted a path, found '{}'", fields.where("reset"), arm.reset);
  if (fields.has("start") && arm.start.empty()) refuse_option("{}: wanted a program and its arguments", fields.where("start"));
  return arm;
}

std::vector<CompareArm> read_arms(Fields& plan) {
  std::vector<CompareArm> arms;
  for (const PlanJson& json : plan.array("arms")) {
    const std::string where = fmt::format("{}[{}]", plan.where("arms"), arms.size());
    Fields fields(json, where);
    CompareArm arm{.name = fields.text("name"), .keel = {}, .endpoint = {}};
    check_name(arm.name, fields.where("name"));
    if (fields.has("keel") == fields.has("endpoint")) refuse_option("{}: wanted either keel or endpoint", where);
    if (fields.has("keel")) arm.keel = read_keel_arm(fields.at("keel"), fields.where("keel"));
    if (fields.has("endpoint")) arm.endpoint = read_endpoint_arm(fields.at("endpoint"), fields.where("endpoint"));
    fields.end();
    for (const CompareArm& other : arms) {
      if (other.name == arm.name) refuse_option("{}: two arms are named {}", where, arm.name);
      const bool shared = arm.endpoint && other.endpoint && arm.endpoint->url == other.endpoint->url;
      if (shared && (arm.endpoint->start.empty() || other.endpoint->start.empty()) && (arm.endpoint->reset.empty() || other.endpoint->reset.empty())) {
        refuse_option("{}: {} and {} are one running server, which would answer the second from its cache: give both start, or both reset", where, other.name, arm.name);
      }
    }
    arms.push_back(std::move(arm));
  }
  if (arms.size() < 2 || arms.size() > 16) refuse_option("{}: wanted 2 to 16 arms, found {}", plan.where("arms"), arms.size());
  return arms;
}

std::vector<PlannedComparison> read_comparisons(Fields& plan, const std::vector<CompareArm>& arms) {
  std::vector<PlannedComparison> comparisons;
  for (const PlanJson& json : plan.array("comparisons")) {
    const std::string where = fmt::format("{}[{}]", plan.where("comparisons"), comparisons.size());
    Fields fields(json, where);
    PlannedComparison one{.name = "", .candidate = fields.text("candidate"), .control = fields.text("control"), .kind = ComparisonKind::gain, .metric = ArmMetric::output_rate, .gates = {}};
    one.name = fields.text("name", one.candidate + " over " + one.control);
    for (const std::string& arm : {one.candidate, one.control}) {
      if (std::ranges::none_of(arms, [&](const CompareArm& known) { return known.name == arm; })) refuse_option("{}: there is no arm {}", where, arm);
    }
    if (one.candidate == one.control) refuse_option("{}: an arm is not compared with itself: plan a second arm of the same configuration", where);
    const std::string kind = fields.text("kind", "gain");
    if (kind != "gain" && kind != "guard") refuse_option("{}: wanted gain or guard, found '{}'", fields.where("kind"), kind);
    one.kind = kind == "gain" ? ComparisonKind::gain : ComparisonKind::guard;
    const std::string metric = fields.text("metric", "output_tokens_per_s");
    const auto* found = std::ranges::find_if(kArmMetrics, [&](const MetricInfo& known) { return metric == known.key; });
    if (found == std::end(kArmMetrics)) {
      std::string known;
      for (const MetricInfo& one_of : kArmMetrics) known += (known.empty() ? "" : ", ") + std::string(one_of.key);
      refuse_option("{}: wanted one of {}, found '{}'", fields.where("metric"), known, metric);
    }
    one.metric = found->metric;
    // A gain is claimed only behind quality gates; a plan without any has to say so.
    const PlanJson& gates = fields.at("gates");
    if (gates != "none") one.gates = fields.texts("gates");
    if (gates != "none" && one.gates.empty()) refuse_option("{}: wanted \"none\" or a list of qualification records", fields.where("gates"));
    if (!one.gates.empty() && std::ranges::find(arms, one.candidate, &CompareArm::name)->endpoint) {
      refuse_option("{}: {} is an endpoint, which does not say exactly enough what it runs to hold a record against it: wanted \"none\"", fields.where("gates"), one.candidate);
    }
    fields.end();
    if (std::ranges::any_of(comparisons, [&](const PlannedComparison& other) { return other.name == one.name; })) refuse_option("{}: two comparisons are named '{}'", where, one.name);
    comparisons.push_back(std::move(one));
  }
  if (comparisons.empty()) refuse_option("{}: wanted at least one", plan.where("comparisons"));
  return comparisons;
}

void read_frozen(Fields& fields, ComparePlan& plan) {
  const std::string written = fields.text("frozen_sha256");
  std::vector<std::string> every;
  for (const CompareArm& arm : plan.arms) every.push_back(arm.name);
  std::ranges::sort(every);
  for (const PlanJson& row : fields.array("order")) {
    std::vector<std::string> names;
    for (const PlanJson& arm : row) names.push_back(arm.is_string() ? arm.get<std::string>() : "");
    plan.order.push_back(names);
    std::ranges::sort(names);
    if (names != every) refuse_option("{}: wanted each arm once, found {}", fields.where("order"), shortened(row.dump(), 60));
  }
  if (static_cast<std::int64_t>(plan.order.size()) != plan.blocks) refuse_option("{}: wanted {} blocks, found {}", fields.where("order"), plan.blocks, plan.order.size());
  Fields digests(fields.at("gate_sha256"), fields.where("gate_sha256"));
  for (const auto& [path, digest] : plan.source["gate_sha256"].items()) plan.gate_digests.emplace_back(path, digests.text(path));
  plan.sha256 = plan_hash(plan.source);
  if (plan.sha256 != written) {
    refuse_option("{}: edited since it was frozen: its hash is {}, not {}. To change a plan take frozen_sha256, order and gate_sha256 out of a copy and freeze that; its results are another study's",
                  fields.where("frozen_sha256"), plan.sha256.substr(0, 16), shortened(written, 16));
  }
}

}  // namespace

std::size_t ComparePlan::arm_at(const std::string& wanted) const {
  const auto found = std::ranges::find(arms, wanted, &CompareArm::name);
  check(found != arms.end(), "a plan's arms are known");
  return static_cast<std::size_t>(found - arms.begin());
}

bool ComparePlan::is_gated(const CompareArm& arm) const {
  return std::ranges::any_of(comparisons, [&](const PlannedComparison& one) { return one.candidate == arm.name && !one.gates.empty(); });
}

std::uint64_t ComparePlan::block_seed(std::int64_t block) const { return random_u64(seed, static_cast<std::uint64_t>(block)) >> 2; }

std::string plan_hash(const PlanJson& plan) {
  nlohmann::json sorted = plan;
  sorted.erase("frozen_sha256");
  return hex(sha256(sorted.dump()));
}

ComparePlan read_compare_plan(const std::string& text, const std::string& label) {
  if (const auto problem = json_problem(text, {.allow_repeated_keys = false})) refuse_option("{}: {}", label, *problem);
  ComparePlan plan{};
  plan.source = PlanJson::parse(text);
  Fields fields(plan.source, label);
  if (fields.text("format") != kFormat) refuse_option("{}: wanted {}, found {}", fields.where("format"), kFormat, plan.source["format"].dump());
  fields.integer("version", 1, 1);
  plan.name = fields.text("name");
  plan.question = fields.text("question", "");
  plan.seed = static_cast<std::uint64_t>(fields.integer("seed", 0, INT64_MAX));
  plan.blocks = fields.integer("blocks", 1, kMostMedianValues);
  plan.timeout_s = fields.integer("timeout_s", 1, 1 << 20, 3600);
  Fields work(fields.at("workload"), fields.where("workload"));
  plan.workload = {.prompts = work.integer("prompts", 1, 1 << 20), .input_tokens = work.integer("input_tokens", 1, kMany), .output_tokens = work.integer("output_tokens", 1, kMany),
                   .range_ratio = work.number("range_ratio", 0, 0.999, 0), .vocabulary = 1};
  if (plan.workload.longest_input() + plan.workload.longest_output() > kMany / plan.workload.prompts) {
    refuse_option("{}: {} prompts of {} and {} tokens: wanted at most {} tokens in all", work.where("prompts"), plan.workload.prompts, plan.workload.input_tokens, plan.workload.output_tokens, kMany);
  }
  plan.temperature = work.number("temperature", 0, 1000, 0);
  plan.warmups = work.integer("warmup_prompts", 1, 1 << 20, 1);
  work.end();
  plan.arms = read_arms(fields);
  plan.comparisons = read_comparisons(fields, plan.arms);
  const std::int64_t gains = std::ranges::count(plan.comparisons, ComparisonKind::gain, &PlannedComparison::kind);
  plan.family = fields.integer("family", std::max<std::int64_t>(gains, 1), kMany, std::max<std::int64_t>(gains, 1));
  if (fields.has("frozen_sha256") || fields.has("order") || fields.has("gate_sha256")) read_frozen(fields, plan);
  fields.end();
  return plan;
}

PlanJson frozen_plan(const ComparePlan& plan, const std::string& folder, const std::function<PlanJson(const CompareArm&)>& subject_of) {
  if (!plan.sha256.empty()) refuse_option("the plan is frozen already, with hash {}", plan.sha256);
  PlanJson frozen = plan.source;
  for (const auto& row : counterbalanced_order(plan.arms.size(), plan.blocks, plan.seed)) {
    PlanJson names = PlanJson::array();
    for (const std::size_t arm : row) names.push_back(plan.arms[arm].name);
    frozen["order"].push_back(std::move(names));
  }
  frozen["gate_sha256"] = PlanJson::object();
  for (const PlannedComparison& comparison : plan.comparisons) {
    if (comparison.gates.empty()) continue;
    const PlanJson subject = subject_of(plan.arms[plan.arm_at(comparison.candidate)]);
    for (const std::string& record : comparison.gates) {
      frozen["gate_sha256"][record] = hex(sha256(read_text_file(std::filesystem::path(folder) / record)));
      const ComparisonGate gate = read_gate(record, folder, subject);
      if (!gate.passes) refuse_option("{}: gate {} does not pass for {}: {}. Without a gate, \"gates\": \"none\", the comparison is of speed alone", comparison.name, record, comparison.candidate, gate.words);
    }
  }
  frozen["frozen_sha256"] = plan_hash(frozen);
  return frozen;
}

std::vector<std::vector<std::size_t>> counterbalanced_order(std::size_t arms, std::int64_t blocks, std::uint64_t seed) {
  const auto shuffled = [&](std::size_t count, std::uint64_t stream) {
    std::vector<std::size_t> order(count);
    std::iota(order.begin(), order.end(), 0);
    for (std::size_t i = count; i > 1; --i) std::swap(order[i - 1], order[random_u64(random_u64(seed, stream), i) % i]);
    return order;
  };
  const std::vector<std::size_t> names = shuffled(arms, 0);
  std::vector<std::vector<std::size_t>> square;
  const bool mirrored = arms % 2 == 1;
  for (std::size_t row = 0; row < arms; ++row) {
    std::vector<std::size_t> places;
    for (std::size_t i = 0; i < arms; ++i) {  // 0, 1, n-1, 2, n-2, …
      const std::size_t zigzag = i == 0 ? 0 : i % 2 == 1 ? (i + 1) / 2 : arms - i / 2;
      places.push_back(names[(zigzag + row) % arms]);
    }
    square.push_back(places);
    if (mirrored) square.emplace_back(places.rbegin(), places.rend());
  }
  std::vector<std::vector<std::size_t>> order;
  for (std::uint64_t round = 1; static_cast<std::int64_t>(order.size()) < blocks; ++round) {
    for (const std::size_t row : shuffled(square.size(), round)) {
      if (static_cast<std::int64_t>(order.size()) < blocks) order.push_back(square[row]);
    }
  }
  return order;
}

double least_adjusted_p(const ComparePlan& plan) { return std::min(1.0, static_cast<double>(plan.family) * sign_test_p(plan.blocks, plan.blocks)); }

}  // namespace keel
