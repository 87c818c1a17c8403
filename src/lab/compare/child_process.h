// A program of its own that a measurement starts and ends.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <optional>
#include <string>
#include <vector>

namespace keel {

// Its output goes to a file, its input is empty. A guard process stands between this one and the program: when the program ends,
// when it is ended or when this process dies, however that happens, the guard kills all that the program has started, whatever
// process group or session it has gone to.
class ChildProcess {
 public:
  // Throws Error where the program cannot be started.
  ChildProcess(const std::vector<std::string>& words, const std::string& log_path);
  ~ChildProcess();
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  // "exit code 1", "signal 9"; empty for exit code 0; none when it still runs after `timeout`.
  std::optional<std::string> wait(std::chrono::milliseconds timeout);
  // Asks it to end, then kills it.
  void end();

 private:
  pid_t guard_;
  int channel_;  // to the guard
  std::optional<std::string> ended_;
};

// Where a shell finds the program of this name: as it is where it has a slash or lies nowhere in PATH.
std::string program_file(const std::string& name);

// The last line with words of a log.
std::string last_line(const std::string& log_path);

}  // namespace keel
