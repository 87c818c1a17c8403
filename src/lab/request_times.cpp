#include "lab/request_times.h"

#include <algorithm>

#include "base/error.h"

namespace keel {
namespace {

std::int64_t peak_of(std::span<const RequestTimes> requests) {
  std::vector<std::pair<double, int>> changes;
  for (const RequestTimes& request : requests) {
    changes.emplace_back(request.sent_s, +1);
    changes.emplace_back(request.ended_s, -1);
  }
  std::sort(changes.begin(), changes.end());  // an end before a start at the same moment
  std::int64_t now = 0, peak = 0;
  for (const auto& [when, change] : changes) peak = std::max(peak, now += change);
  return peak;
}

}  // namespace

double duration_of(std::span<const RequestTimes> requests) {
  if (requests.empty()) return 0;
  double first = requests.front().sent_s, last = first;
  for (const RequestTimes& request : requests) {
    first = std::min(first, request.sent_s);
    last = std::max(last, request.ended_s);
  }
  return last - first;
}

RunFigures figures_of(std::span<const RequestTimes> requests, double duration_s) {
  RunFigures figures{.duration_s = duration_s, .peak_concurrent = peak_of(requests)};
  std::vector<double> ttft, tpot, itl, e2el, wait;
  for (const RequestTimes& request : requests) {
    if (!request.error.empty()) {
      ++figures.failed;
      continue;
    }
    check(!request.token_s.empty(), "a request without an error has a token");
    ++figures.completed;
    figures.input_tokens += request.prompt_tokens;
    figures.output_tokens += request.output_tokens;
    const double first = request.token_s.front(), last = request.ended_s;
    wait.push_back(request.sent_s - request.due_s);
    ttft.push_back(first - request.sent_s);
    e2el.push_back(last - request.sent_s);
    if (request.output_tokens > 1) tpot.push_back((last - first) / static_cast<double>(request.output_tokens - 1));
    for (std::size_t i = 1; i < request.token_s.size(); ++i) itl.push_back(request.token_s[i] - request.token_s[i - 1]);
  }
  figures.ttft_s = Sample(std::move(ttft));
  figures.tpot_s = Sample(std::move(tpot));
  figures.itl_s = Sample(std::move(itl));
  figures.e2el_s = Sample(std::move(e2el));
  figures.wait_s = Sample(std::move(wait));
  return figures;
}

}  // namespace keel
