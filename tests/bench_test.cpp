// Benchmarks end to end on the tiny model: an engine, a server in this process, and the program itself.
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <fstream>

#include "lab/offline_run.h"
#include "lab/openai_load.h"
#include "lab/report.h"
#include "server_fixture.h"
#include "test_device.h"

namespace keel {
namespace {

constexpr RandomWorkload kWorkload{.prompts = 6, .input_tokens = 40, .output_tokens = 12, .vocabulary = 4096};

class OfflineRunTest : public testing::Test {
 protected:
  void SetUp() override {
    if (tiny_model().empty()) GTEST_SKIP() << "no models/tiny here";
  }
};

TEST_F(OfflineRunTest, AccountsForEveryTokenAndStep) {
  const auto engine = tiny_engine({.enable_prefix_caching = false});
  const auto start = std::chrono::steady_clock::now();
  const OfflineRun run = run_offline(*engine, random_items(kWorkload, 1), 0);
  const double outside_s = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  const RunFigures figures = figures_of(run.requests, run.duration_s);
  EXPECT_EQ(figures.completed, 6);
  EXPECT_EQ(figures.input_tokens, 6 * 40);
  EXPECT_EQ(figures.output_tokens, 6 * 12);
  EXPECT_EQ(figures.itl_s.size(), 6u * 11);
  // All prompts fit one step, and then each of 11 steps gives every request a token.
  const Phases phases = phases_of(run.steps);
  EXPECT_EQ(phases.prefill.steps, 1);
  EXPECT_EQ(phases.prefill.rows, 6 * 40);
  EXPECT_EQ(phases.decode.steps, 11);
  EXPECT_EQ(phases.decode.rows, 6 * 11);
  // A decode step reads what was cached before it and the row it adds: 41 tokens, then 42, … 51.
  EXPECT_EQ(phases.decode.attended_tokens, 6 * (41 + 51) * 11 / 2);
  EXPECT_EQ(phases.prefill.attended_tokens, 6 * 40 * 41 / 2);  // each row to those before it and itself
  EXPECT_LE(phases.prefill.seconds + phases.decode.seconds, outside_s);
  EXPECT_LE(run.duration_s, outside_s);
  EXPECT_GE(run.duration_s, figures.e2el_s.percentile(100));
  EXPECT_EQ(run.prefix_hits, 0);
}

TEST_F(OfflineRunTest, SplitsPromptsWhereStepsAreSmall) {
  const auto engine = tiny_engine({.max_num_seqs = 2, .max_num_batched_tokens = 16, .enable_prefix_caching = false});
  const OfflineRun run = run_offline(*engine, random_items(kWorkload, 2), 0);
  const Phases phases = phases_of(run.steps);
  std::int64_t prefill = 0, decode = 0;
  for (const StepTime& step : run.steps) prefill += step.prefill_rows, decode += step.decode_rows;
  EXPECT_EQ(prefill, 6 * 40);
  EXPECT_EQ(decode, 6 * 11);
  EXPECT_GE(phases.prefill.steps, 6 * 40 / 16);
  EXPECT_EQ(phases.prefill.rows + phases.decode.rows, prefill + decode);
  EXPECT_EQ(phases.prefill.attended_tokens + phases.decode.attended_tokens, 6 * (40 * 41 + (41 + 51) * 11) / 2);
}

TEST_F(OfflineRunTest, SaysWhatTheEngineRefuses) {
  const auto engine = tiny_engine();
  RandomWorkload workload = kWorkload;
  workload.output_tokens = 1 << 20;
  EXPECT_THROW(run_offline(*engine, random_items(workload, 3), 0), Error);
}

class LoadTest : public ServerTest {
 protected:
  ServerAddress address() const { return {.host = "127.0.0.1", .port = std::to_string(port())}; }
  LoadPlan plan(std::int64_t prompts, std::int64_t output_tokens) const {
    RandomWorkload workload = kWorkload;
    workload.prompts = prompts;
    workload.output_tokens = output_tokens;
    LoadPlan plan{.path = "/v1/completions", .due_s = std::vector<double>(prompts), .request_timeout = std::chrono::seconds(600)};
    for (const WorkItem& item : random_items(workload, 4)) plan.bodies.push_back(completion_body(item, {}).dump());
    return plan;
  }
};

TEST_F(LoadTest, GivesEveryRequestItsTokens) {
  serve();
  const auto requests = run_load(address(), plan(12, 20));
  const RunFigures figures = figures_of(requests, duration_of(requests));
  for (const RequestTimes& request : requests) EXPECT_EQ(request.error, "");
  EXPECT_EQ(figures.input_tokens, 12 * 40);
  EXPECT_EQ(figures.output_tokens, 12 * 20);
  EXPECT_GT(figures.ttft_s.percentile(0), 0);
  EXPECT_LE(figures.ttft_s.mean(), figures.e2el_s.mean());
  EXPECT_TRUE(all_free());
  EXPECT_EQ(engine_->stats().generation_tokens, 12 * 20);
}

TEST_F(LoadTest, HoldsTheConcurrencyAskedFor) {
  serve();
  LoadPlan limited = plan(9, 10);
  limited.max_concurrency = 3;
  const auto requests = run_load(address(), limited);
  const RunFigures figures = figures_of(requests, duration_of(requests));
  EXPECT_EQ(figures.failed, 0);
  EXPECT_EQ(figures.peak_concurrent, 3);
  EXPECT_GT(figures.wait_s.percentile(100), 0);
}

TEST_F(LoadTest, CountsWhatTheServerRefuses) {
  serve({}, {.max_num_seqs = 1, .max_queued = 2});
  const auto requests = run_load(address(), plan(12, 60));
  const RunFigures figures = figures_of(requests, duration_of(requests));
  EXPECT_GT(figures.failed, 0);
  EXPECT_GT(figures.completed, 0);
  EXPECT_EQ(figures.failed + figures.completed, 12);
  EXPECT_EQ(figures.output_tokens, figures.completed * 60);
  for (const RequestTimes& request : requests) {
    EXPECT_TRUE(request.error.empty() || request.error.starts_with("HTTP 429: ")) << request.error;
  }
}

struct Ran {
  int code;
  std::string out, err;
};

class BenchProgramTest : public ServerTest {
 protected:
  std::filesystem::path folder_ = std::filesystem::path(testing::TempDir()) / ("keel_bench_test_" + std::to_string(getpid()));
  void SetUp() override {
    ServerTest::SetUp();
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  Ran run(const std::string& words) {
    const std::string err = (folder_ / "err").string();
    FILE* pipe = popen(fmt::format("{} bench {} 2>{}", KEEL_PROGRAM, words, err).c_str(), "r");
    Ran ran{};
    char bytes[4096];
    for (std::size_t count; (count = fread(bytes, 1, sizeof bytes, pipe)) > 0;) ran.out.append(bytes, count);
    ran.code = WEXITSTATUS(pclose(pipe));
    ran.err = text_of(err);
    return ran;
  }
  static std::string text_of(const std::filesystem::path& path) {
    std::ifstream in(path);
    return std::string(std::istreambuf_iterator<char>(in), {});
  }
  std::vector<RecordJson> records(const std::filesystem::path& path) {
    std::vector<RecordJson> list;
    std::ifstream in(path);
    for (std::string line; std::getline(in, line);) list.push_back(RecordJson::parse(line));
    return list;
  }
  const std::string tiny_ = tiny_model().string() + " -t 2 --kv-cache-memory-bytes 32MiB --device " + test_device_name() + " ";
};

// Null on the CPU, which has no such driver.
void expect_gpu(const RecordJson& gpu) {
  if (test_device() == Device::cpu) {
    EXPECT_TRUE(gpu.is_null()) << gpu;
    return;
  }
  EXPECT_FALSE(gpu["driver"].get<std::string>().empty()) << gpu;
  EXPECT_GE(gpu["readings"], 2);
  EXPECT_GT(gpu["read_gb_per_s"], 100);
  for (const char* figure : {"sm_mhz", "memory_mhz", "power_w", "temperature_c"}) {
    EXPECT_GT(gpu[figure]["min"], 0) << gpu;
    EXPECT_LE(gpu[figure]["median"], gpu[figure]["max"]) << gpu;
  }
}

TEST_F(BenchProgramTest, LatencyLeavesARecordOfEachRun) {
  const auto file = folder_ / "latency.jsonl";
  const Ran ran = run("latency " + tiny_ + "--kv-cache-dtype k16v8 --batch-size 3 --input-len 16 --output-len 8 --num-iters-warmup 1 "
                      "--num-iters 4 --repeat 2 --seed 7 --save-detailed --output-json " + file.string());
  ASSERT_EQ(ran.code, 0) << ran.err;
  EXPECT_NE(ran.out.find("Avg latency: "), std::string::npos);
  EXPECT_NE(ran.out.find("99% percentile latency: "), std::string::npos);
  const auto list = records(file);
  ASSERT_EQ(list.size(), 2u);
  for (const RecordJson& record : list) {
    EXPECT_EQ(record["engine"]["kv_cache"], "k16v8");
    EXPECT_EQ(record["engine"]["value_type"], "fp8_e4m3");
    EXPECT_LE(record["engine"]["pool_bytes"], 32 << 20);
    EXPECT_EQ(record["seed"], 7);
    EXPECT_EQ(record["latencies_s"].size(), 4u);
    EXPECT_EQ(record["figures"]["completed"], 12);
    EXPECT_EQ(record["figures"]["output_tokens"], 3 * 8 * 4);
    EXPECT_EQ(record["decode_steps"]["steps"], 4 * 7);
    EXPECT_EQ(record["requests"][0]["token_s"].size(), 8u);
    const std::int64_t read = record["engine"]["weight_bytes"].get<std::int64_t>() - record["engine"]["unread_embedding_bytes"].get<std::int64_t>();
    EXPECT_GT(record["decode_steps"]["bytes_per_step"], read);
    EXPECT_GT(record["prefill_steps"]["tflop_per_s"], 0);
    expect_gpu(record["gpu"]);
    double sum = 0;
    for (const double seconds : record["latencies_s"]) sum += seconds;
    EXPECT_NEAR(record["latency"]["mean_ms"], sum / 4 * 1e3, 1e-6);
    EXPECT_NE(record["command_line"].get<std::string>().find("--seed 7"), std::string::npos);
  }
  EXPECT_EQ(list[1]["run"], 2);
}

TEST_F(BenchProgramTest, RoutesAreTimedWhereThereAreSeveral) {
  const auto file = folder_ / "routes.jsonl";
  const Ran ran = run("latency " + tiny_ + "--profile-routes --batch-size 2 --input-len 40 --output-len 4 --num-iters-warmup 0 --num-iters 1 --output-json " + file.string());
  if (test_device() == Device::cpu) {
    EXPECT_EQ(ran.code, 2) << ran.err;
    EXPECT_NE(ran.err.find("--profile-routes"), std::string::npos) << ran.err;
    return;
  }
  ASSERT_EQ(ran.code, 0) << ran.err;
  const RecordJson record = records(file).at(0);
  const RecordJson& seconds = record["attention_route_seconds"];
  EXPECT_GT(seconds["decode"], 0) << seconds;
  EXPECT_LT(seconds["decode"], record["decode_steps"]["seconds"]);
  double prompts = 0;
  for (const auto& [route, one] : seconds.items()) prompts += route == "decode" ? 0 : one.get<double>();
  EXPECT_GT(prompts, 0) << seconds;
  EXPECT_LT(prompts, record["prefill_steps"]["seconds"]);
}

TEST_F(BenchProgramTest, ThroughputCountsAllRequests) {
  const auto file = folder_ / "throughput.jsonl";
  const Ran ran = run("throughput " + tiny_ + "--num-prompts 10 --random-input-len 20 --random-output-len 6 --random-range-ratio 0.5 "
                      "--max-num-seqs 4 --output-json " + file.string());
  ASSERT_EQ(ran.code, 0) << ran.err;
  EXPECT_NE(ran.out.find("Throughput: "), std::string::npos);
  const RecordJson record = records(file).at(0);
  EXPECT_EQ(record["figures"]["completed"], 10);
  std::int64_t tokens = 0;
  for (const RecordJson& request : record["requests"]) tokens += request["output_tokens"].get<std::int64_t>();
  EXPECT_EQ(record["figures"]["output_tokens"], tokens);
  EXPECT_EQ(record["limits"]["max_num_seqs"], 4);
  EXPECT_EQ(record["most_running"], 4);
  EXPECT_EQ(record["limits"]["prefix_caching"], false);
}

TEST_F(BenchProgramTest, ServeMeasuresAServerAndTakesItsCard) {
  serve({}, {.kv_cache_dtype = "k16v8"});
  const auto file = folder_ / "serve.jsonl";
  const Ran ran = run(fmt::format("serve --port {} --num-prompts 8 --random-input-len 10 --random-output-len 5 --request-rate 50 "
                                  "--max-concurrency 4 --percentile-metrics ttft,e2el --metric-percentiles 50,99.5 --output-json {}",
                                  port(), file.string()));
  ASSERT_EQ(ran.code, 0) << ran.err;
  EXPECT_NE(ran.out.find("Successful requests:                     8\n"), std::string::npos) << ran.out;
  EXPECT_NE(ran.out.find("P99.5 E2EL (ms):"), std::string::npos);
  EXPECT_EQ(ran.out.find("ITL"), std::string::npos);
  const RecordJson record = records(file).at(0);
  EXPECT_EQ(record["server_model_card"]["kv_cache"]["format"], "k16v8");
  EXPECT_EQ(record["workload"]["vocabulary"], engine_->config().vocabulary);
  EXPECT_EQ(record["figures"]["output_tokens"], 8 * 5);
}

TEST_F(BenchProgramTest, ServeEndsWithAFailureWhenRequestsFail) {
  serve({}, {.max_num_seqs = 1, .max_queued = 1});
  const Ran ran = run(fmt::format("serve --port {} --num-prompts 10 --random-input-len 10 --random-output-len 50", port()));
  EXPECT_EQ(ran.code, 1);
  EXPECT_NE(ran.err.find("of 10 requests failed: HTTP 429"), std::string::npos) << ran.err;
  EXPECT_NE(ran.out.find("Failed requests: "), std::string::npos);
}

TEST_F(BenchProgramTest, WrongInputIsNamed) {
  const auto fails = [&](int code, const std::string& words, const std::string& message) {
    const Ran ran = run(words);
    EXPECT_EQ(ran.code, code) << words << '\n' << ran.err;
    EXPECT_NE(ran.err.find(message), std::string::npos) << words << '\n' << ran.err;
    EXPECT_EQ(ran.out, "") << words;
  };
  fails(2, "latency " + tiny_ + "--batch-size 0", "--batch-size");
  fails(2, "latency " + tiny_ + "--batch-size 65", "--max-num-seqs 64");
  fails(2, "latency " + tiny_ + "--input-len 100000", "do not fit the longest context");
  fails(2, "throughput " + tiny_ + "--dataset-name sharegpt", "sharegpt");
  fails(2, "throughput " + tiny_ + "--metric-percentiles 101", "101");
  fails(1, "throughput " + tiny_ + "--output-json /no/such/folder/x", "/no/such/folder/x: cannot be written");
  fails(2, "serve --request-rate 0", "--request-rate");
  fails(2, "serve --request-rate fast", "fast");
  fails(2, "serve --base-url https://x", "TLS");
  fails(2, "serve --endpoint /v1/chat/completions", "chat");
  fails(1, "serve --port 1", "Connection refused");
  fails(2, "", "subcommand");
}


class ComparePlanTest : public BenchProgramTest {
 protected:
  // Six short blocks of the tiny model, K16/V8 against K16/V16, and against itself.
  std::string write_plan() {
    const auto arm = [&](const char* name, const char* format) {
      return RecordJson{{"name", name}, {"keel", {{"model", tiny_model().string()}, {"arguments", {"-t", "2", "--kv-cache-memory-bytes", "32MiB", "--kv-cache-dtype", format}}}}};
    };
    const RecordJson plan{{"format", "keel-compare-plan"}, {"version", 1}, {"name", "tiny"}, {"seed", 3}, {"blocks", 6}, {"timeout_s", 600},
                          {"workload", {{"prompts", 3}, {"input_tokens", 24}, {"output_tokens", 8}}}, {"arms", {arm("k16v16", "k16v16"), arm("k16v8", "k16v8")}},
                          {"comparisons", {{{"name", "gain"}, {"candidate", "k16v8"}, {"control", "k16v16"}, {"gates", "none"}}}}};
    const std::string path = (folder_ / "plan.json").string();
    std::ofstream(path) << plan.dump();
    return path;
  }
  std::filesystem::path results() const { return folder_ / "plan.results"; }
  std::string reports() const { return text_of(results() / "report.json") + text_of(results() / "report.html") + text_of(results() / "report.txt"); }
};

TEST_F(ComparePlanTest, MeasuresNothingBeforeThePlanIsFrozenOrOnceItIsEdited) {
  const std::string plan = write_plan();
  EXPECT_EQ(run("compare " + plan).code, 2);
  ASSERT_EQ(run("compare " + plan + " --freeze").code, 0);
  std::string edited = text_of(plan);
  edited.replace(edited.find("\"prompts\": 3"), 12, "\"prompts\": 4");
  std::ofstream(plan) << edited;
  const Ran ran = run("compare " + plan);
  EXPECT_EQ(ran.code, 2);
  EXPECT_NE(ran.err.find("edited since it was frozen"), std::string::npos) << ran.err;
  EXPECT_FALSE(std::filesystem::exists(results()));
}

TEST_F(ComparePlanTest, APilotTellsOfThePlanAsItIsNow) {
  const std::string path = write_plan();
  RecordJson plan = RecordJson::parse(text_of(path));
  plan["arms"][0]["keel"]["model"] = "/no/such/model";
  std::ofstream(path) << plan.dump();
  const Ran broken = run("compare " + path + " --pilot 1");
  EXPECT_EQ(broken.code, 2);
  EXPECT_NE(broken.out.find("k16v16: failed: "), std::string::npos) << broken.out;
  const Ran mended = run("compare " + write_plan() + " --pilot 1");
  EXPECT_EQ(mended.code, 0) << mended.out;
  EXPECT_EQ(mended.out.find("failed"), std::string::npos) << mended.out;
  EXPECT_EQ(records(results() / "pilot.jsonl").size(), 2u);
}

TEST_F(ComparePlanTest, KilledAgainAndAgainItEndsWithAllBlocks) {
  const std::string plan = write_plan();
  ASSERT_EQ(run("compare " + plan + " --freeze").code, 0);
  EXPECT_EQ(run("compare " + plan + " --pilot 1").code, 0);
  std::size_t lines = 0;
  for (int kills = 0; kills < 30 && lines < 4; ++kills) {
    const std::string part = fmt::format("timeout -s KILL {} {} bench compare {} >/dev/null 2>&1", 0.3 + 0.25 * kills, KEEL_PROGRAM, plan);
    [[maybe_unused]] const int killed = std::system(part.c_str());
    lines = std::filesystem::exists(results() / "raw.jsonl") ? records(results() / "raw.jsonl").size() : 0;
  }
  const std::string before = text_of(results() / "raw.jsonl");
  const Ran ran = run("compare " + plan);
  EXPECT_TRUE(ran.code == 0 || ran.code == 1) << ran.code << ran.err;  // a verdict, whichever
  EXPECT_TRUE(text_of(results() / "raw.jsonl").starts_with(before));
  const auto list = records(results() / "raw.jsonl");
  ASSERT_EQ(list.size(), 7u);
  for (std::size_t block = 1; block < list.size(); ++block) {
    EXPECT_EQ(list[block]["block"], block);
    EXPECT_EQ(list[block]["runs"].size(), 2u);
    for (const RecordJson& one : list[block]["runs"]) {
      EXPECT_EQ(one["status"], "ran");
      EXPECT_EQ(one["ran"]["engine"]["kv_cache"], one["arm"]);
      EXPECT_EQ(one["details"]["output_tokens"], 3 * 8);
      EXPECT_EQ(one["details"]["seed"], list[block]["runs"][0]["details"]["seed"]);
    }
  }
  EXPECT_EQ(records(results() / "pilot.jsonl").size(), 2u);
  const std::string reports_then = reports();
  EXPECT_EQ(run("compare " + plan).code, ran.code);  // measures nothing more
  EXPECT_EQ(reports(), reports_then);
  EXPECT_EQ(records(results() / "raw.jsonl").size(), 7u);
}

TEST_F(ComparePlanTest, AnEndpointIsAnArmBesideKeelItself) {
  serve({}, {.enable_prefix_caching = false});
  RecordJson plan = RecordJson::parse(text_of(write_plan()));
  plan["blocks"] = 2;
  plan["arms"][1] = {{"name", "server"}, {"endpoint", {{"url", fmt::format("http://127.0.0.1:{}", port())}, {"model", "tiny"}, {"vocabulary", 4096}}}};
  plan["comparisons"][0]["candidate"] = "server";
  const std::string path = (folder_ / "plan.json").string();
  std::ofstream(path) << plan.dump();
  ASSERT_EQ(run("compare " + path + " --freeze").code, 0);
  const Ran ran = run("compare " + path);
  EXPECT_EQ(ran.code, 1) << ran.out << ran.err;  // two blocks confirm nothing
  EXPECT_NE(ran.out.find("no confirmed gain"), std::string::npos);
  const auto list = records(results() / "raw.jsonl");
  for (std::size_t block = 1; block < list.size(); ++block) {
    for (const RecordJson& one : list[block]["runs"]) EXPECT_EQ(one["status"], "ran") << one.dump();
  }
  EXPECT_EQ(engine_->stats().generation_tokens, 2 * (8 + 3 * 8));  // a warm-up and the workload, twice
}

TEST_F(BenchProgramTest, SweepTimesPureDecodeStepsAndFitReadsThem) {
  const auto csv = folder_ / "sweep.csv", json = folder_ / "sweep.jsonl";
  const Ran ran = run("sweep " + tiny_ + fmt::format("--contexts 32,100000 --batches 1,2,4,8 --steps 6 --repeat 2 --csv {} --output-json {}", csv.string(), json.string()));
  ASSERT_EQ(ran.code, 0) << ran.err;
  EXPECT_NE(ran.err.find("skipped: context 100000, batch 8: "), std::string::npos) << ran.err;
  EXPECT_NE(text_of(csv).find("# skipped: context 100000, batch 1: "), std::string::npos);
  const auto list = records(json);
  ASSERT_EQ(list.size(), 8u);
  for (const RecordJson& record : list) {
    const double batch = record["batch"], steps = record["steps"], seconds = record["seconds"];
    EXPECT_DOUBLE_EQ(record["tokens_per_s"], batch * steps / seconds);
    EXPECT_GE(record["mean_context"], 32 + 4);
    EXPECT_LE(record["mean_context"], 32 + 40);
    EXPECT_EQ(record["engine"]["kv_cache"], "k16v16");
  }
  const std::string fit = KEEL_PROGRAM + std::string(" fit ");
  EXPECT_EQ(std::system((fit + csv.string() + " >/dev/null 2>&1").c_str()), 0);
  EXPECT_EQ(std::system((fit + json.string() + " >/dev/null 2>&1").c_str()), 0);
  EXPECT_EQ(run("sweep " + tiny_ + "--contexts 100000 --batches 1").code, 1);
  EXPECT_EQ(run("sweep " + tiny_ + "--enable-prefix-caching").code, 2);
}

}  // namespace
}  // namespace keel
