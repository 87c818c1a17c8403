#include "base/log.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>

#include "base/utf8.h"

namespace keel {
namespace {

std::atomic<bool> quiet = false;

std::int64_t now_ns() {
  return std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1);
}

}  // namespace

void set_quiet(bool value) { quiet = value; }

void log_line(std::string_view level, std::string_view message) {
  if (quiet && level == "info") return;
  const std::string words = plain_line(message);  // files' names and contents are in many
  const std::string line = level == "info" ? fmt::format("keel: {}\n", words) : fmt::format("keel: {}: {}\n", level, words);
  std::fwrite(line.data(), 1, line.size(), stderr);  // one call, so that threads do not interleave
}

ProgressBar::ProgressBar(std::string label, std::int64_t total)
    : label_(std::move(label)), total_(total), visible_(!quiet && isatty(STDERR_FILENO)) {}

ProgressBar::~ProgressBar() {
  if (visible_ && drawn_at_ns_ != 0) std::fputs("\r\033[K", stderr);
}

void ProgressBar::advance(std::int64_t amount) {
  done_ += amount;
  if (visible_ && (now_ns() - drawn_at_ns_ > 100'000'000 || done_ >= total_)) draw();
}

void ProgressBar::draw() {
  drawn_at_ns_ = now_ns();
  const double share = total_ > 0 ? std::min(1.0, static_cast<double>(done_) / static_cast<double>(total_)) : 1.0;
  const int filled = static_cast<int>(share * 30);
  fmt::print(stderr, "\r\033[K{} [{}{}] {:3.0f} %", label_, std::string(filled, '#'),
             std::string(30 - filled, '.'), share * 100);
  std::fflush(stderr);
}

}  // namespace keel
