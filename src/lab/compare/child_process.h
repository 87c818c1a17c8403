// A program of its own that a measurement starts and ends.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <optional>
#include <string>
#include <vector>

namespace keel {

// Its output goes to a file; it is in a process group of its own, and is killed when it is destroyed or this process dies.
class ChildProcess {
 public:
  // Throws Error where the program cannot be started.
  ChildProcess(const std::vector<std::string>& words, const std::string& log_path);
  ~ChildProcess();
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  // "exit code 1", "signal 9"; empty for exit code 0; none when it still runs after `timeout`.
  std::optional<std::string> wait(std::chrono::milliseconds timeout);
  // Asks it to end, then kills it and what it started.
  void end();

 private:
  pid_t pid_;
  std::optional<std::string> ended_;
};

// The last line with words of a log, for a reason.
std::string last_line(const std::string& log_path);

}  // namespace keel
