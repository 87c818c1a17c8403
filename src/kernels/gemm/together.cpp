#include "kernels/gemm/together.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"

namespace keel {
namespace {

constexpr int kPasses = 2;
constexpr std::size_t kTriedAgain = 4;  // of a product's candidates, in later passes
constexpr int kRounds = 7;              // of times of the ends

struct Search {
  std::vector<Picks> tried;  // of each product: candidates, the best so far first
  const std::function<double(const Picks&)>& time;

  void descend(Picks& picks) {
    for (int pass = 0; pass < kPasses; ++pass) {
      for (std::size_t i = 0; i < picks.size(); ++i) {
        std::vector<std::pair<double, std::size_t>> timed;
        for (const std::size_t candidate : tried[i]) {
          picks[i] = candidate;
          timed.push_back({time(picks), candidate});
        }
        std::sort(timed.begin(), timed.end());
        timed.resize(std::min(timed.size(), kTriedAgain));
        tried[i].clear();
        for (const auto& [t, candidate] : timed) tried[i].push_back(candidate);
        picks[i] = tried[i].front();
      }
    }
  }

  Picks best_pairs(Picks picks) {
    for (std::size_t i = 0; i + 1 < picks.size(); ++i) {
      Picks best = picks;
      double best_time = time(best);
      for (const std::size_t a : tried[i]) {
        for (const std::size_t b : tried[i + 1]) {
          picks[i] = a;
          picks[i + 1] = b;
          if (const double t = time(picks); t < best_time) {
            best = picks;
            best_time = t;
          }
        }
      }
      picks = best;
    }
    return picks;
  }
};

std::size_t shortest(const std::vector<Picks>& ends, const std::function<double(const Picks&)>& time) {
  std::vector<std::vector<double>> times(ends.size());
  for (int round = 0; round < kRounds; ++round) {
    for (std::size_t i = 0; i < ends.size(); ++i) times[i].push_back(time(ends[i]));
  }
  const auto median = [](std::vector<double>& of) {
    std::nth_element(of.begin(), of.begin() + kRounds / 2, of.end());
    return of[kRounds / 2];
  };
  std::vector<double> medians;
  for (std::vector<double>& of : times) medians.push_back(median(of));
  return static_cast<std::size_t>(std::min_element(medians.begin(), medians.end()) - medians.begin());
}

}  // namespace

Picks shortest_together(const std::vector<std::size_t>& counts, const std::vector<Picks>& starts, const std::function<double(const Picks&)>& time) {
  check(!starts.empty(), "a search has a start");
  std::vector<Picks> ends;
  std::vector<Search> searches;
  for (const Picks& start : starts) {
    Search search{.time = time};
    for (const std::size_t count : counts) {
      std::vector<std::size_t>& all = search.tried.emplace_back(count);
      std::iota(all.begin(), all.end(), std::size_t{0});
    }
    ends.push_back(start);
    search.descend(ends.back());
    searches.push_back(std::move(search));
  }
  const std::size_t best = shortest(ends, time);
  const std::vector<Picks> last = {ends[best], searches[best].best_pairs(ends[best])};
  return last[shortest(last, time)];
}

}  // namespace keel
