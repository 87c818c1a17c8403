#include "base/text_file.h"

#include <fcntl.h>
#include <sys/stat.h>
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

void sync_folder_of(const fs::path& path) {
  const int folder = ::open(path.has_parent_path() ? path.parent_path().c_str() : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder < 0) return;  // one that may not be read
  const bool failed = ::fsync(folder) != 0 && errno != EINVAL;  // which file systems say that cannot do it
  ::close(folder);
  if (failed) refuse(path);
}

void write_text_file(const fs::path& path, std::string_view text) {
  struct stat old {};
  const bool is_there = ::lstat(path.c_str(), &old) == 0;
  if (is_there && !S_ISREG(old.st_mode)) {
    const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (file < 0) refuse(path);
    return write_and_close(file, path, text, false);
  }
  const fs::path fresh = fmt::format("{}.{}.new", path.string(), ::getpid());  // two runs may write it at once
  const mode_t mode = is_there ? old.st_mode & 0777 : 0666;
  const int file = ::open(fresh.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, mode);
  if (file < 0) refuse(path);
  if (is_there) ::fchmod(file, mode);  // whatever the umask
  try {
    write_and_close(file, path, text, true);
    if (std::rename(fresh.c_str(), path.c_str()) != 0) refuse(path);
  } catch (...) {
    ::unlink(fresh.c_str());
    throw;
  }
  sync_folder_of(path);
}

}  // namespace keel
