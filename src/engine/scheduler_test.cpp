// Who runs together, over pools whose pages hold nothing: the steps are counted, not computed.
#include "engine/scheduler.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/random.h"

namespace keel {
namespace {

constexpr KvGeometry kQwen3_8b{36, 8, 128, 16};
constexpr KvFormat kFormats[] = {{DType::bf16, DType::bf16}, {DType::bf16, DType::e4m3}, {DType::e4m3, DType::e4m3}};
constexpr std::int64_t kFortyGib = std::int64_t{40} << 30;

const PageMemory kNoMemory{.allocate = [](std::size_t, const char*) -> void* { return nullptr; },
                           .release = [](void*, std::size_t) {},
                           .copy = [](void*, const void*, std::size_t) {}};

struct Shape {
  std::int64_t prompt, max_tokens;
};

class Simulation {
 public:
  Simulation(const KvFormat& format, std::int64_t pool_bytes, std::int64_t batched_tokens = 65'536)
      : pool_(KvLayout(format, kQwen3_8b), KvScales::unit(kQwen3_8b), pool_bytes, kNoMemory),
        scheduler_(pool_, {.max_num_seqs = 1024, .max_num_batched_tokens = batched_tokens, .max_model_len = 40'960, .chunked_prefill = true, .prefix_caching = false}) {}

  void add(const Shape& shape) {
    const auto request = std::make_shared<Request>(Request{.prompt = std::vector<TokenId>(static_cast<std::size_t>(shape.prompt), 1)});
    request->sampling.max_tokens = shape.max_tokens;
    const std::uint64_t arrival = arrivals_++;
    scheduler_.add(std::make_unique<Sequence>(Sequence{.request_id = arrival, .choice = 0, .request = request, .sink = {}, .seed = 0, .arrival = arrival,
                                                       .tokens = request->prompt, .prompt_tokens = shape.prompt, .prefix_root = {},
                                                       .stream = TokenStream(nullptr, {}, false, false)}));
  }

  void step() {
    const std::int64_t preempted = scheduler_.preemptions();
    const Batch batch = scheduler_.next();
    ++steps_since_admission_;
    if (scheduler_.preemptions() > preempted) soonest_preemption_ = std::min(soonest_preemption_, steps_since_admission_);
    if (std::ranges::any_of(batch.entries, [](const BatchEntry& entry) { return entry.sequence->computed == 0; })) steps_since_admission_ = 0;
    most_running_ = std::max(most_running_, scheduler_.running());
    scheduler_.commit(batch);
    for (const BatchEntry& entry : batch.entries) {
      if (!entry.wants_logits) continue;
      entry.sequence->tokens.push_back(1);
      if (entry.sequence->output_tokens() == entry.sequence->request->sampling.max_tokens) scheduler_.finish(*entry.sequence);
    }
  }
  void run() {
    while (!scheduler_.idle()) step();
  }

  const KvPool& pool() const { return pool_; }
  const Scheduler& scheduler() const { return scheduler_; }
  std::int64_t most_running() const { return most_running_; }
  std::int64_t soonest_preemption() const { return soonest_preemption_; }  // steps after an admission

 private:
  KvPool pool_;
  Scheduler scheduler_;
  std::uint64_t arrivals_ = 0;
  std::int64_t most_running_ = 0, steps_since_admission_ = 0, soonest_preemption_ = 1 << 30;
};

TEST(Scheduler, AdmitsAsManyAsTheBytesHold) {
  const std::int64_t expected[] = {35, 46, 70};
  for (int i = 0; i < 3; ++i) {
    for (const auto& [prompt, max_tokens] : {Shape{8319, 2}, {8192, 128}, {8319, 1}, {8080, 240}}) {
      Simulation simulation(kFormats[i], kFortyGib, 1 << 20);
      EXPECT_EQ(simulation.pool().pages() / 520, expected[i]);
      for (int k = 0; k < 80; ++k) simulation.add({prompt, max_tokens});
      simulation.run();
      EXPECT_EQ(simulation.most_running(), expected[i]) << to_string(kFormats[i]) << " " << prompt << " + " << max_tokens;
      EXPECT_EQ(simulation.scheduler().preemptions(), 0) << to_string(kFormats[i]) << " " << prompt << " + " << max_tokens;
    }
  }
}

TEST(Scheduler, AdmitsAsManyWhenPromptsArriveInSmallSteps) {
  const std::int64_t expected[] = {35, 46, 70};
  for (int i = 0; i < 3; ++i) {
    Simulation simulation(kFormats[i], kFortyGib);
    for (int k = 0; k < 80; ++k) simulation.add({8192, 128});
    simulation.run();
    EXPECT_EQ(simulation.most_running(), expected[i]);
    EXPECT_EQ(simulation.scheduler().preemptions(), 0);
  }
}

// The last token of an answer is not cached: these fill their pages to the last slot.
TEST(Scheduler, CountsNoPageThatARequestCannotUse) {
  for (const std::int64_t max_tokens : {1, 17, 129}) {
    const KvLayout layout(kFormats[0], kQwen3_8b);
    const std::int64_t pages = (64 + max_tokens - 1) / 16;
    Simulation simulation(kFormats[0], 10 * pages * layout.page_bytes());
    for (int k = 0; k < 11; ++k) simulation.add({64, max_tokens});
    simulation.run();
    EXPECT_EQ(simulation.most_running(), 10);
    EXPECT_EQ(simulation.scheduler().preemptions(), 0);
  }
}

TEST(Scheduler, ALongAnswerHoldsNoRoomYet) {
  const KvLayout layout(kFormats[1], kQwen3_8b);
  Simulation simulation(kFormats[1], 600 * layout.page_bytes());
  for (int k = 0; k < 8; ++k) simulation.add({800, 4000});  // 50 pages, of 300 at most
  simulation.step();
  EXPECT_EQ(simulation.scheduler().running(), 8);
}

TEST(Scheduler, PreemptsNobodySoonAfterAnAdmission) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    const KvLayout layout(kFormats[1], kQwen3_8b);
    Simulation simulation(kFormats[1], 400 * layout.page_bytes(), 2048);
    for (std::uint64_t k = 0; k < 40; ++k) {
      simulation.add({1 + static_cast<std::int64_t>(random_u64(seed, 2 * k) % 2000), 1 + static_cast<std::int64_t>(random_u64(seed, 2 * k + 1) % 3000)});
    }
    simulation.run();
    EXPECT_GT(simulation.scheduler().preemptions(), 0);
    EXPECT_GT(simulation.soonest_preemption(), Scheduler::kForesightTokens);
    EXPECT_EQ(simulation.pool().held(), 0);
  }
}

}  // namespace
}  // namespace keel
