#include "lab/qualify/journal.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <fstream>
#include <iterator>

#include "base/error.h"
#include "base/json.h"

namespace keel {
namespace {

void append(int file, const std::filesystem::path& path, const std::string& text) {
  for (std::size_t done = 0; done < text.size();) {
    const ssize_t some = ::write(file, text.data() + done, text.size() - done);
    if (some <= 0) fail("{}: writing failed", path.string());
    done += static_cast<std::size_t>(some);
  }
  if (::fdatasync(file) != 0) fail("{}: writing failed", path.string());
}

}  // namespace

Journal::Journal(const std::filesystem::path& file, const nlohmann::json& head) : path_(file) {
  file_ = ::open(file.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (file_ < 0) fail("{}: cannot be written", file.string());
  try {
    if (::flock(file_, LOCK_EX | LOCK_NB) != 0) fail("{}: another run is writing it", file.string());
    std::ifstream in(file, std::ios::binary);
    std::string text(std::istreambuf_iterator<char>(in), {});
    const std::size_t whole = text.rfind('\n') + 1;  // npos + 1 = 0
    if (whole != text.size()) {
      if (::ftruncate(file_, static_cast<off_t>(whole)) != 0) fail("{}: the line that was cut off cannot be dropped", file.string());
      text.resize(whole);
    }
    if (text.empty()) append(file_, path_, head.dump() + "\n");
    std::int64_t line_number = 0;
    for (std::size_t begin = 0; begin < text.size();) {
      const std::size_t end = text.find('\n', begin);
      const std::string line = text.substr(begin, end - begin);
      begin = end + 1;
      ++line_number;
      if (const auto problem = json_problem(line)) fail("{}:{}: {}", file.string(), line_number, *problem);
      const nlohmann::json json = nlohmann::json::parse(line);
      if (line_number == 1) {
        if (json != head) fail("{}: begun with {}, and this run is {}; give another --output", file.string(), json.dump(), head.dump());
        continue;
      }
      const auto has = [&](const char* name) { return json.is_object() && json.contains(name); };
      if (!has("gate") || !has("arm") || !has("item") || !has("found") || !json["gate"].is_string() || !json["arm"].is_string() || !json["item"].is_number_integer()) {
        fail("{}:{}: wanted gate, arm, item and found", file.string(), line_number);
      }
      items_.try_emplace({json["gate"], json["arm"], json["item"]}, json["found"]);
    }
    resumed_ = static_cast<std::int64_t>(items_.size());
  } catch (...) {
    ::close(file_);
    throw;
  }
}

Journal::~Journal() { ::close(file_); }

const nlohmann::json* Journal::find(const std::string& gate, const std::string& arm, std::int64_t item) const {
  const auto found = items_.find({gate, arm, item});
  return found == items_.end() ? nullptr : &found->second;
}

void Journal::add(std::span<const Entry> entries) {
  std::string lines;
  for (const Entry& entry : entries) {
    if (!items_.try_emplace({entry.gate, entry.arm, entry.item}, entry.found).second) continue;
    lines += nlohmann::json{{"gate", entry.gate}, {"arm", entry.arm}, {"item", entry.item}, {"found", entry.found}}.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  }
  append(file_, path_, lines);
}

}  // namespace keel
