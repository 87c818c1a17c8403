#include "lab/line_journal.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/error.h"
#include "base/json.h"
#include "base/log.h"
#include "base/sha256.h"
#include "base/text_file.h"

namespace keel {
namespace {

constexpr std::string_view kKey = R"(,"chain":")", kEnd = R"("})";
constexpr const char* kNoLine = "no line of a journal: it has no chain";

}  // namespace

LineJournal::LineJournal(std::filesystem::path path) : path_(std::move(path)) {
  file_ = ::open(path_.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  if (file_ < 0) fail("{}: cannot be written: {}", path_.string(), std::strerror(errno));
  try {
    if (::flock(file_, LOCK_EX | LOCK_NB) != 0) fail("{}: another run is writing it", path_.string());
    read();
    sync_folder_of(path_);  // that the file is there
  } catch (...) {
    ::close(file_);
    throw;
  }
}

LineJournal::~LineJournal() { ::close(file_); }

void LineJournal::read() {
  const std::string text = read_text_file(path_);
  const std::size_t whole = text.rfind('\n') + 1;  // npos + 1 = 0
  const auto refuse = [&](const std::string& why) { fail("{}:{}: {}", path_.string(), lines_.size() + 1, why); };
  const auto is_chained = [](const std::string& line) { return line.starts_with('{') && line.rfind(kKey) != std::string::npos; };
  for (std::size_t begin = 0; begin < whole;) {
    const std::size_t end = text.find('\n', begin);
    const std::string line = text.substr(begin, end - begin);
    begin = end + 1;
    if (const auto problem = json_problem(line)) refuse(*problem);
    if (!is_chained(line)) refuse(kNoLine);
    const std::size_t key = line.rfind(kKey);
    lines_.push_back(line.substr(0, key) + "}");
    if (chained(lines_.back(), chain_) != line) lines_.pop_back(), refuse("edited: it, or a line before it, is not what was written");
  }
  const std::string cut_off = text.substr(whole);
  if (cut_off.empty()) return;
  if (!cut_off.starts_with('{') || (!json_problem(cut_off) && !is_chained(cut_off))) refuse(kNoLine);  // nor the beginning of one
  if (::ftruncate(file_, static_cast<off_t>(whole)) != 0) fail("{}: the line that was cut off cannot be dropped: {}", path_.string(), std::strerror(errno));
}

std::string LineJournal::chained(const std::string& object, std::string& chain) {
  check(object.size() > 2 && object.starts_with('{') && object.ends_with('}') && object.find('\n') == std::string::npos, "a journal's line is an object");
  chain = hex(sha256(chain + object));
  return object.substr(0, object.size() - 1) + std::string(kKey) + chain + std::string(kEnd);
}

void LineJournal::append(std::span<const std::string> objects) {
  std::string text, chain = chain_;
  for (const std::string& object : objects) text += chained(object, chain) + '\n';
  const off_t end = ::lseek(file_, 0, SEEK_END);
  try {
    write_all(file_, path_, text);
    if (::fdatasync(file_) != 0) fail("{}: cannot be written: {}", path_.string(), std::strerror(errno));
  } catch (...) {
    // Where this fails too, a reader cuts off what is no whole line; whole lines of the chain stand.
    if (::ftruncate(file_, end) != 0) log_warning("{}: what was half written stays: {}", path_.string(), std::strerror(errno));
    throw;
  }
  chain_ = chain;
  lines_.insert(lines_.end(), objects.begin(), objects.end());
}

}  // namespace keel
