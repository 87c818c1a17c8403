#include "lab/qualify/journal.h"

#include "base/error.h"

namespace keel {

Journal::Journal(const std::filesystem::path& file, const nlohmann::json& head) : lines_(file) {
  if (lines_.lines().empty()) lines_.append({{head.dump()}});
  const nlohmann::json begun = nlohmann::json::parse(lines_.lines().front());
  if (begun != head) fail("{}: begun with {}, and this run is {}; give another --output", file.string(), begun.dump(), head.dump());
  for (std::size_t i = 1; i < lines_.lines().size(); ++i) {
    const nlohmann::json json = nlohmann::json::parse(lines_.lines()[i]);
    const auto has = [&](const char* name) { return json.contains(name); };
    if (!has("gate") || !has("arm") || !has("item") || !has("found") || !json["gate"].is_string() || !json["arm"].is_string() || !json["item"].is_number_integer()) {
      fail("{}:{}: wanted gate, arm, item and found", file.string(), i + 1);
    }
    items_.try_emplace({json["gate"], json["arm"], json["item"]}, json["found"]);
  }
  resumed_ = static_cast<std::int64_t>(items_.size());
}

const nlohmann::json* Journal::find(const std::string& gate, const std::string& arm, std::int64_t item) const {
  const auto found = items_.find({gate, arm, item});
  return found == items_.end() ? nullptr : &found->second;
}

void Journal::add(std::span<const Entry> entries) {
  std::vector<std::string> lines;
  for (const Entry& entry : entries) {
    if (!items_.try_emplace({entry.gate, entry.arm, entry.item}, entry.found).second) continue;
    lines.push_back(nlohmann::json{{"gate", entry.gate}, {"arm", entry.arm}, {"item", entry.item}, {"found", entry.found}}.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
  }
  lines_.append(lines);
}

}  // namespace keel
