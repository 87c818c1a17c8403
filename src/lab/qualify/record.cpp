#include "lab/qualify/record.h"

#include "base/error.h"
#include "base/json.h"
#include "base/text_file.h"
#include "lab/qualify/plan.h"

namespace keel {

namespace fs = std::filesystem;

nlohmann::ordered_json make_record(const RecordParts& parts) {
  nlohmann::ordered_json gates = nlohmann::ordered_json::array();
  std::string why = "every gate passes";
  for (const GateResult& gate : parts.gates) {
    gates.push_back({{"gate", gate.gate}, {"verdict", name(gate.verdict)}, {"why", gate.why}, {"figures", gate.figures}, {"items", gate.items}});
  }
  for (const GateResult& gate : parts.gates) {
    if (gate.verdict == Verdict::pass) continue;
    why = gate.gate + ": " + gate.why;
    break;
  }
  return {{"record", "keel-qualification"},
          {"version", kRecordVersion},
          {"plan_sha256", plan_hash(parts.plan)},
          {"verdict", name(overall(parts.gates))},
          {"why", why},
          {"plan", parts.plan},
          {"ran", {{"keel_version", parts.version}, {"keel_commit", parts.commit.empty() ? nlohmann::ordered_json() : nlohmann::ordered_json(parts.commit)}, {"device", parts.device}, {"cpu_target", parts.cpu_target}, {"threads", parts.threads}}},
          {"effective", parts.effective},
          {"gates", std::move(gates)},
          {"does_not_cover", parts.does_not_cover},
          {"times", parts.times}};
}

namespace {

// A record's parts by place ("/plan/subject"), each of the type that is wanted there.
class Parts {
 public:
  Parts(const fs::path& file, const nlohmann::json& record) : file_(file.string()), record_(record) {}

  const nlohmann::json& at(const std::string& place) const {
    const nlohmann::json::json_pointer pointer(place);
    if (!record_.contains(pointer)) fail("{}: no qualification record: {} is missing", file_, place);
    return record_.at(pointer);
  }
  std::string text(const std::string& place) const {
    const nlohmann::json& part = at(place);
    if (!part.is_string()) refuse(place, "text", part);
    return part;
  }
  std::int64_t whole(const std::string& place) const {
    const nlohmann::json& part = at(place);
    if (!part.is_number_unsigned()) refuse(place, "a whole number", part);
    return part;
  }
  Verdict verdict(const std::string& place) const {
    const std::string word = text(place);
    for (const Verdict one : {Verdict::pass, Verdict::fail, Verdict::not_reached}) {
      if (word == name(one)) return one;
    }
    refuse(place, "pass, fail or not reached", at(place));
  }
  [[noreturn]] void refuse(const std::string& place, const char* wanted, const nlohmann::json& found) const {
    fail("{}: no qualification record: {}: wanted {}, found {}", file_, place, wanted, shortened(found.dump(), 60));
  }

 private:
  std::string file_;
  const nlohmann::json& record_;
};

}  // namespace

Record read_record(const fs::path& file) {
  const std::string text = read_text_file(file);
  if (const auto problem = json_problem(text)) fail("{}: {}", file.string(), *problem);
  const nlohmann::json json = nlohmann::json::parse(text);
  const Parts parts(file, json);
  if (parts.text("/record") != "keel-qualification") fail("{}: no qualification record", file.string());
  if (parts.whole("/version") != kRecordVersion) fail("{}: a record of version {}, and this keel reads {}: qualify anew", file.string(), parts.whole("/version"), kRecordVersion);

  Record record{.plan_sha256 = parts.text("/plan_sha256"),
                .why = parts.text("/why"),
                .verdict = parts.verdict("/verdict"),
                .gates = {},
                .plan = parts.at("/plan"),
                .subject = parts.at("/plan/subject"),
                .longest_context_tokens = parts.whole("/plan/panel/longest_context_tokens"),
                .broken_on_purpose = parts.at("/plan").contains("broken_on_purpose")};
  const std::string found = plan_hash(record.plan);
  if (record.plan_sha256 != found) fail("{}: its plan hashes to {}, and its head says {}: edited", file.string(), found, record.plan_sha256);
  const nlohmann::json wanted = subject_json({}, "");
  for (const auto& [key, value] : wanted.items()) {
    const std::string place = "/plan/subject/" + key;
    if (value.is_string() != parts.at(place).is_string()) parts.refuse(place, value.type_name(), parts.at(place));
  }
  parts.whole("/plan/subject/page_size");
  if (const auto& gates = parts.at("/gates"); gates.size() != std::size(kGates)) parts.refuse("/gates", "four", gates);
  for (std::size_t i = 0; i < std::size(kGates); ++i) {
    const std::string gate = fmt::format("/gates/{}", i);
    if (parts.text(gate + "/gate") != kGates[i]) parts.refuse(gate + "/gate", kGates[i], parts.at(gate + "/gate"));
    record.gates.push_back({.gate = kGates[i], .verdict = parts.verdict(gate + "/verdict"), .why = parts.text(gate + "/why")});
  }
  if (record.verdict != overall(record.gates)) fail("{}: its verdict is not what its gates say: edited", file.string());
  return record;
}

}  // namespace keel
