#include "lab/qualify/record.h"

#include <algorithm>

#include "base/error.h"
#include "base/json.h"
#include "base/text_file.h"
#include "lab/qualify/plan.h"

namespace keel {

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
          {"version", 1},
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

nlohmann::json read_record(const std::filesystem::path& file) {
  const std::string text = read_text_file(file);
  if (const auto problem = json_problem(text)) fail("{}: {}", file.string(), *problem);
  nlohmann::json record = nlohmann::json::parse(text);
  const auto has = [&](const char* key) { return record.is_object() && record.contains(key); };
  if (!has("record") || record["record"] != "keel-qualification" || !has("plan") || !has("plan_sha256") || !has("verdict")) {
    fail("{}: no qualification record", file.string());
  }
  if (!has("version") || record["version"] != 1) fail("{}: a record of version {}, wanted 1", file.string(), has("version") ? record["version"].dump() : "unknown");
  const std::string found = plan_hash(record["plan"]);
  if (record["plan_sha256"] != found) fail("{}: its plan hashes to {}, and its head says {}: edited", file.string(), found, record["plan_sha256"].dump());
  return record;
}

bool every_gate_passed(const nlohmann::json& record) {
  const nlohmann::json gates = record.value("gates", nlohmann::json());
  return gates.is_array() && gates.size() == 4 &&
         std::ranges::all_of(gates, [](const nlohmann::json& gate) { return gate.is_object() && gate.value("verdict", nlohmann::json()) == "pass"; });
}

}  // namespace keel
