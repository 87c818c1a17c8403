#include "lab/compare/child_process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <utility>

#include "base/error.h"

namespace keel {
namespace {

constexpr std::chrono::seconds kGrace{10};
constexpr int kChannel = 3;  // of the guard, behind the three that every program has
constexpr char kAskToEnd = 'e';

// The guard is a fork of a program that may have more threads: system calls alone are safe in it. To the channel it writes an
// int, errno where the program cannot be started, else 0, and when the program has ended another, the status of waitpid().

// Children, by the kernel's list of them; false where it has none.
bool kill_children() {
  const int list = open("/proc/thread-self/children", O_RDONLY | O_CLOEXEC);
  if (list < 0) return false;
  pid_t child = 0;
  for (char c; read(list, &c, 1) == 1;) {
    if (c >= '0' && c <= '9') {
      child = child * 10 + (c - '0');
    } else {
      if (child > 0) kill(child, SIGKILL);
      child = 0;
    }
  }
  close(list);
  return true;
}

// What had left the program's group has become the guard's own child when its parent was gone.
void kill_rest(pid_t group) {
  bool listed;
  do {
    kill(-group, SIGKILL);
    listed = kill_children();
  } while (waitpid(-1, nullptr, listed ? 0 : WNOHANG) > 0);
}

void tell(int number) { send(kChannel, &number, sizeof number, MSG_NOSIGNAL); }

[[noreturn]] void exec_program(char** argv, const sigset_t& signals, int failure) {
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  for (const int ignored : {SIGTERM, SIGINT, SIGHUP}) signal(ignored, SIG_DFL);
  sigprocmask(SIG_SETMASK, &signals, nullptr);
  execvp(argv[0], argv);
  const int reason = errno;
  [[maybe_unused]] const ssize_t written = write(failure, &reason, sizeof reason);
  _exit(127);
}

[[noreturn]] void guard(int channel, int log, char** argv) {
  dup2(open("/dev/null", O_RDONLY), STDIN_FILENO);
  dup2(log, STDOUT_FILENO);
  dup2(log, STDERR_FILENO);
  dup2(channel, kChannel);
  if (close_range(kChannel + 1, ~0u, 0) != 0) tell(errno), _exit(127);  // the caller's files and their locks, and other guards' channels
  fcntl(kChannel, F_SETFD, FD_CLOEXEC);
  setpgid(0, 0);  // what is sent to the caller's group shall not reach it
  prctl(PR_SET_CHILD_SUBREAPER, 1);
  for (const int ignored : {SIGTERM, SIGINT, SIGHUP}) signal(ignored, SIG_IGN);
  signal(SIGCHLD, [](int) {});
  sigset_t child_ended, signals;
  sigemptyset(&child_ended);
  sigaddset(&child_ended, SIGCHLD);
  sigprocmask(SIG_BLOCK, &child_ended, &signals);

  int failure[2] = {}, reason = 0;  // closed by a program that starts
  if (pipe2(failure, O_CLOEXEC) != 0) tell(errno), _exit(127);
  const pid_t program = fork();
  if (program < 0) tell(errno), _exit(127);
  if (program == 0) exec_program(argv, signals, failure[1]);
  setpgid(program, program);
  close(failure[1]);
  if (read(failure[0], &reason, sizeof reason) != sizeof reason) reason = 0;
  close(failure[0]);
  tell(reason);
  if (reason != 0) _exit(127);

  pollfd orders{kChannel, POLLIN, 0};
  sigdelset(&signals, SIGCHLD);  // while it waits
  int status = 0;
  for (bool runs = true; runs;) {
    orders.revents = 0;
    ppoll(&orders, 1, nullptr, &signals);
    if (char order; orders.revents != 0) {
      const bool ask = read(kChannel, &order, 1) == 1;
      kill(-program, ask ? SIGTERM : SIGKILL);
      if (!ask) orders.fd = -1;  // the caller is gone, or wants no more
    }
    int of_child = 0;
    for (pid_t ended; (ended = waitpid(-1, &of_child, WNOHANG)) > 0;) {
      if (ended == program) runs = false, status = of_child;
    }
  }
  kill_rest(program);
  tell(status);
  _exit(0);
}

struct Descriptor {
  int value = -1;
  ~Descriptor() { close(); }
  void close() {
    if (value >= 0) ::close(std::exchange(value, -1));
  }
};

std::string words_of(int status) {
  if (WIFSIGNALED(status)) return fmt::format("signal {}", WTERMSIG(status));
  return WEXITSTATUS(status) == 0 ? "" : fmt::format("exit code {}", WEXITSTATUS(status));
}

}  // namespace

ChildProcess::ChildProcess(const std::vector<std::string>& words, const std::string& log_path) {
  check(!words.empty(), "a program has a name");
  std::vector<char*> argv;
  for (const std::string& word : words) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  const Descriptor log{open(log_path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666)};
  if (log.value < 0) fail("{}: {}", log_path, std::strerror(errno));
  int channel[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, channel) != 0) fail("socketpair: {}", std::strerror(errno));
  Descriptor here{channel[0]}, there{channel[1]};
  guard_ = fork();
  if (guard_ < 0) fail("fork: {}", std::strerror(errno));
  if (guard_ == 0) guard(there.value, log.value, argv.data());
  there.close();
  int reason = 0;
  const bool told = read(here.value, &reason, sizeof reason) == sizeof reason;
  if (told && reason == 0) {
    channel_ = std::exchange(here.value, -1);
    return;
  }
  here.close();  // the guard is then free to end
  waitpid(guard_, nullptr, 0);
  fail("{} cannot be started: {}", words[0], told ? std::strerror(reason) : "its guard died");
}

ChildProcess::~ChildProcess() {
  end();
  close(channel_);
}

std::optional<std::string> ChildProcess::wait(std::chrono::milliseconds timeout) {
  using Clock = std::chrono::steady_clock;
  const auto until = Clock::now() + timeout;
  while (!ended_) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now()).count();
    pollfd answer{channel_, POLLIN, 0};
    if (poll(&answer, 1, static_cast<int>(std::max<std::int64_t>(left, 0))) > 0) {
      int status = 0;
      ended_ = read(channel_, &status, sizeof status) == sizeof status ? words_of(status) : "lost";
      waitpid(guard_, nullptr, 0);
    } else if (left <= 0) {
      return std::nullopt;
    }
  }
  return ended_;
}

void ChildProcess::end() {
  if (ended_) return;
  send(channel_, &kAskToEnd, 1, MSG_NOSIGNAL);
  if (wait(kGrace)) return;
  shutdown(channel_, SHUT_WR);
  wait(kGrace);
}

std::string program_file(const std::string& name) {
  const char* path = std::getenv("PATH");
  if (name.find('/') != std::string::npos || path == nullptr) return name;
  std::istringstream folders(path);
  for (std::string folder; std::getline(folders, folder, ':');) {
    const std::filesystem::path file = std::filesystem::path(folder.empty() ? "." : folder) / name;
    std::error_code ignored;
    if (std::filesystem::is_regular_file(file, ignored) && access(file.c_str(), X_OK) == 0) return file.string();
  }
  return name;
}

std::string last_line(const std::string& log_path) {
  std::ifstream in(log_path);
  std::string last;
  for (std::string line; std::getline(in, line);) {
    if (line.find_first_not_of(" \t\r") != std::string::npos) last = line;
  }
  return last;
}

}  // namespace keel
