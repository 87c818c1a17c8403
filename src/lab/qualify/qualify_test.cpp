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
  EXPECT_NE(refusal().find("/gates/3/items: frozen 150, wanted 149"), std::string::npos) << refusal();
  options.panel.sums = 150;

  std::string text = text_of(frozen.plan);
  text.replace(text.find("0.05"), 4, "0.50");  // retrieval's limit
  std::ofstream(frozen.plan, std::ios::binary) << text;
  EXPECT_NE(refusal().find("edited after it was frozen"), std::string::npos) << refusal();
}

TEST_F(QualifyTest, WhatCannotBeJudgedIsRefusedByName) {
  options.candidate = "k3v3";
  EXPECT_NE(refusal().find("k3v3"), std::string::npos);
  options.candidate = "auto";
  EXPECT_NE(refusal().find("--candidate auto"), std::string::npos) << refusal();
  options.candidate = "k16v8";
  options.control = "k8v8";
  EXPECT_NE(refusal().find("--control k8v8"), std::string::npos);
  options.control = "k16v16";
  options.stop_after = "lunch";
  EXPECT_NE(refusal().find("--stop-after lunch"), std::string::npos);
  options.stop_after = "";
  options.output = folder / "record.txt";
  EXPECT_NE(refusal().find(".json"), std::string::npos);
  options.output = folder / "x.plan.json";
  EXPECT_NE(refusal().find("x.plan.json"), std::string::npos);
  options.output = folder / "record.json";
  options.model = find_model(std::string(KEEL_SOURCE_DIR) + "/models/tiny/config.json");
  EXPECT_NE(refusal().find("no tokenizer"), std::string::npos) << refusal();
}

// A record made by hand around a frozen plan.
Json record_of(const Json& plan, const char* verdict = "pass") {
  Json gates = Json::array();
  for (const char* gate : kGates) gates.push_back({{"gate", gate}, {"verdict", verdict}, {"why", "made up"}});
  return {{"record", "keel-qualification"}, {"version", kRecordVersion}, {"gates", gates}, {"plan_sha256", plan_hash(plan)}, {"verdict", verdict}, {"why", "made up"}, {"plan", plan}};
}
void write(const fs::path& file, const Json& record) { std::ofstream(file) << record.dump(1); }

class AutoTest : public QualifyTest {
 protected:
  AutoTest() {
    options.freeze_only = true;
    options.output = folder / "a.json";
    plan = read_plan(qualify(options).plan);
    options.output = folder / "b.json";
    options.candidate = "k8v8";
    small = read_plan(qualify(options).plan);
  }
  // `said` is among what was told.
  void expect(const char* dtype, const std::string& said, const std::string& version = "0.1.7") const {
    const QualifiedFormat found = automatic(version);
    EXPECT_EQ(found.kv_cache_dtype, dtype);
    std::string all;
    for (const std::string& reason : found.reasons) all += reason + "\n";
    EXPECT_NE(all.find(said), std::string::npos) << said << " in\n" << all;
  }

  Json plan, small;  // of k16v8 and k8v8
};

TEST_F(AutoTest, TakesTheCheapestThatPassed) {
  EXPECT_EQ(automatic().kv_cache_dtype, "k16v16");
  EXPECT_NE(automatic().reasons.back().find("no qualification record"), std::string::npos);
  write(folder / "b.json", record_of(small, "fail"));
  expect("k16v16", "did not pass there: made up");
  write(folder / "a.json", record_of(plan));
  expect("k16v8", "a.json");
  expect("k16v8", "did not pass there");
  write(folder / "b.json", record_of(small));
  expect("k8v8", "b.json");
}

TEST_F(AutoTest, NamesWhatIsNotTheSame) {
  write(folder / "a.json", record_of(plan));
  for (const auto& [key, value, said] : {std::tuple<const char*, Json, const char*>{"model_digest", std::string(64, '0'), "the same name with other weights"}, {"tokenizer_digest", "x", "the tokenizer"}, {"weights", "gguf q4_0", "gguf q4_0"},
                                         {"control", "k=f32,v=f32", "the control k=f32,v=f32"}, {"scales_digest", "x", "the scales"}, {"device_class", "abacus", "abacus"}, {"page_size", 32, "the page size 32"},
                                         {"candidate", "k=e4m3,v=u4", "auto takes k8v8 or k16v8"}}) {
    Json other = small;
    other["subject"][key] = value;
    write(folder / "b.json", record_of(other));
    expect("k16v8", said);
  }
  Json broken = small;
  broken["broken_on_purpose"] = "value pages swapped";
  write(folder / "b.json", record_of(broken));
  expect("k16v8", "broken on purpose");
  expect("k16v16", "the build keel 0.1, and here it is keel 0.2", "0.2.0");
}

TEST_F(AutoTest, WarnsOfContextsLongerThanTheRecordCovers) {
  write(folder / "a.json", record_of(plan));
  const std::int64_t covered = plan["panel"]["longest_context_tokens"];
  EXPECT_GE(covered, 160);
  EXPECT_EQ(automatic("0.1.7", covered).warning, "");
  EXPECT_NE(automatic("0.1.7", covered + 1).warning.find(fmt::format("tested up to {} tokens, and contexts of up to {}", covered, covered + 1)), std::string::npos);
  EXPECT_NE(automatic().warning, "");  // the model's own is longer
  expect("k16v8", fmt::format("tested up to {} tokens", covered));
}

TEST_F(AutoTest, IgnoresAloudWhatIsNoRecord) {
  write(folder / "a.json", record_of(plan));
  std::string edited = text_of(folder / "a.json");
  edited.replace(edited.find("0.05"), 4, "0.50");
  std::ofstream(folder / "a.json") << edited;
  std::ofstream(folder / "c.json") << "{";
  fs::create_directory(folder / "d.json");
  Json flipped = record_of(plan, "fail");
  flipped["verdict"] = "pass";
  write(folder / "e.json", flipped);
  for (const char* said : {"a.json: its plan hashes to", "c.json", "d.json: wanted a file, found a folder", "e.json: its verdict is not what its gates say"}) expect("k16v16", said);
}

// Whatever is taken out of a record or is of another type is named, and nothing but Error is thrown.
TEST_F(AutoTest, ARecordIsReadOnlyWhole) {
  const Json whole = record_of(plan);
  const fs::path file = folder / "a.json";
  const auto said = [&](Json record) {
    if (record.is_object() && record.contains("plan")) record["plan_sha256"] = plan_hash(record["plan"]);
    write(file, record);
    try {
      read_record(file);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_EQ(said(whole), "");
  for (const char* place : {"/record", "/version", "/verdict", "/why", "/plan", "/plan/subject", "/plan/panel", "/plan/panel/longest_context_tokens", "/gates", "/gates/2", "/gates/2/gate", "/gates/3/verdict", "/gates/0/why",
                            "/plan/subject/model_digest", "/plan/subject/candidate", "/plan/subject/page_size"}) {
    const Json::json_pointer pointer(place);
    for (const Json& value : {Json(), Json(1.5), Json::array(), Json::object(), Json("x"), Json(-1)}) {
      if (value.type() == whole.at(pointer).type() && (value.is_string() || value.is_number_integer()) && std::string_view(place).find("version") == std::string_view::npos) continue;
      Json other = whole;
      other[pointer] = value;
      if (std::string_view(place) == "/plan") {
        write(file, other);
        EXPECT_THROW(read_record(file), Error) << place << value;
      } else {
        EXPECT_NE(said(other), "") << place << " " << value;
      }
    }
    Json other = whole;
    Json& parent = other.at(pointer.parent_pointer());
    parent.is_array() ? parent.erase(2) : static_cast<void>(parent.erase(pointer.back()));
    EXPECT_NE(said(other), "") << place;
  }
  for (const Json& none : {Json(), Json(3), Json::array(), Json::object()}) EXPECT_NE(said(none), "");
}

}  // namespace
}  // namespace keel
