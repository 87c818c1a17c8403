// Lines for the operator, on standard error; a progress bar where that is a terminal.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <string>
#include <string_view>

namespace keel {

void log_line(std::string_view level, std::string_view message);

template <class... Args>
void log_info(fmt::format_string<Args...> format, Args&&... args) {
  log_line("info", fmt::format(format, std::forward<Args>(args)...));
}
template <class... Args>
void log_warning(fmt::format_string<Args...> format, Args&&... args) {
  log_line("warning", fmt::format(format, std::forward<Args>(args)...));
}
void set_quiet(bool quiet);  // warnings stay

// Redraws one line at most ten times a second; prints nothing where standard error is no terminal.
class ProgressBar {
 public:
  ProgressBar(std::string label, std::int64_t total);
  ~ProgressBar();
  void advance(std::int64_t amount);

 private:
  void draw();
  std::string label_;
  std::int64_t total_;
  std::int64_t done_ = 0;
  std::int64_t drawn_at_ns_ = 0;
  bool visible_;
};

}  // namespace keel
