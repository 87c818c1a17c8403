#include "lab/compare/child_process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <thread>

#include "base/error.h"
#include "base/json.h"

namespace keel {
namespace {

constexpr std::chrono::milliseconds kPoll{5};
constexpr std::chrono::seconds kGrace{10};

}  // namespace

ChildProcess::ChildProcess(const std::vector<std::string>& words, const std::string& log_path) {
  check(!words.empty(), "a program has a name");
  std::vector<char*> argv;
  for (const std::string& word : words) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  const int log = open(log_path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (log < 0) fail("{}: {}", log_path, std::strerror(errno));
  int failure[2];  // closed by a program that starts; else the reason
  if (pipe2(failure, O_CLOEXEC) != 0) fail("pipe: {}", std::strerror(errno));
  const pid_t parent = getpid();
  pid_ = fork();
  if (pid_ < 0) fail("fork: {}", std::strerror(errno));
  if (pid_ == 0) {
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(127);
    dup2(log, STDOUT_FILENO);
    dup2(log, STDERR_FILENO);
    execvp(argv[0], argv.data());
    const int reason = errno;
    [[maybe_unused]] const ssize_t written = write(failure[1], &reason, sizeof reason);
    _exit(127);
  }
  setpgid(pid_, pid_);
  close(log);
  close(failure[1]);
  int reason = 0;
  const bool failed = read(failure[0], &reason, sizeof reason) == sizeof reason;
  close(failure[0]);
  if (!failed) return;
  waitpid(pid_, nullptr, 0);
  fail("{} cannot be started: {}", words[0], std::strerror(reason));
}

ChildProcess::~ChildProcess() { end(); }

std::optional<std::string> ChildProcess::wait(std::chrono::milliseconds timeout) {
  const auto until = std::chrono::steady_clock::now() + timeout;
  while (!ended_) {
    int status = 0;
    const pid_t found = waitpid(pid_, &status, WNOHANG);
    if (found == pid_ || (found < 0 && errno != EINTR)) {
      ended_ = found != pid_                                         ? "lost"
               : WIFSIGNALED(status)                                 ? fmt::format("signal {}", WTERMSIG(status))
               : WIFEXITED(status) && WEXITSTATUS(status) != 0       ? fmt::format("exit code {}", WEXITSTATUS(status))
                                                                     : "";
      kill(-pid_, SIGKILL);  // what it left behind
      break;
    }
    if (std::chrono::steady_clock::now() >= until) return std::nullopt;
    std::this_thread::sleep_for(kPoll);
  }
  return ended_;
}

void ChildProcess::end() {
  if (ended_) return;
  kill(-pid_, SIGTERM);
  if (wait(kGrace)) return;
  kill(-pid_, SIGKILL);
  wait(kGrace);
}

std::string last_line(const std::string& log_path) {
  std::ifstream in(log_path);
  std::string last;
  for (std::string line; std::getline(in, line);) {
    if (line.find_first_not_of(" \t\r") != std::string::npos) last = line;
  }
  return shortened(last, 300);
}

}  // namespace keel
