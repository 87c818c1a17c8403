// A decode step as it is served, a captured graph whose kernels overlap, against the same step launched kernel by kernel with a wait
// between the layers' parts: equal bytes, whatever the contexts, page tables and occupancy. Skips where there is no GPU.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fmt/format.h>
#include <fstream>
#include <map>
#include <optional>

#include "base/error.h"
#include "base/random.h"
#include "model/executor.h"

namespace keel {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kPage = 16, kPagesEach = 48, kMostSequences = 16, kMostTokens = 64;

// Qwen3 with heads of 128 numbers, dense or AWQ; else models/tiny.
std::string model_path(const std::string& model) {
  if (model == "tiny") return std::string(KEEL_SOURCE_DIR) + "/models/tiny";
  const fs::path folder = fs::path(testing::TempDir()) / ("keel_captured_step_" + model);
  fs::create_directories(folder);
  const std::string awq =
      model != "awq" ? "" : R"(, "quantization_config": {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": true, "version": "gemm"})";
  std::ofstream(folder / "config.json")
      << R"({"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 512, "intermediate_size": 1024,
             "num_hidden_layers": 3, "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 128, "vocab_size": 1000,
             "max_position_embeddings": 4096, "rms_norm_eps": 1e-06, "rope_theta": 1000000, "tie_word_embeddings": false,
             "attention_bias": false, "hidden_act": "silu", "torch_dtype": "float16", "eos_token_id": 1)"
      << awq << "}";
  return (folder / "config.json").string();
}

// One a process, so that the formats share the weights on the device.
const LoadedModel& loaded(const std::string& model, DType dtype) {
  static std::map<std::pair<std::string, DType>, LoadedModel> models;
  const auto key = std::pair{model, dtype};
  if (const auto known = models.find(key); known != models.end()) return known->second;
  LoadOptions options{.dummy_seed = 7, .dummy_scale = 0.1f};
  if (model != "tiny") options.format = LoadFormat::dummy, options.dtype = dtype;
  return models.emplace(key, load_model(find_model(model_path(model)), options)).first->second;
}

struct Step {
  StepRows rows;
  std::vector<PageId> pages;  // [sequences][kPagesEach]
};

// A step of one row a sequence over a cache whose pages are dealt out by `tables`.
Step step_of(const ModelConfig& config, const std::vector<std::int64_t>& contexts, std::uint64_t tables, std::uint64_t tokens) {
  Step step;
  step.pages.resize(kMostSequences * kPagesEach);
  for (std::size_t i = 0; i < step.pages.size(); ++i) {
    step.pages[i] = static_cast<PageId>(i);
    std::swap(step.pages[i], step.pages[random_u64(tables, i) % (i + 1)]);
  }
  for (std::size_t i = 0; i < contexts.size(); ++i) {
    const PageId* pages = step.pages.data() + i * kPagesEach;
    const std::int64_t position = contexts[i] - 1, row = static_cast<std::int64_t>(i);
    step.rows.tokens.push_back(static_cast<std::int32_t>(random_u64(tokens, i) % static_cast<std::uint64_t>(config.vocabulary)));
    step.rows.positions.push_back(static_cast<std::int32_t>(position));
    step.rows.slots.push_back(pages[position / kPage] * kPage + position % kPage);
    step.rows.sequences.push_back({.first_row = row, .rows = 1, .context = contexts[i], .pages = pages});
    step.rows.logit_rows.push_back(row);
  }
  return step;
}

std::vector<std::int64_t> random_contexts(std::int64_t sequences, std::uint64_t seed) {
  std::vector<std::int64_t> contexts;
  for (std::int64_t i = 0; i < sequences; ++i) {
    const std::uint64_t x = random_u64(seed, static_cast<std::uint64_t>(i)), most = x % 3 == 0 ? 20 : kPagesEach * kPage;
    contexts.push_back(1 + static_cast<std::int64_t>((x >> 8) % most));
  }
  return contexts;
}

struct Answer {
  std::vector<float> logits;
  std::vector<std::int32_t> tokens;
  bool operator==(const Answer&) const = default;
};

// While it looks on, no graph is replayed, and the host waits round each layer's attention.
class NoGraph final : public AttentionProbe {
 public:
  void before(AttentionCall&) override {}
  void after(const AttentionCall&) override {}
};

struct Case {
  const char* model;
  DType dtype;
  KvFormat format;
};

class CapturedStep : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    try {
      choose_device("cuda");
    } catch (const Error& refusal) {
      GTEST_SKIP() << refusal.what();
    }
    const Case& at = GetParam();
    model_ = &loaded(at.model, at.dtype);
    const ModelConfig& config = model_->config;
    ASSERT_EQ(config.dtype, at.dtype);
    const KvLayout layout(at.format, {config.layers, config.kv_heads, config.head_dim, kPage}, PageOrder::cuda);
    pool_.emplace(layout, KvScales::unit(layout.geometry()), kMostSequences * kPagesEach * layout.page_bytes(), page_memory(Device::cuda));
    executor_ = make_executor(Device::cuda, *model_, layout,
                              {.max_tokens = kMostTokens, .max_sequences = kMostSequences, .max_logit_rows = kMostSequences, .max_context = kPagesEach * kPage},
                              workers_);
    executor_->bind(*pool_);
    fill_cache();
  }

  void fill_cache() {
    const ModelConfig& config = model_->config;
    const std::int64_t width = config.kv_heads * config.head_dim, count = kMostTokens * width;
    std::vector<float> numbers(static_cast<std::size_t>(8 * count));
    for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<float>(3 * random_unit(5, i) - 1.5);
    std::vector<std::int64_t> slots(kMostTokens);
    std::uint64_t draw = 0;
    const auto some = [&] { return std::span<const float>(numbers).subspan(random_u64(6, draw++) % (7 * static_cast<std::uint64_t>(count)), static_cast<std::size_t>(count)); };
    for (std::int64_t layer = 0; layer < config.layers; ++layer) {
      for (std::int64_t first = 0; first < pool_->slots(); first += kMostTokens) {
        for (std::int64_t i = 0; i < kMostTokens; ++i) slots[static_cast<std::size_t>(i)] = first + i;
        executor_->store(layer, some(), some(), slots);
      }
    }
  }

  // The first row's token is the host's, so that logits come back; the others' are drawn on the device.
  Answer run(const Step& step) {
    std::vector<std::optional<DeviceSampling>> sampling(step.rows.logit_rows.size());
    for (std::size_t i = 1; i < sampling.size(); ++i) sampling[i] = {.temperature = i % 2 * 0.9, .top_p = 0.95, .min_p = 0, .top_k = 40, .seed = i, .draw = 3};
    const StepResult result = executor_->forward(step.rows, sampling);
    return {{result.logits.begin(), result.logits.end()}, {result.tokens.begin() + 1, result.tokens.end()}};
  }
  Answer run_eagerly(const Step& step) {
    NoGraph probe;
    executor_->probe_attention(&probe);
    Answer answer = run(step);
    executor_->probe_attention(nullptr);
    EXPECT_EQ(answer.logits.size(), step.rows.tokens.size() * static_cast<std::size_t>(model_->config.vocabulary));
    EXPECT_TRUE(std::all_of(answer.logits.begin(), answer.logits.end(), [](float x) { return std::isfinite(x); }));
    return answer;
  }

  const LoadedModel* model_ = nullptr;
  WorkerPool workers_{0};
  std::optional<KvPool> pool_;
  std::unique_ptr<Executor> executor_;
};

// Two steps in turn over the same slots: what a kernel took from the one before would show.
TEST_P(CapturedStep, AHundredReplaysGiveTheBytesOfEagerLaunches) {
  for (const std::int64_t sequences : {1, 8, 13}) {  // 13 in the graph of 16
    const std::vector<std::int64_t> contexts = random_contexts(sequences, 20);
    const Step steps[] = {step_of(model_->config, contexts, 30, 40), step_of(model_->config, contexts, 30, 41)};
    const Answer eager[] = {run_eagerly(steps[0]), run_eagerly(steps[1])};
    ASSERT_NE(eager[0].logits, eager[1].logits);
    for (int replay = 0; replay < 100; ++replay) {
      for (const int which : {0, 1}) {
        const Answer found = run(steps[which]);
        ASSERT_TRUE(found.logits == eager[which].logits) << "logits of " << sequences << " sequences, replay " << replay;
        ASSERT_EQ(found.tokens, eager[which].tokens) << sequences << " sequences, replay " << replay;
      }
    }
  }
}

TEST_P(CapturedStep, OtherContextsTablesAndOccupancyGiveTheBytesOfEagerLaunches) {
  std::vector<float> last;
  for (std::uint64_t set = 0; set < 24; ++set) {
    const auto sequences = static_cast<std::int64_t>(set % 3 == 0 ? 9 + set % 8 : 1 + random_u64(50, set) % kMostSequences);
    const Step step = step_of(model_->config, random_contexts(sequences, 60 + set), 90 + set / 2, 120 + set);
    const Answer eager = run_eagerly(step);
    ASSERT_NE(eager.logits, last);
    for (int replay = 0; replay < 3; ++replay) ASSERT_TRUE(run(step) == eager) << "set " << set << ", " << sequences << " sequences, replay " << replay;
    last = eager.logits;
  }
}

// What the test above could not see would be no test: each of these steps differs in one respect, and in its logits.
TEST_P(CapturedStep, StaleTablesContextsPositionsAndTokensAreNoticed) {
  const std::vector<std::int64_t> contexts(13, 300);
  const Step step = step_of(model_->config, contexts, 30, 40);
  const std::vector<float> logits = run(step).logits;
  const auto is_noticed = [&](Step other) {
    for (std::size_t i = 0; i < contexts.size(); ++i) other.rows.sequences[i].pages = other.pages.data() + i * kPagesEach;
    return run(other).logits != logits;
  };
  EXPECT_FALSE(is_noticed(step));
  Step other = step;
  std::swap(other.pages[12 * kPagesEach + 3], other.pages[12 * kPagesEach + 30]);  // the last sequence's fourth page
  EXPECT_TRUE(is_noticed(other)) << "a page of another";
  other = step;
  other.rows.sequences[12].context -= 1;
  EXPECT_TRUE(is_noticed(other)) << "a token too few";
  other = step;
  other.rows.positions[12] += 1;
  EXPECT_TRUE(is_noticed(other)) << "a position too far";
  other = step;
  other.rows.tokens[12] ^= 1;
  EXPECT_TRUE(is_noticed(other)) << "another token";
}

TEST_P(CapturedStep, LogitRowsComeInTheOrderAskedFor) {
  Step step = step_of(model_->config, random_contexts(8, 21), 31, 42);
  const std::vector<float> in_order = run(step).logits;
  std::reverse(step.rows.logit_rows.begin(), step.rows.logit_rows.end());
  const std::vector<float> reversed = run(step).logits;
  const auto width = static_cast<std::size_t>(model_->config.vocabulary);
  for (std::size_t i = 0; i < 8; ++i) {
    EXPECT_TRUE(std::equal(in_order.begin() + i * width, in_order.begin() + (i + 1) * width, reversed.begin() + (7 - i) * width)) << "row " << i;
  }
}

// A measurement waits for the stream, runs a product hundreds of times and adds a line to the cache's file; a guess is told.
TEST(CapturedStepProducts, AreAllMeasuredBeforeTheFirstStep) {
  try {
    choose_device("cuda");
  } catch (const Error& refusal) {
    GTEST_SKIP() << refusal.what();
  }
  const fs::path cache = fs::path(testing::TempDir()) / "keel_captured_step_cache";
  fs::remove_all(cache);
  const char* const usual = std::getenv("XDG_CACHE_HOME");
  const std::string before = usual == nullptr ? "" : usual;
  setenv("XDG_CACHE_HOME", cache.c_str(), 1);
  const LoadedModel& model = loaded("awq", DType::f16);
  const ModelConfig& config = model.config;
  const KvLayout layout({DType::f16, DType::e4m3}, {config.layers, config.kv_heads, config.head_dim, kPage}, PageOrder::cuda);
  WorkerPool workers(0);
  for (const bool graphs : {false, true}) {
    KvPool pool(layout, KvScales::unit(layout.geometry()), kMostSequences * kPagesEach * layout.page_bytes(), page_memory(Device::cuda));
    const auto executor = make_executor(Device::cuda, model, layout, {.max_tokens = 140, .max_sequences = 5, .max_logit_rows = 24, .max_context = 200, .graphs = graphs}, workers);
    executor->bind(pool);
    const std::uintmax_t bytes = fs::file_size(cache / "keel/gemm");
    testing::internal::CaptureStderr();
    for (const std::int64_t prompt : {1, 2, 3, 5, 9, 17, 31, 65, 140}) {
      Step step = step_of(config, {prompt}, 30, 40);
      step.rows.sequences[0].rows = prompt;
      step.rows.tokens.assign(static_cast<std::size_t>(prompt), 7);
      step.rows.positions.clear();
      step.rows.slots.clear();
      for (std::int64_t i = 0; i < prompt; ++i) {
        step.rows.positions.push_back(static_cast<std::int32_t>(i));
        step.rows.slots.push_back(step.pages[static_cast<std::size_t>(i / kPage)] * kPage + i % kPage);
      }
      step.rows.keep_all = true;
      executor->forward(step.rows, {});
      std::vector<std::int64_t> rows;
      for (std::int64_t i = 0; i < std::min<std::int64_t>(prompt, 24); ++i) rows.push_back(i);
      executor->logits(rows);
    }
    for (const std::int64_t sequences : {1, 2, 3, 4, 5}) executor->forward(step_of(config, std::vector<std::int64_t>(static_cast<std::size_t>(sequences), 40), 31, 41).rows, {});
    EXPECT_EQ(testing::internal::GetCapturedStderr(), "") << "graphs: " << graphs;
    EXPECT_EQ(fs::file_size(cache / "keel/gemm"), bytes) << "graphs: " << graphs;
  }
  usual == nullptr ? unsetenv("XDG_CACHE_HOME") : setenv("XDG_CACHE_HOME", before.c_str(), 1);
}

// As where cuDNN has no kernel, seen when a layer is launched.
class Refusing final : public AttentionProbe {
 public:
  void before(AttentionCall& call) override { call.native_refuses = call.layer == 0; }
  void after(const AttentionCall&) override {}
};

class RefusedPrompts : public testing::Test {
 protected:
  void SetUp() override {
    try {
      choose_device("cuda");
    } catch (const Error& refusal) {
      GTEST_SKIP() << refusal.what();
    }
  }

  const LoadedModel& model = loaded("dense", DType::bf16);
  const ModelConfig& config = model.config;
  const KvLayout layout{{DType::bf16, DType::e4m3}, {config.layers, config.kv_heads, config.head_dim, kPage}, PageOrder::cuda};
};

// Two prompts, then a chunk of each, through a decoder whose cuDNN refuses, one that has no workspace for it, and one whose cuDNN serves.
TEST_F(RefusedPrompts, TakeThePlainKernelInThatStepAndAreCountedThere) {
  ExecutorLimits limits{.max_tokens = 200, .max_sequences = 2, .max_logit_rows = 8, .max_context = kPagesEach * kPage, .graphs = false};
  WorkerPool workers(0);
  struct Run {
    std::vector<float> logits;
    RouteCounts routes;
  };
  const auto run = [&](std::int64_t workspace_bytes, AttentionProbe& probe) {
    limits.prefill_workspace_bytes = workspace_bytes;
    KvPool pool(layout, KvScales::unit(layout.geometry()), 2 * kPagesEach * layout.page_bytes(), page_memory(Device::cuda));
    const auto executor = make_executor(Device::cuda, model, layout, limits, workers);
    executor->bind(pool);
    executor->probe_attention(&probe);
    std::vector<PageId> pages(2 * kPagesEach);
    for (std::size_t i = 0; i < pages.size(); ++i) pages[i] = static_cast<PageId>(pages.size() - 1 - i);
    Run found;
    std::int64_t cached[2] = {0, 0};
    for (const auto& rows_of : {std::pair<std::int64_t, std::int64_t>{100, 60}, {40, 20}}) {
      StepRows rows;
      for (std::int64_t sequence = 0; sequence < 2; ++sequence) {
        const std::int64_t count = sequence == 0 ? rows_of.first : rows_of.second, first = static_cast<std::int64_t>(rows.tokens.size());
        const PageId* const own = pages.data() + sequence * kPagesEach;
        for (std::int64_t i = 0; i < count; ++i) {
          const std::int64_t position = cached[sequence]++;
          rows.tokens.push_back(static_cast<std::int32_t>(random_u64(8, static_cast<std::uint64_t>(sequence * 1000 + position)) % static_cast<std::uint64_t>(config.vocabulary)));
          rows.positions.push_back(static_cast<std::int32_t>(position));
          rows.slots.push_back(own[position / kPage] * kPage + position % kPage);
        }
        rows.sequences.push_back({.first_row = first, .rows = count, .context = cached[sequence], .pages = own});
        rows.logit_rows.push_back(first + count - 1);
      }
      const StepResult result = executor->forward(rows, {});
      found.logits.insert(found.logits.end(), result.logits.begin(), result.logits.end());
    }
    found.routes = executor->routes();
    return found;
  };
  NoGraph none;
  Refusing refusing;
  const std::int64_t usual = limits.prefill_workspace_bytes;
  const Run native = run(usual, none), plain = run(0, none), refused = run(usual, refusing);
  EXPECT_EQ(native.routes, (RouteCounts{{"fresh: fresh prompt", 160}, {"gather: cached prefix or chunk", 60}}));
  EXPECT_EQ(plain.routes, (RouteCounts{{"plain: prefill attention through cuDNN: no workspace was given", 220}}));
  EXPECT_EQ(refused.routes, (RouteCounts{{"plain: a check has it refused", 220}}));
  float largest = 0;
  for (const float x : native.logits) largest = std::max(largest, std::abs(x));
  ASSERT_EQ(native.logits.size(), refused.logits.size());
  for (std::size_t i = 0; i < native.logits.size(); ++i) {
    ASSERT_NEAR(refused.logits[i], plain.logits[i], 0.02 * largest) << i;
    ASSERT_NEAR(refused.logits[i], native.logits[i], 0.05 * largest) << i;
  }
}

TEST_F(RefusedPrompts, AStepHasRoomForATokenOfEachSequence) {
  WorkerPool workers(0);
  try {
    make_executor(Device::cuda, model, layout, {.max_tokens = 4, .max_sequences = 5, .max_logit_rows = 5, .max_context = 64}, workers);
    ADD_FAILURE() << "5 sequences in a step of 4 tokens";
  } catch (const Error& refusal) {
    EXPECT_STREQ(refusal.what(), "a step of 5 sequences wants room for one token of each, found 4");
  }
}

constexpr DType f16 = DType::f16, bf16 = DType::bf16, e4m3 = DType::e4m3, u4 = DType::u4;
INSTANTIATE_TEST_SUITE_P(Models, CapturedStep,
                         testing::Values(Case{"tiny", f16, {f16, f16}}, Case{"tiny", f16, {f16, e4m3}}, Case{"tiny", f16, {e4m3, e4m3}},
                                         Case{"tiny", f16, {f16, u4}}, Case{"dense", bf16, {bf16, bf16}}, Case{"dense", bf16, {bf16, e4m3}},
                                         Case{"dense", bf16, {e4m3, u4}}, Case{"awq", f16, {f16, e4m3}}, Case{"awq", f16, {e4m3, f16}}),
                         [](const auto& info) {
                           const Case& at = info.param;
                           return fmt::format("{}_{}_k{}v{}", at.model, name(at.dtype), bits(at.format.key), bits(at.format.value));
                         });

}  // namespace
}  // namespace keel
