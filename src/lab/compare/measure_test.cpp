// Arms that run as scripts and servers that answer by script, well and badly.
#include "lab/compare/measure.h"

#include <gtest/gtest.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <thread>

#include "base/error.h"
#include "base/text_file.h"
#include "lab/compare/child_process.h"
#include "lab/compare/test_plans.h"
#include "lab/scripted_server.h"

namespace keel {
namespace {

namespace fs = std::filesystem;

class MeasureArm : public testing::Test {
 protected:
  void SetUp() override { fs::remove_all(folder_), fs::create_directories(folder_); }
  void TearDown() override { fs::remove_all(folder_); }

  // A program that ends its words with --output-json FILE, as keel's does, and writes `record` there.
  ArmRun run_script(const std::string& before, const PlanJson& record, std::int64_t timeout_s = 20) {
    const fs::path script = folder_ / "fake.sh";
    std::ofstream(folder_ / "record.json") << record.dump();
    std::ofstream(script) << "#!/bin/sh\n" << before << "\nfor last; do :; done\ncp " << (folder_ / "record.json").string() << " \"$last\"\n";
    fs::permissions(script, fs::perms::owner_all);
    PlanJson json = sample_plan();
    json["timeout_s"] = timeout_s;
    json["arms"][0]["keel"]["program"] = script.string();
    const ComparePlan plan = read_compare_plan(json.dump(), "plan");
    return measure_arm(plan, plan.arms[0], 1, {.program = "", .log_folder = folder_.string(), .api_key = ""});
  }

  static PlanJson good_record() {
    const PlanJson times{{"median_ms", 5.0}, {"p95_ms", 6.0}};
    return {{"keel_version", "1"}, {"keel_commit", "c"}, {"engine", {{"kv_cache", "k16v8"}}}, {"limits", nullptr}, {"time", "t"}, {"preemptions", 0}, {"attention_rows", nullptr}, {"prefix_hit_tokens", 0},
            {"prefill_steps", {{"rows_per_s", 900.0}}}, {"decode_steps", {{"steps", 2}, {"rows_per_s", 300.0}}},
            {"figures", {{"completed", 2}, {"failed", 0}, {"duration_s", 0.1}, {"input_tokens", 8}, {"output_tokens", 6}, {"peak_concurrent", 2}, {"output_tokens_per_s", 60.0}, {"ttft", times}, {"tpot", times}, {"e2el", times}}}};
  }

  ArmRun run_endpoint(ScriptedServer& server, bool reset = false) {
    PlanJson json = sample_plan();
    json["timeout_s"] = 5;
    json["arms"][0].erase("keel");
    json["arms"][0]["endpoint"] = {{"url", server.address().url()}, {"model", "m"}};
    if (reset) json["arms"][0]["endpoint"]["reset"] = "/reset_prefix_cache";
    const ComparePlan plan = read_compare_plan(json.dump(), "plan");
    return measure_arm(plan, plan.arms[0], 1, {.program = "", .log_folder = folder_.string(), .api_key = ""});
  }

  fs::path folder_ = fs::temp_directory_path() / ("keel_measure_" + std::to_string(getpid()));
};

const std::vector<std::string> kCards = {"HTTP/1.1 200 OK\r\nContent-Length: 72\r\nConnection: close\r\n\r\n" R"({"data": [{"id": "m", "created": 17, "vocab_size": 9, "kv_cache": "x"}]})"};
const std::vector<std::string> kAnswer = {kStreamHead, kToken + kToken + kToken + kLast + kUsage + kDone};

TEST_F(MeasureArm, TakesFiguresAndWhatRanFromTheRecord) {
  const ArmRun run = run_script("echo hello", good_record());
  EXPECT_EQ(run.error, "");
  EXPECT_EQ(run.figures.at(ArmMetric::output_rate), 60);
  EXPECT_EQ(run.figures.at(ArmMetric::decode_rate), 300);
  EXPECT_EQ(run.figures.at(ArmMetric::e2el_p95), 6);
  EXPECT_EQ(run.ran["engine"]["kv_cache"], "k16v8");
  EXPECT_NE(run.ran, run_script("echo hullo", good_record()).ran);  // another program, whatever it says it is
  const std::string words = run.details["command"].dump();
  for (const char* word : {"\"bench\",\"throughput\",\"m\"", "\"--num-prompts\",\"2\"", "\"--output-len\",\"3\"", "\"--num-warmups\",\"1\""}) EXPECT_NE(words.find(word), std::string::npos) << word;
}

TEST_F(MeasureArm, AProgramThatFailsOrLeavesNothingIsAFailedRun) {
  EXPECT_EQ(run_script("echo starting; echo out of memory >&2; exit 3", good_record()).error, "exit code 3: out of memory");
  EXPECT_EQ(run_script("printf 'gone\\033[2J\\302\\2332Jaway\\377\\n'; exit 3", good_record()).error, "exit code 3: gone [2J 2Jaway\ufffd");
  EXPECT_EQ(run_script("kill -9 $$", good_record()).error, "signal 9: ");
  EXPECT_EQ(run_script("exit 0", good_record()).error, "it left no record of its run");
  EXPECT_EQ(run_script("sleep 60", good_record(), 1).error, "no end within 1 s");
  PlanJson record = good_record();
  record["figures"]["completed"] = 1, record["figures"]["failed"] = 1;
  EXPECT_EQ(run_script("", record).error, "1 of 2 requests completed");
  record = good_record(), record["figures"]["output_tokens"] = 5;
  EXPECT_EQ(run_script("", record).error, "5 output tokens instead of 6");
  record = good_record(), record["prefix_hit_tokens"] = 16;
  EXPECT_EQ(run_script("", record).error, "16 prompt tokens were found cached");
  record = good_record(), record.erase("engine");
  EXPECT_NE(run_script("", record).error.find("its record is not one"), std::string::npos);
  record = good_record(), record["figures"]["output_tokens_per_s"] = nullptr;  // how NaN is written
  EXPECT_FALSE(run_script("", record).figures.contains(ArmMetric::output_rate));
}

TEST_F(MeasureArm, AProgramOfPathIsTheFileThatIsHashed) {
  const std::string before = std::getenv("PATH");
  const std::string by_path = run_script("", good_record()).ran.at("program_sha256");
  PlanJson json = sample_plan();
  json["arms"][0]["keel"]["program"] = "fake.sh";
  const ComparePlan plan = read_compare_plan(json.dump(), "plan");
  fs::create_directories(folder_ / "first/fake.sh");  // a folder is no program
  setenv("PATH", ((folder_ / "first").string() + ":" + folder_.string() + ":" + before).c_str(), 1);
  const ArmRun run = measure_arm(plan, plan.arms[0], 1, {.program = "", .log_folder = folder_.string(), .api_key = ""});
  setenv("PATH", before.c_str(), 1);
  EXPECT_EQ(run.error, "");
  EXPECT_EQ(run.ran.at("program_sha256"), by_path);
  EXPECT_EQ(run.details["command"][0], (folder_ / "fake.sh").string());
}

TEST_F(MeasureArm, AProgramThatIsNotThereIsAFailedRun) {
  PlanJson json = sample_plan();
  json["arms"][0]["keel"]["program"] = "/nowhere/keel";
  const ComparePlan plan = read_compare_plan(json.dump(), "plan");
  EXPECT_EQ(measure_arm(plan, plan.arms[0], 1, {.program = "", .log_folder = folder_.string(), .api_key = ""}).error, "/nowhere/keel cannot be started: No such file or directory");
}

TEST_F(MeasureArm, MeasuresAnEndpointAfterItsWarmUpAndReset) {
  ScriptedServer server({kCards, kAnswer, {"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"}, kAnswer, kAnswer});
  const ArmRun run = run_endpoint(server, true);
  EXPECT_EQ(run.error, "");
  EXPECT_GT(run.figures.at(ArmMetric::output_rate), 0);
  EXPECT_GT(run.figures.at(ArmMetric::ttft_p95), 0);
  EXPECT_FALSE(run.figures.contains(ArmMetric::prefill_rate));
  EXPECT_EQ(run.ran["model_card"], (PlanJson{{"id", "m"}, {"vocab_size", 9}, {"kv_cache", "x"}}));
  EXPECT_EQ(run.ran["fresh_process"], false);
}

TEST_F(MeasureArm, AnEndpointThatDiesInABlockIsAFailedRun) {
  ScriptedServer dies({kCards, kAnswer, {kStreamHead, kToken}});
  const ArmRun run = run_endpoint(dies);
  EXPECT_NE(run.error.find("of 2 requests failed, the first: "), std::string::npos) << run.error;
  EXPECT_TRUE(run.figures.empty());
  ScriptedServer cold({kCards});
  EXPECT_NE(run_endpoint(cold).error.find("a warm-up request failed"), std::string::npos);
  ScriptedServer kept({kCards, kAnswer, {"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"}});
  EXPECT_NE(run_endpoint(kept, true).error.find("HTTP 404: the caches were not reset"), std::string::npos);
  ScriptedServer gone({});
  EXPECT_NE(run_endpoint(gone).error, "");
}

TEST_F(MeasureArm, AServerThatNeverComesUpIsAFailedRun) {
  PlanJson json = sample_plan();
  json["arms"][0].erase("keel");
  json["arms"][0]["endpoint"] = {{"url", "http://127.0.0.1:9"}, {"model", "m"}, {"start", {"sh", "-c", "echo no such model; exit 1"}}};
  const ComparePlan plan = read_compare_plan(json.dump(), "plan");
  EXPECT_EQ(measure_arm(plan, plan.arms[0], 1, {.program = "", .log_folder = folder_.string(), .api_key = ""}).error, "the server ended before it answered: exit code 1: no such model");
}

TEST_F(MeasureArm, AServerThatIsThereAlreadyIsNotTakenForAFreshOne) {
  ScriptedServer old({kCards});
  PlanJson json = sample_plan();
  json["arms"][0].erase("keel");
  json["arms"][0]["endpoint"] = {{"url", old.address().url()}, {"model", "m"}, {"start", {"sleep", "60"}}};
  const ComparePlan plan = read_compare_plan(json.dump(), "plan");
  EXPECT_NE(measure_arm(plan, plan.arms[0], 1, {.program = "", .log_folder = folder_.string(), .api_key = ""}).error.find("another one is there"), std::string::npos);
}

TEST_F(MeasureArm, AGatedArmSaysWhatItRunsBeforeItRuns) {
  const auto with = [&](const std::string& said, const char* value_type) {
    PlanJson record = good_record();
    record["engine"] = {{"key_type", "f16"}, {"value_type", value_type}};
    write_text_file(folder_ / "record.json", record.dump());
    const fs::path script = folder_ / "fake.sh";
    write_text_file(script, "#!/bin/sh\nfor last; do :; done\nif [ \"$last\" = --subject ]; then echo warning >&2; " + said + "; exit; fi\ncp " + (folder_ / "record.json").string() + " \"$last\"\n");
    fs::permissions(script, fs::perms::owner_all);
    PlanJson json = sample_plan();
    json["arms"][1]["keel"]["program"] = script.string();
    json["comparisons"][0]["gates"] = {"q.json"};
    const ComparePlan plan = read_compare_plan(json.dump(), "plan");
    return measure_arm(plan, plan.arms[1], 1, {.program = "", .log_folder = folder_.string(), .api_key = ""});
  };
  const std::string says = "echo '" + sample_subject().dump() + "'";
  const ArmRun run = with(says, "fp8_e4m3");
  EXPECT_EQ(run.error, "");
  EXPECT_EQ(run.ran["subject"], sample_subject());
  EXPECT_EQ(with(says, "f16").error, R"(it said that it would run "k=f16,v=fp8_e4m3", and ran k=f16,v=f16)");
  EXPECT_EQ(with("echo no such flag; exit 2", "f16").error, "small does not say what it would run: exit code 2: no such flag (" + (folder_ / "small-subject.log").string() + ")");
  EXPECT_TRUE(with("echo 3", "f16").error.starts_with("small does not say what it would run: 3 ("));
}

TEST_F(MeasureArm, TheListOfModelsLiesBesideTheCompletions) {
  ScriptedServer server({kCards, kAnswer, kAnswer, kAnswer});
  PlanJson json = sample_plan();
  json["arms"][0].erase("keel");
  json["arms"][0]["endpoint"] = {{"url", server.address().url()}, {"model", "m"}, {"path", "/proxy/v9/completions"}, {"start", {"sleep", "60"}}};
  const ComparePlan plan = read_compare_plan(json.dump(), "plan");
  EXPECT_NE(measure_arm(plan, plan.arms[0], 1, {.program = "", .log_folder = folder_.string(), .api_key = ""}).error.find("another one is there"), std::string::npos);
  EXPECT_TRUE(server.request.starts_with("GET /proxy/v9/models ")) << server.request;
  for (int left = 0; left < 3; ++left) http_get(server.address(), "/", std::chrono::seconds(5));
}

class ChildTree : public MeasureArm {
 protected:
  // One in the program's group, one in a session of its own, one whose parent is gone.
  const std::string started_ = "sleep 600 & echo $!; setsid sleep 600 & echo $!; (setsid sleep 600 & echo $!); ";
  std::string log() const { return (folder_ / "log").string(); }

  std::vector<pid_t> wait_for_pids() const {
    std::vector<pid_t> pids;
    for (int i = 0; i < 2000 && pids.size() < 3; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
      std::ifstream in(log());
      pids.clear();
      for (pid_t pid; in >> pid;) pids.push_back(pid);
    }
    return pids;
  }
  static bool is_gone(pid_t pid) {
    std::ifstream stat("/proc/" + std::to_string(pid) + "/stat");
    std::string number, name, state;
    return !(stat >> number >> name >> state) || state == "Z";
  }
  static void expect_gone(const std::vector<pid_t>& pids) {
    for (const pid_t pid : pids) {
      for (int i = 0; i < 2000 && !is_gone(pid); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(5));
      EXPECT_TRUE(is_gone(pid));
    }
  }
};

TEST_F(ChildTree, EndsWithAChildThatIsEnded) {
  std::vector<pid_t> pids;
  {
    ChildProcess child({"sh", "-c", started_ + "wait"}, log());
    pids = wait_for_pids();
    ASSERT_EQ(pids.size(), 3u);
    for (const pid_t pid : pids) EXPECT_FALSE(is_gone(pid));
    EXPECT_FALSE(child.wait(std::chrono::milliseconds(10)));
  }
  for (const pid_t pid : pids) EXPECT_TRUE(is_gone(pid));
}

TEST_F(ChildTree, EndsWithAChildThatEndsByItself) {
  ChildProcess child({"sh", "-c", started_ + "exit 7"}, log());
  EXPECT_EQ(child.wait(std::chrono::seconds(20)), "exit code 7");
  EXPECT_EQ(child.wait(std::chrono::seconds(0)), "exit code 7");  // still so
  const std::vector<pid_t> pids = wait_for_pids();
  ASSERT_EQ(pids.size(), 3u);
  for (const pid_t pid : pids) EXPECT_TRUE(is_gone(pid));
}

TEST_F(ChildTree, EndsWithTheProcessThatWantedItWhateverKillsThat) {
  for (const int signal : {SIGKILL, SIGTERM, SIGINT}) {
    fs::remove(log());
    const pid_t wants = fork();
    if (wants == 0) {
      setpgid(0, 0);
      ChildProcess child({"sh", "-c", "trap '' TERM INT; " + started_ + "wait"}, log());
      child.wait(std::chrono::minutes(5));
      _exit(0);
    }
    const std::vector<pid_t> pids = wait_for_pids();
    kill(-wants, signal);
    waitpid(wants, nullptr, 0);
    ASSERT_EQ(pids.size(), 3u);
    expect_gone(pids);
  }
}

TEST_F(ChildTree, WhatCannotBeStartedLeavesNoFileOpen) {
  const auto open_files = [] { return std::distance(fs::directory_iterator("/proc/self/fd"), fs::directory_iterator()); };
  const auto before = open_files();
  EXPECT_THROW(ChildProcess({"/nowhere/keel"}, log()), Error);
  EXPECT_EQ(open_files(), before);
  const int next = open("/dev/null", O_RDONLY | O_CLOEXEC);
  close(next);
  rlimit files{};
  getrlimit(RLIMIT_NOFILE, &files);
  for (const int more : {1, 2}) {  // the log alone, and half of the channel
    const rlimit few{.rlim_cur = static_cast<rlim_t>(next + more), .rlim_max = files.rlim_max};
    setrlimit(RLIMIT_NOFILE, &few);
    EXPECT_THROW(ChildProcess({"true"}, log()), Error);
    setrlimit(RLIMIT_NOFILE, &files);
    EXPECT_EQ(open_files(), before);
  }
}

TEST_F(ChildTree, NeitherAChildNorItsGuardHoldsTheCallersFiles) {
  const std::string files = (folder_ / "files").string();
  const int low = open(log().c_str(), O_RDWR | O_CREAT, 0600);  // no O_CLOEXEC: a program would have it, too
  const int held = fcntl(low, F_DUPFD, 20);                     // above what a guard takes for itself
  close(low);
  ASSERT_EQ(flock(held, LOCK_EX), 0);
  const ChildProcess child({"sh", "-c", "ls -l /proc/self/fd | grep -c '[0-9] -> '; sleep 600"}, files);
  close(held);
  const int again = open(log().c_str(), O_RDWR | O_CLOEXEC);
  EXPECT_EQ(flock(again, LOCK_EX | LOCK_NB), 0);
  close(again);
  for (int i = 0; i < 2000 && last_line(files).empty(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_EQ(last_line(files), "4");  // the three, and ls's own folder
}

}  // namespace
}  // namespace keel
