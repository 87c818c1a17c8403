#include "lab/workload.h"

#include <algorithm>
#include <cmath>
#include <random>

#include "base/error.h"
#include "base/random.h"

namespace keel {
namespace {

std::int64_t shortest(std::int64_t length, double ratio) {
  return std::max<std::int64_t>(1, std::llround(std::floor(static_cast<double>(length) * (1 - ratio))));
}

std::int64_t longest(std::int64_t length, double ratio) {
  return std::llround(std::ceil(static_cast<double>(length) * (1 + ratio)));
}

std::int64_t draw_length(std::int64_t length, double ratio, std::uint64_t random) {
  const std::int64_t least = shortest(length, ratio);
  return least + static_cast<std::int64_t>(random % static_cast<std::uint64_t>(longest(length, ratio) - least + 1));
}

}  // namespace

std::int64_t RandomWorkload::longest_input() const { return longest(input_tokens, range_ratio); }
std::int64_t RandomWorkload::longest_output() const { return longest(output_tokens, range_ratio); }

std::vector<WorkItem> random_items(const RandomWorkload& workload, std::uint64_t seed) {
  std::vector<WorkItem> items(workload.prompts);
  for (std::size_t i = 0; i < items.size(); ++i) {
    const std::uint64_t own = random_u64(seed, i);
    items[i].prompt.resize(draw_length(workload.input_tokens, workload.range_ratio, random_u64(own, 0)));
    items[i].output_tokens = draw_length(workload.output_tokens, workload.range_ratio, random_u64(own, 1));
    for (std::size_t at = 0; at < items[i].prompt.size(); ++at) {
      items[i].prompt[at] =
          static_cast<TokenId>(random_u64(own, 2 + at) % static_cast<std::uint64_t>(workload.vocabulary));
    }
  }
  return items;
}

std::vector<double> arrival_times(std::int64_t count, double rate_per_s, double burstiness, std::uint64_t seed) {
  check(rate_per_s > 0 && burstiness > 0, "arrivals have a rate and a burstiness above 0");
  std::vector<double> times(count);
  if (std::isinf(rate_per_s)) return times;
  std::mt19937_64 random(seed);
  std::gamma_distribution<double> gap(burstiness, 1 / (rate_per_s * burstiness));
  for (std::int64_t i = 1; i < count; ++i) times[i] = times[i - 1] + gap(random);
  return times;
}

}  // namespace keel
