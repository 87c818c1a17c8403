#include "lab/compare/measure.h"

#include <chrono>
#include <filesystem>

#include "base/error.h"
#include "base/json.h"
#include "base/random.h"
#include "base/sha256.h"
#include "base/text_file.h"
#include "base/utc_time.h"
#include "base/utf8.h"
#include "files/mapped_file.h"
#include "lab/compare/child_process.h"
#include "lab/openai_load.h"
#include "lab/report.h"

namespace keel {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kReasonBytes = 300;

std::string last_words(const std::string& log) { return shortened(plain_line(last_line(log)), kReasonBytes); }

// "3, k16v8": of files that belong to a run.
std::string run_path(const MeasureOptions& options, const CompareArm& arm, std::int64_t block, const char* ending) {
  return (fs::path(options.log_folder) / fmt::format("{}{:03}-{}{}", options.pilot ? "pilot-" : "", block, arm.name, ending)).string();
}

std::vector<std::string> keel_words(const KeelArm& arm, const MeasureOptions& options) {
  std::vector<std::string> words{program_file(arm.program.empty() ? options.program : arm.program), "bench", "throughput", arm.model};
  words.insert(words.end(), arm.arguments.begin(), arm.arguments.end());
  return words;
}

std::vector<std::string> measuring_words(const ComparePlan& plan, const KeelArm& arm, std::uint64_t seed, const MeasureOptions& options, const std::string& record) {
  const RandomWorkload& work = plan.workload;
  std::vector<std::string> words = keel_words(arm, options);
  for (const auto& [flag, value] : std::initializer_list<std::pair<const char*, std::string>>{
           {"--num-prompts", std::to_string(work.prompts)}, {"--input-len", std::to_string(work.input_tokens)}, {"--output-len", std::to_string(work.output_tokens)},
           {"--random-range-ratio", fmt::format("{}", work.range_ratio)}, {"--num-warmups", std::to_string(plan.warmups)}, {"--temperature", fmt::format("{}", plan.temperature)},
           {"--metric-percentiles", "50,95"}, {"--seed", std::to_string(seed)}, {"--output-json", record}}) {
    words.emplace_back(flag), words.push_back(value);
  }
  return words;
}

// The output tokens that all requests of the workload ask for. Lengths do not depend on the vocabulary.
std::int64_t planned_output(const ComparePlan& plan, std::uint64_t items_seed) {
  std::int64_t tokens = 0;
  for (const WorkItem& item : random_items(plan.workload, items_seed)) tokens += item.output_tokens;
  return tokens;
}

void take_record(ArmRun& run, const PlanJson& record, const ComparePlan& plan, std::int64_t wanted_output) {
  const PlanJson& figures = record.at("figures");
  run.ran = {{"keel_version", record.at("keel_version")}, {"keel_commit", record.at("keel_commit")}, {"engine", record.at("engine")}, {"limits", record.at("limits")}};
  for (const char* key : {"completed", "failed", "duration_s", "input_tokens", "output_tokens", "peak_concurrent"}) run.details[key] = figures.at(key);
  for (const char* key : {"time", "preemptions", "attention_rows", "prefix_hit_tokens", "prefill_steps", "decode_steps"}) run.details[key] = record.at(key);
  run.details["gpu"] = record.value("gpu", PlanJson());  // programs of earlier builds have none
  if (figures.at("failed") != 0 || figures.at("completed") != plan.workload.prompts) {
    run.error = fmt::format("{} of {} requests completed", figures.at("completed").dump(), plan.workload.prompts);
  } else if (figures.at("output_tokens") != wanted_output) {
    run.error = fmt::format("{} output tokens instead of {}", figures.at("output_tokens").dump(), wanted_output);
  } else if (record.at("prefix_hit_tokens") != 0) {
    run.error = fmt::format("{} prompt tokens were found cached", record.at("prefix_hit_tokens").dump());
  }
  const auto take = [&](ArmMetric metric, const PlanJson& value) {
    if (value.is_number()) run.figures[metric] = value;
  };
  take(ArmMetric::output_rate, figures.at("output_tokens_per_s"));
  take(ArmMetric::prefill_rate, record.at("prefill_steps").at("rows_per_s"));
  if (record.at("decode_steps").at("steps") != 0) take(ArmMetric::decode_rate, record.at("decode_steps").at("rows_per_s"));
  take(ArmMetric::ttft_median, figures.at("ttft").at("median_ms"));
  take(ArmMetric::ttft_p95, figures.at("ttft").at("p95_ms"));
  take(ArmMetric::tpot_median, figures.at("tpot").at("median_ms"));
  take(ArmMetric::tpot_p95, figures.at("tpot").at("p95_ms"));
  take(ArmMetric::e2el_median, figures.at("e2el").at("median_ms"));
  take(ArmMetric::e2el_p95, figures.at("e2el").at("p95_ms"));
}

// Throws Error saying how it ended, where that was not well.
void run_to_its_end(const std::vector<std::string>& words, const std::string& log, std::int64_t timeout_s) {
  ChildProcess child(words, log);
  const auto ended = child.wait(std::chrono::seconds(timeout_s));
  if (!ended) fail("no end within {} s", timeout_s);
  if (!ended->empty()) fail("{}: {}", *ended, last_words(log));
}

void measure_keel(ArmRun& run, const ComparePlan& plan, const CompareArm& arm, std::int64_t block, std::uint64_t seed, const MeasureOptions& options) {
  const PlanJson subject = plan.is_gated(arm) ? subject_of(plan, arm, options) : PlanJson();
  const std::string log = run_path(options, arm, block, ".log"), record_path = run_path(options, arm, block, ".json");
  std::error_code ignored;
  fs::remove(record_path, ignored);
  const std::vector<std::string> words = measuring_words(plan, *arm.keel, seed, options, record_path);
  run.details["command"] = words;
  run_to_its_end(words, log, plan.timeout_s);
  if (!fs::exists(record_path)) fail("it left no record of its run");
  const std::string text = read_text_file(record_path);
  if (const auto problem = json_problem(text)) fail("its record is not one: {}", *problem);
  take_record(run, PlanJson::parse(text), plan, planned_output(plan, random_u64(seed, 1)));
  // A build with uncommitted changes says no more than "dirty".
  run.ran["program_sha256"] = hex(sha256(MappedFile(words[0]).bytes()));
  if (!plan.is_gated(arm)) return;
  run.ran["subject"] = subject;
  const PlanJson& engine = run.ran.at("engine");
  const std::string ran = fmt::format("k={},v={}", engine.at("key_type").get<std::string>(), engine.at("value_type").get<std::string>());
  if (run.error.empty() && subject.value("candidate", PlanJson()) != ran) run.error = fmt::format("it said that it would run {}, and ran {}", subject.value("candidate", PlanJson()).dump(), ran);
}

// The list of models beside the completions.
HttpReply get_models(const ServerAddress& address, const EndpointArm& arm) {
  const std::size_t slash = arm.path.rfind("/completions");
  return http_get(address, (slash == std::string::npos ? "/v1" : arm.path.substr(0, slash)) + "/models", std::chrono::seconds(10));
}

// The server's words about the model, without what changes from start to start.
PlanJson model_card(const ServerAddress& address, const EndpointArm& arm) {
  const HttpReply reply = get_models(address, arm);
  const PlanJson list = PlanJson::parse(reply.body, nullptr, false);
  if (reply.status != 200 || !list.is_object() || !list.contains("data") || !list["data"].is_array()) return nullptr;
  for (PlanJson card : list["data"]) {
    if (!card.is_object() || card.value("id", PlanJson()) != arm.model) continue;
    for (const char* key : {"created", "permission"}) card.erase(key);
    return card;
  }
  return nullptr;
}

bool answers(const ServerAddress& address, const EndpointArm& arm) {
  try {
    return get_models(address, arm).status == 200;
  } catch (const Error&) {
    return false;
  }
}

void wait_for_server(ChildProcess& server, const ServerAddress& address, const EndpointArm& arm, const std::string& log) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(arm.start_timeout_s);
  for (;;) {
    if (const auto ended = server.wait(std::chrono::milliseconds(200))) fail("the server ended before it answered: {}{}", ended->empty() ? "" : *ended + ": ", last_words(log));
    if (answers(address, arm)) return;
    if (std::chrono::steady_clock::now() > until) fail("the server does not answer after {} s", arm.start_timeout_s);
  }
}

std::vector<RequestTimes> load(const ComparePlan& plan, const EndpointArm& arm, const ServerAddress& address, std::int64_t prompts, std::uint64_t items_seed) {
  RandomWorkload work = plan.workload;
  work.prompts = prompts, work.vocabulary = arm.vocabulary;
  LoadPlan requests{.path = arm.path, .bodies = {}, .due_s = std::vector<double>(static_cast<std::size_t>(prompts)), .max_concurrency = arm.max_concurrency, .request_timeout = std::chrono::seconds(plan.timeout_s)};
  for (const WorkItem& item : random_items(work, items_seed)) requests.bodies.push_back(completion_body(item, {.model = arm.model, .temperature = plan.temperature}).dump());
  return run_load(address, requests);
}

void measure_endpoint(ArmRun& run, const ComparePlan& plan, const CompareArm& arm, std::int64_t block, std::uint64_t seed, const MeasureOptions& options) {
  const EndpointArm& endpoint = *arm.endpoint;
  ServerAddress address = parse_base_url(endpoint.url).value();
  address.api_key = options.api_key;
  const std::string log = run_path(options, arm, block, ".log");
  std::optional<ChildProcess> server;
  if (!endpoint.start.empty()) {
    run.details["command"] = endpoint.start;
    if (answers(address, endpoint)) fail("{} answers before its server is started: another one is there", address.url());
    server.emplace(endpoint.start, log);
    wait_for_server(*server, address, endpoint, log);
  }
  run.ran = {{"url", endpoint.url + endpoint.path}, {"model", endpoint.model}, {"fresh_process", !endpoint.start.empty()}, {"model_card", model_card(address, endpoint)}};
  for (const RequestTimes& warmup : load(plan, endpoint, address, plan.warmups, random_u64(seed, 0))) {
    if (!warmup.error.empty()) fail("a warm-up request failed: {}", warmup.error);
  }
  if (!endpoint.reset.empty()) {
    const HttpReply reply = http_post(address, endpoint.reset, std::chrono::seconds(60));
    if (reply.status / 100 != 2) fail("{}{}: HTTP {}: the caches were not reset", address.url(), endpoint.reset, reply.status);
  }
  const std::vector<RequestTimes> requests = load(plan, endpoint, address, plan.workload.prompts, random_u64(seed, 1));
  const RunFigures figures = figures_of(requests, duration_of(requests));
  run.details["completed"] = figures.completed, run.details["failed"] = figures.failed, run.details["duration_s"] = figures.duration_s;
  run.details["input_tokens"] = figures.input_tokens, run.details["output_tokens"] = figures.output_tokens, run.details["peak_concurrent"] = figures.peak_concurrent;
  for (const RequestTimes& request : requests) {
    if (run.error.empty() && !request.error.empty()) run.error = fmt::format("{} of {} requests failed, the first: {}", figures.failed, requests.size(), request.error);
  }
  const std::int64_t wanted = planned_output(plan, random_u64(seed, 1));
  if (run.error.empty() && figures.output_tokens != wanted) run.error = fmt::format("{} output tokens instead of {}", figures.output_tokens, wanted);
  if (!run.error.empty()) return;
  run.figures = {{ArmMetric::output_rate, figures.output_tokens_per_s()},
                 {ArmMetric::ttft_median, figures.ttft_s.median() * 1e3}, {ArmMetric::ttft_p95, figures.ttft_s.percentile(95) * 1e3},
                 {ArmMetric::e2el_median, figures.e2el_s.median() * 1e3}, {ArmMetric::e2el_p95, figures.e2el_s.percentile(95) * 1e3}};
  // Tokens that all come in one event have no time between them.
  if (figures.tpot_s.size() > 0 && figures.tpot_s.median() > 0) run.figures[ArmMetric::tpot_median] = figures.tpot_s.median() * 1e3, run.figures[ArmMetric::tpot_p95] = figures.tpot_s.percentile(95) * 1e3;
}

}  // namespace

PlanJson subject_of(const ComparePlan& plan, const CompareArm& arm, const MeasureOptions& options) {
  std::vector<std::string> words = keel_words(*arm.keel, options);
  words.emplace_back("--subject");
  const std::string log = (fs::path(options.log_folder) / (arm.name + "-subject.log")).string();
  try {
    run_to_its_end(words, log, plan.timeout_s);
  } catch (const Error& error) {
    fail("{} does not say what it would run: {} ({})", arm.name, error.what(), log);
  }
  const std::string said = last_line(log);
  const PlanJson subject = json_problem(said) ? PlanJson() : PlanJson::parse(said);
  if (!subject.is_object()) fail("{} does not say what it would run: {} ({})", arm.name, last_words(log), log);
  return subject;
}

ArmRun measure_arm(const ComparePlan& plan, const CompareArm& arm, std::int64_t block, const MeasureOptions& options) {
  ArmRun run{.arm = arm.name, .error = "", .figures = {}, .ran = nullptr, .details = PlanJson::object()};
  const std::uint64_t seed = plan.block_seed(options.pilot ? -block : block);
  run.details["started"] = utc_time();
  run.details["seed"] = seed;
  try {
    if (arm.keel) {
      measure_keel(run, plan, arm, block, seed, options);
    } else {
      measure_endpoint(run, plan, arm, block, seed, options);
    }
  } catch (const nlohmann::json::exception& error) {
    run.error = fmt::format("its record is not one: {}", error.what());
  } catch (const std::exception& error) {
    run.error = error.what();
  }
  return run;
}

}  // namespace keel
