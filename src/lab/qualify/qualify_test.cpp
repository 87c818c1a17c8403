// What qualify decides before and around the gates; whole runs are in tests/qualification_test.cpp.
#include "lab/qualify/qualify_fixture.h"

namespace keel {
namespace {

using Json = nlohmann::json;

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
  Json gates = Json::array();
  for (const char* gate : {"production", "nll", "retrieval", "questions"}) gates.push_back({{"gate", gate}, {"verdict", verdict}});
  std::ofstream(file) << Json{{"record", "keel-qualification"}, {"version", 1}, {"gates", gates}, {"plan_sha256", plan_hash(plan)}, {"verdict", verdict}, {"why", "made up"}, {"plan", plan}}.dump(1);
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
