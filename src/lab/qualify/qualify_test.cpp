// Whole qualifications of models/tiny on small panels.
#include "lab/qualify/qualify.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <iterator>

#include "base/option_error.h"
#include "lab/qualify/plan.h"
#include "lab/qualify/qualified_format.h"
#include "lab/qualify/record.h"

namespace keel {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

std::string text_of(const fs::path& file) {
  std::ifstream in(file, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(in), {});
}

// All of a record but its times.
std::string without_times(const fs::path& record) {
  nlohmann::ordered_json json = nlohmann::ordered_json::parse(text_of(record));
  json.erase("times");
  return json.dump();
}

class QualifyTest : public testing::Test {
 protected:
  QualifyTest() : folder(fs::temp_directory_path() / ("keel_qualify_" + std::to_string(getpid()))) {
    fs::remove_all(folder);
    fs::create_directories(folder);
    const char* device = std::getenv("KEEL_TEST_DEVICE");
    options.model = find_model(std::string(KEEL_SOURCE_DIR) + "/models/tiny");
    options.device = device == nullptr ? "cpu" : device;
    options.candidate = "k16v8";
    options.threads = 2;
    options.output = folder / "record.json";
    options.version = "0.1.0";
    options.commit = "test";
    options.panel.documents = 16;
    options.panel.prompt_tokens = 48;
    options.panel.targets = 24;
    options.panel.needle_cases = 60;
    options.panel.needle_lengths = {160};
    options.panel.sums = 150;
  }
  ~QualifyTest() override { fs::remove_all(folder); }
  std::string refusal() const {
    try {
      qualify(options);
    } catch (const Error& error) {
      return error.what();
    }
    return {};
  }
  QualifiedFormat automatic(const std::string& version = "0.1.7") const {
    const KvGeometry geometry{8, 2, 64};
    return qualified_format(folder, {.model = options.model, .load = options.load, .model_dtype = DType::f16, .geometry = geometry, .device = options.device, .version = version});
  }

  fs::path folder;
  QualifyOptions options;
};

TEST_F(QualifyTest, ARunThatWasKilledGoesOnToTheSameRecord) {
  const Qualification first = qualify(options);
  ASSERT_EQ(first.gates.size(), 4u);
  EXPECT_EQ(first.gates[0].verdict, Verdict::pass) << first.gates[0].why;
  EXPECT_NE(first.gates[1].verdict, Verdict::not_reached);
  EXPECT_TRUE(fs::exists(first.report));
  const std::string record = without_times(first.record), journal = text_of(folder / "record.journal.jsonl");
  EXPECT_EQ(read_record(first.record)["plan_sha256"], first.plan_sha256);

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

TEST_F(QualifyTest, APlanIsFrozenAndNotEdited) {
  options.freeze_only = true;
  const Qualification frozen = qualify(options);
  EXPECT_FALSE(fs::exists(options.output));
  EXPECT_EQ(plan_hash(read_plan(frozen.plan)), frozen.plan_sha256);

  options.panel.sums = 149;
  EXPECT_NE(refusal().find("/gates/3/questions: frozen 150, wanted 149"), std::string::npos) << refusal();
  options.panel.sums = 150;

  std::string text = text_of(frozen.plan);
  text.replace(text.find("0.05"), 4, "0.50");  // retrieval's limit
  std::ofstream(frozen.plan, std::ios::binary) << text;
  EXPECT_NE(refusal().find("edited after it was frozen"), std::string::npos) << refusal();
}

TEST_F(QualifyTest, AGateThatIsLeftOrFailsKeepsTheLaterOnesFromRunning) {
  options.stop_after = "production";
  const Qualification stopped = qualify(options);
  EXPECT_EQ(stopped.verdict, Verdict::not_reached);
  EXPECT_EQ(stopped.gates[0].verdict, Verdict::pass) << stopped.gates[0].why;
  EXPECT_EQ(stopped.gates[1].verdict, Verdict::not_reached);
  EXPECT_FALSE(fs::exists(options.output));

  options.stop_after = "";
  options.load.key_bias_offsets = {{31, 300}, {30, -300}};  // the fragile twin
  options.candidate = "k8v8";
  options.output = folder / "twin.json";
  const Qualification twin = qualify(options);
  EXPECT_EQ(twin.verdict, Verdict::fail);
  EXPECT_EQ(twin.gates[0].verdict, Verdict::pass) << twin.gates[0].why;
  EXPECT_EQ(twin.gates[1].verdict, Verdict::fail) << twin.gates[1].why;
  EXPECT_EQ(twin.gates[2].verdict, Verdict::not_reached);
  EXPECT_EQ(read_record(twin.record)["verdict"], "fail");
  EXPECT_EQ(automatic().kv_cache_dtype, "k16v16");
}

TEST_F(QualifyTest, WhatCannotBeJudgedIsRefusedByName) {
  options.candidate = "k3v3";
  EXPECT_NE(refusal().find("k3v3"), std::string::npos);
  options.candidate = "k16v8";
  options.control = "k8v8";
  EXPECT_NE(refusal().find("--control k8v8"), std::string::npos);
  options.control = "k16v16";
  options.stop_after = "lunch";
  EXPECT_NE(refusal().find("--stop-after lunch"), std::string::npos);
  options.stop_after = "";
  options.output = folder / "record.txt";
  EXPECT_NE(refusal().find(".json"), std::string::npos);
  options.output = folder / "record.json";
  options.model = find_model(std::string(KEEL_SOURCE_DIR) + "/models/tiny/config.json");
  EXPECT_NE(refusal().find("no tokenizer"), std::string::npos) << refusal();
}

// A record that passes, made by hand around a frozen plan.
void write_record(const fs::path& file, Json plan, const char* verdict) {
  std::ofstream(file) << Json{{"record", "keel-qualification"}, {"version", 1}, {"plan_sha256", plan_hash(plan)}, {"verdict", verdict}, {"why", "made up"}, {"plan", plan}}.dump(1);
}

TEST_F(QualifyTest, AutoTakesTheCheapestThatPassedAndSaysWhatItPassedOver) {
  EXPECT_EQ(automatic().kv_cache_dtype, "k16v16");
  EXPECT_NE(automatic().reasons.back().find("no qualification record"), std::string::npos);
  options.freeze_only = true;
  options.output = folder / "a.json";
  const Json plan = read_plan(qualify(options).plan);
  options.output = folder / "b.json";
  options.candidate = "k8v8";
  const Json small = read_plan(qualify(options).plan);
  const auto expect = [&](const char* dtype, const std::string& said, const std::string& version = "0.1.7") {
    const QualifiedFormat found = automatic(version);
    EXPECT_EQ(found.kv_cache_dtype, dtype);
    std::string all;
    for (const std::string& reason : found.reasons) all += reason + "\n";
    EXPECT_NE(all.find(said), std::string::npos) << all;
  };
  write_record(options.output, small, "fail");
  expect("k16v16", "k8v8 did not pass there");
  write_record(folder / "a.json", plan, "pass");
  expect("k16v8", "a.json");
  expect("k16v8", "k8v8 did not pass there");
  write_record(options.output, small, "pass");
  expect("k8v8", "b.json");
  expect("k16v16", "it was made by keel 0.1", "0.2.0");

  Json other = small;
  other["subject"]["model_digest"] = std::string(64, '0');
  write_record(options.output, other, "pass");
  expect("k16v8", "the same name with other weights");
  other = small;
  other["subject"]["scales_digest"] = "x";
  write_record(options.output, other, "pass");
  expect("k16v8", "other scales");
  other = small;
  other["subject"]["device_class"] = "abacus";
  write_record(options.output, other, "pass");
  expect("k16v8", "abacus");

  std::string edited = text_of(folder / "a.json");
  edited.replace(edited.find("0.05"), 4, "0.50");
  std::ofstream(folder / "a.json") << edited;
  std::ofstream(folder / "c.json") << "{";
  expect("k16v16", "edited");
  expect("k16v16", "c.json");
}

}  // namespace
}  // namespace keel
