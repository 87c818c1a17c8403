#include "base/text_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>

#include "base/error.h"

namespace keel {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void refuse(const fs::path& path) { fail("{}: cannot be written: {}", path.string(), std::strerror(errno)); }

void write_and_close(int file, const fs::path& path, std::string_view text, bool sync) {
  try {
    write_all(file, path, text);
    if (sync && ::fsync(file) != 0) refuse(path);
  } catch (...) {
    ::close(file);
    throw;
  }
  ::close(file);
}

}  // namespace

std::string read_text_file(const fs::path& path) {
  std::error_code ignored;
  if (fs::is_directory(path, ignored)) fail("{}: wanted a file, found a folder", path.string());
  std::ifstream file(path, std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  if (!file || file.bad()) fail("{}: cannot be read", path.string());
  return text;
}

void write_all(int file, const fs::path& path, std::string_view text) {
  while (!text.empty()) {
    const ssize_t some = ::write(file, text.data(), text.size());
    if (some < 0 && errno == EINTR) continue;
    if (some <= 0) refuse(path);
    text.remove_prefix(static_cast<std::size_t>(some));
  }
}

void write_text_file(const fs::path& path, std::string_view text) {
  std::error_code ignored;
  const fs::file_type type = fs::symlink_status(path, ignored).type();
  if (type != fs::file_type::not_found && type != fs::file_type::regular) {
    const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (file < 0) refuse(path);
    return write_and_close(file, path, text, false);
  }
  const fs::path fresh = fmt::format("{}.{}.new", path.string(), ::getpid());  // two runs may write it at once
  const int file = ::open(fresh.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (file < 0) refuse(path);
  try {
    write_and_close(file, path, text, true);
    if (std::rename(fresh.c_str(), path.c_str()) != 0) refuse(path);
  } catch (...) {
    ::unlink(fresh.c_str());
    throw;
  }
}

}  // namespace keel
