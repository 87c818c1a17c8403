// Whole qualifications of models/tiny, and the production gate in every format.
#include <csignal>
#include <sys/wait.h>

#include "base/random.h"
#include "lab/qualify/production.h"
#include "lab/qualify/qualify_fixture.h"

namespace keel {
namespace {

TEST_F(QualifyTest, ARunThatWasKilledGoesOnToTheSameRecord) {
  const Qualification first = qualify(options);
  ASSERT_EQ(first.gates.size(), 4u);
  EXPECT_EQ(first.gates[0].verdict, Verdict::pass) << first.gates[0].why;
  EXPECT_NE(first.gates[1].verdict, Verdict::not_reached);
  EXPECT_TRUE(fs::exists(first.report));
  const std::string record = without_times(first.record), journal = text_of(folder / "record.journal.jsonl");
  EXPECT_EQ(read_record(first.record).plan_sha256, first.plan_sha256);

  const Qualification again = qualify(options);  // never repeated
  EXPECT_TRUE(again.was_there);
  EXPECT_EQ(again.verdict, first.verdict);

  for (const std::size_t share : {97, 60}) {
    fs::remove(first.record);
    std::ofstream(folder / "record.journal.jsonl", std::ios::binary) << journal.substr(0, journal.size() * share / 100);
    EXPECT_FALSE(qualify(options).was_there);
    if (options.device != "cpu") continue;  // a GPU's products are chosen by measuring
    EXPECT_EQ(without_times(first.record), record) << share;
  }
}

TEST_F(QualifyTest, AGateThatIsLeftOrFailsKeepsTheLaterOnesFromRunning) {
  options.stop_after = "production";
  const Qualification stopped = qualify(options);
  EXPECT_EQ(stopped.verdict, Verdict::not_reached);
  EXPECT_EQ(stopped.gates[0].verdict, Verdict::pass) << stopped.gates[0].why;
  EXPECT_EQ(stopped.gates[1].verdict, Verdict::not_reached);
  EXPECT_FALSE(fs::exists(options.output));
  options.threads = 1;  // the record names the threads of all its items
  EXPECT_NE(refusal().find("\"threads\":1"), std::string::npos) << refusal();
  options.threads = 2;

  options.stop_after = "";
  options.load.key_bias_offsets = {{31, 300}, {30, -300}};  // the fragile twin
  options.candidate = "k8v8";
  options.output = folder / "twin.json";
  const Qualification twin = qualify(options);
  EXPECT_EQ(twin.verdict, Verdict::fail);
  EXPECT_EQ(twin.gates[0].verdict, Verdict::pass) << twin.gates[0].why;
  EXPECT_EQ(twin.gates[1].verdict, Verdict::fail) << twin.gates[1].why;
  EXPECT_EQ(twin.gates[2].verdict, Verdict::not_reached);
  EXPECT_EQ(read_record(twin.record).verdict, Verdict::fail);
  EXPECT_EQ(automatic().kv_cache_dtype, "k16v16");
}

TEST_F(QualifyTest, SwappedValuePagesFailProductionAndNoQualityGateRuns) {
  options.broken = "value pages swapped";
  const Qualification found = qualify(options);
  EXPECT_EQ(found.verdict, Verdict::fail);
  EXPECT_EQ(found.gates[0].why, "failed: attention calls against raw pages");
  EXPECT_EQ(found.gates[1].verdict, Verdict::not_reached);
  EXPECT_EQ(read_record(found.record).plan["broken_on_purpose"], "value pages swapped");
}

// The program itself, killed at random moments until it comes to its end.
TEST_F(QualifyTest, AProcessThatIsKilledAgainAndAgainLeavesTheSameRecord) {
  if (options.device != "cpu") GTEST_SKIP() << "a GPU's products are chosen by measuring";
  std::ofstream(folder / "panel.json") << R"({"documents": 16, "prompt_tokens": 48, "targets": 24, "needle_cases": 60, "needle_lengths": [160], "sums": 150})";
  const auto run = [&](const char* name, std::int64_t milliseconds) {
    const std::string output = (folder / name).string(), panel = (folder / "panel.json").string(), model = std::string(KEEL_SOURCE_DIR) + "/models/tiny";
    const pid_t child = fork();
    if (child == 0) {
      execl(KEEL_PROGRAM, KEEL_PROGRAM, "--quiet", "qualify", model.c_str(), "--candidate", "k16v8", "--device", "cpu", "-t", "2", "--panel", panel.c_str(), "-o", output.c_str(), nullptr);
      _exit(127);
    }
    int status = 0;
    for (std::int64_t waited = 0; waitpid(child, &status, WNOHANG) == 0; waited += 10) {
      if (milliseconds > 0 && waited >= milliseconds) kill(child, SIGKILL);
      usleep(10'000);
    }
    return WIFEXITED(status);
  };
  ASSERT_TRUE(run("whole.json", 0));
  int kills = 0;
  while (!run("killed.json", 600 + static_cast<std::int64_t>(random_u64(9, kills) % 4000))) ASSERT_LT(++kills, 200);
  EXPECT_GE(kills, 1);
  std::printf("%d kills\n", kills);
  EXPECT_EQ(without_times(folder / "killed.json"), without_times(folder / "whole.json"));
}

TEST(ProductionGate, PassesAndNoticesEveryFaultInEveryFormat) {
  const char* wanted = std::getenv("KEEL_TEST_DEVICE");
  const Device device = choose_device(wanted == nullptr ? "cpu" : wanted);
  const LoadedModel model = load_model(find_model(std::string(KEEL_SOURCE_DIR) + "/models/tiny"), {});
  WorkerPool workers(2);
  std::vector<std::int32_t> tokens;
  for (std::int64_t i = 0; i < kProductionTokens; ++i) tokens.push_back(static_cast<std::int32_t>(300 + random_u64(5, i) % 3000));
  for (const char* dtype : {"k16v16", "k8v8", "k16v4"}) {
    const KvFormat format = parse_kv_format(dtype, model.config.dtype);
    const DecodeArm arm{.format = format, .scales = KvScales::unit({model.config.layers, model.config.kv_heads, model.config.head_dim})};
    ProductionGate gate(device, model, arm, parse_kv_format("k16v16", model.config.dtype), tokens, workers);
    std::int64_t faults = 0;
    for (const auto& [name, run] : gate.checks()) {
      const ProductionFinding found = run();
      EXPECT_TRUE(found.passed || !found.applies) << dtype << ", " << name << ": " << found.detail.dump();
      faults += name.starts_with("fault: ") && found.applies;
    }
    EXPECT_GE(faults, kLeastFaults) << dtype;
  }
}

}  // namespace
}  // namespace keel
