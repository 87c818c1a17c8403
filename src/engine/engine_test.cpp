// The engine over a small model with random weights: what a sequence gets must not depend on who runs beside it, on how
// its prompt was split, on what was cached, or on being preempted.
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>
#include <new>

#include "base/random.h"
#include "engine/engine.h"

namespace {
std::atomic<std::int64_t> allocations_left = -1;  // until one fails; -1 = none will
}

// Not inlined: the compiler would take new and delete apart and miss that both are replaced.
[[gnu::noinline]] void* operator new(std::size_t bytes) {
  if (allocations_left >= 0 && allocations_left-- == 0) throw std::bad_alloc();
  if (void* memory = std::malloc(bytes)) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  return allocations_left >= 0 && allocations_left-- == 0 ? nullptr : std::malloc(bytes);
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

namespace keel {
namespace {

// Two layers, 6 query and 2 KV heads of 32, vocabulary 300.
ModelPath small_config() {
  static const std::filesystem::path path = [] {
    const auto file = std::filesystem::temp_directory_path() / ("keel_engine_test_" + std::to_string(getpid())) / "config.json";
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << R"({"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_size": 96,
      "intermediate_size": 160, "num_hidden_layers": 2, "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 32,
      "max_position_embeddings": 512, "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "vocab_size": 300,
      "tie_word_embeddings": false, "torch_dtype": "float32", "eos_token_id": 299})";
    return file;
  }();
  return {ModelFiles::config_json, path, "small"};
}

constexpr const char* kFormats[] = {"k16v16", "k16v8", "k8v8", "k16v4"};

std::unique_ptr<Engine> engine_with(EngineOptions options) {
  options.threads = 2;
  if (options.kv_cache_memory_bytes == 0) options.kv_cache_memory_bytes = 8 << 20;
  LoadOptions load{.format = LoadFormat::dummy, .dummy_seed = 5, .dummy_scale = 0.25f};
  return std::make_unique<Engine>(load_model(small_config(), load), nullptr, "small", options);
}

std::vector<TokenId> prompt_of(std::int64_t length, std::uint64_t seed) {
  std::vector<TokenId> prompt(length);
  for (std::int64_t i = 0; i < length; ++i) prompt[i] = static_cast<TokenId>(random_u64(seed, i) % 299);
  return prompt;
}

struct Collected {
  std::vector<TokenId> tokens;
  std::vector<float> logprobs;
  FinishReason finish = FinishReason::none;
  bool engine_failed = false;
  std::string error;
  std::int64_t cached = 0;
  std::vector<TokenReport> prompt_reports;
};

OutputSink into(Collected& collected) {
  return [&](const Output& output) {
    collected.tokens.insert(collected.tokens.end(), output.tokens.begin(), output.tokens.end());
    for (const auto& report : output.reports) collected.logprobs.push_back(report.chosen.logprob);
    if (!output.prompt_reports.empty()) collected.prompt_reports = output.prompt_reports;
    collected.finish = output.finish;
    collected.engine_failed = output.engine_failed;
    collected.error = output.error;
    collected.cached = output.cached_tokens;
  };
}

Request request_of(std::vector<TokenId> prompt, std::int64_t max_tokens, double temperature = 0) {
  Request request{.prompt = std::move(prompt)};
  request.sampling = {.temperature = temperature, .seed = 11, .max_tokens = max_tokens, .ignore_eos = true, .logprobs = 0};
  return request;
}

void run(Engine& engine) {
  while (engine.has_work()) engine.step();
}

Collected run_alone(Engine& engine, Request request) {
  Collected collected;
  EXPECT_EQ(engine.submit(std::move(request), into(collected)).status, SubmitStatus::accepted);
  run(engine);
  return collected;
}

// Sums in another order differ in the last bits, so log-probabilities agree within this bound. A token may only differ
// where the two likeliest were closer than that, which these prompts avoid. A quantised cache can turn a last-bit
// difference into one code step of one value; 0.02 nats is far below what a wrong page or length does (whole nats).
constexpr float kTolerance = 0.02f;

void expect_same(const Collected& a, const Collected& b, const std::string& what) {
  ASSERT_EQ(a.tokens, b.tokens) << what;
  for (std::size_t i = 0; i < a.logprobs.size(); ++i) ASSERT_NEAR(a.logprobs[i], b.logprobs[i], kTolerance) << what << " token " << i;
}

TEST(Engine, ABatchGivesEachSequenceWhatItGetsAlone) {
  for (const char* format : kFormats) {
    auto engine = engine_with({.kv_cache_dtype = format, .max_num_batched_tokens = 256});
    std::vector<Collected> alone(32), together(32);
    for (int i = 0; i < 32; ++i) alone[i] = run_alone(*engine, request_of(prompt_of(3 + 5 * i, i), 12, i % 2));
    engine->reset_prefix_cache();
    for (int i = 0; i < 32; ++i) {
      ASSERT_EQ(engine->submit(request_of(prompt_of(3 + 5 * i, i), 12, i % 2), into(together[i])).status, SubmitStatus::accepted);
    }
    run(*engine);
    for (int i = 0; i < 32; ++i) expect_same(alone[i], together[i], fmt::format("{} sequence {}", format, i));
    EXPECT_EQ(engine->stats().pages_held, 0);
  }
}

TEST(Engine, AChunkedPromptIsAWholePrompt) {
  for (const char* format : kFormats) {
    auto whole = engine_with({.kv_cache_dtype = format, .max_num_batched_tokens = 512});
    const Collected expected = run_alone(*whole, request_of(prompt_of(200, 3), 8));
    for (std::int64_t budget : {16, 17, 64, 199}) {
      auto chunked = engine_with({.kv_cache_dtype = format, .max_num_seqs = 4, .max_num_batched_tokens = budget});
      expect_same(expected, run_alone(*chunked, request_of(prompt_of(200, 3), 8)), fmt::format("{} in chunks of {}", format, budget));
    }
  }
}

TEST(Engine, AWarmPrefixIsAColdOne) {
  for (const char* format : kFormats) {
    auto engine = engine_with({.kv_cache_dtype = format});
    const Collected cold = run_alone(*engine, request_of(prompt_of(100, 4), 8));
    const Collected warm = run_alone(*engine, request_of(prompt_of(100, 4), 8));
    EXPECT_EQ(cold.cached, 0);
    EXPECT_EQ(warm.cached, 96);  // six full pages; the last token is always computed
    expect_same(cold, warm, format);
    Request salted = request_of(prompt_of(100, 4), 8);
    salted.cache_salt = "someone else";
    EXPECT_EQ(run_alone(*engine, salted).cached, 0);
    std::vector<TokenId> other = prompt_of(100, 4);
    other[20] ^= 1;
    EXPECT_EQ(run_alone(*engine, request_of(other, 8)).cached, 16);
  }
}

TEST(Engine, AnAnswerContinuedAsAPromptIsFoundCached) {
  auto engine = engine_with({.kv_cache_dtype = "k16v8"});
  std::vector<TokenId> prompt = prompt_of(20, 6);
  const Collected first = run_alone(*engine, request_of(prompt, 30));
  prompt.insert(prompt.end(), first.tokens.begin(), first.tokens.end());
  EXPECT_EQ(run_alone(*engine, request_of(prompt, 4)).cached, 48);
}

TEST(Engine, PrefillGivesDecodesLogits) {
  for (const char* format : kFormats) {
    auto engine = engine_with({.kv_cache_dtype = format, .enable_prefix_caching = false});
    const std::vector<TokenId> prompt = prompt_of(40, 8);
    const Collected decoded = run_alone(*engine, request_of(prompt, 24));
    Request again = request_of(prompt, 1);
    again.prompt.insert(again.prompt.end(), decoded.tokens.begin(), decoded.tokens.end());
    again.sampling.prompt_logprobs = 0;
    const Collected prefilled = run_alone(*engine, again);
    ASSERT_EQ(prefilled.prompt_reports.size(), 64u);
    EXPECT_TRUE(std::isnan(prefilled.prompt_reports[0].chosen.logprob));
    for (int i = 0; i < 24; ++i) {
      EXPECT_EQ(prefilled.prompt_reports[40 + i].chosen.rank, 1) << format << " " << i;
      EXPECT_NEAR(prefilled.prompt_reports[40 + i].chosen.logprob, decoded.logprobs[i], kTolerance) << format << " " << i;
    }
  }
}

TEST(Engine, PreemptionChangesNothingButTime) {
  for (bool caching : {true, false}) {
    const KvLayout layout({DType::f16, DType::e4m3}, {2, 2, 32});
    auto roomy = engine_with({.kv_cache_dtype = "k16v8", .enable_prefix_caching = caching});
    auto tight = engine_with({.kv_cache_dtype = "k16v8", .kv_cache_memory_bytes = 40 * layout.page_bytes(), .max_model_len = 400,
                              .enable_prefix_caching = caching});
    std::vector<Collected> expected(4), found(4);
    for (int i = 0; i < 4; ++i) {
      roomy->submit(request_of(prompt_of(30, i), 340), into(expected[i]));  // 24 pages
      tight->submit(request_of(prompt_of(30, i), 340), into(found[i]));
    }
    run(*roomy);
    run(*tight);
    EXPECT_EQ(roomy->stats().preemptions, 0);
    EXPECT_GT(tight->stats().preemptions, 0);
    for (int i = 0; i < 4; ++i) expect_same(expected[i], found[i], fmt::format("sequence {}", i));
    EXPECT_EQ(tight->stats().pages_held, 0);
  }
}

TEST(Engine, AdmitsNobodyIntoThePagesThatRunningOnesNeed) {
  const KvLayout layout({DType::f16, DType::f16}, {2, 2, 32});
  auto engine = engine_with({.kv_cache_dtype = "k16v16", .kv_cache_memory_bytes = 10 * layout.page_bytes(), .max_model_len = 160,
                             .enable_prefix_caching = false});
  // Seven pages now and two later; three and one more would pass the pool.
  Collected longer, filling;
  engine->submit(request_of(prompt_of(112, 1), 32), into(longer));
  engine->submit(request_of(prompt_of(48, 2), 8), into(filling));
  run(*engine);
  EXPECT_EQ(engine->stats().preemptions, 0);
  EXPECT_EQ(longer.tokens.size(), 32u);
  EXPECT_EQ(filling.tokens.size(), 8u);
  // Alone, a sequence may have all of them.
  EXPECT_EQ(run_alone(*engine, request_of(prompt_of(152, 3), 8)).tokens.size(), 8u);
  // And two that need five each run together.
  Collected one, other;
  engine->submit(request_of(prompt_of(64, 4), 8), into(one));
  engine->submit(request_of(prompt_of(64, 5), 8), into(other));
  engine->step();
  EXPECT_EQ(engine->stats().running, 2);
  run(*engine);
  EXPECT_EQ(engine->stats().preemptions, 0);
}

// The proportions of requests of 8,320 slots in 40 GiB of an 8B model's cache.
TEST(Engine, RunsAsManyTogetherAsTheCachesBytesHold) {
  const KvLayout native({DType::f16, DType::f16}, {2, 2, 32});
  const std::pair<const char*, std::int64_t> expected[] = {{"k16v16", 35}, {"k16v8", 46}, {"k8v8", 70}};
  for (const auto& [format, sequences] : expected) {
    for (const std::int64_t output : {2, 15}) {
      auto engine = engine_with({.kv_cache_dtype = format, .kv_cache_memory_bytes = 175 * native.page_bytes(), .max_num_seqs = 128,
                                 .max_num_batched_tokens = 8192, .enable_prefix_caching = false});
      EXPECT_EQ(engine->attestation().pages / 5, sequences) << format;
      std::vector<Collected> collected(80);
      for (int i = 0; i < 80; ++i) engine->submit(request_of(prompt_of(80 - output + 1, i), output), into(collected[i]));
      std::int64_t most = 0;
      while (engine->has_work()) {
        engine->step();
        most = std::max(most, engine->stats().running);
      }
      EXPECT_EQ(most, sequences) << format << " " << output;
      EXPECT_EQ(engine->stats().preemptions, 0) << format << " " << output;
      for (const Collected& one : collected) EXPECT_EQ(static_cast<std::int64_t>(one.tokens.size()), output);
    }
  }
}

TEST(Engine, CancellingFreesPagesAndDisturbsNobody) {
  auto engine = engine_with({});
  const Collected expected = run_alone(*engine, request_of(prompt_of(50, 1), 40));
  engine->reset_prefix_cache();
  Collected kept, dropped;
  engine->submit(request_of(prompt_of(50, 1), 40), into(kept));
  const Submitted other = engine->submit(request_of(prompt_of(60, 2), 400), into(dropped));
  for (int i = 0; i < 5; ++i) engine->step();
  engine->cancel(other.id);
  engine->cancel(12345);  // unknown
  run(*engine);
  expect_same(expected, kept, "kept");
  EXPECT_EQ(dropped.finish, FinishReason::none);
  EXPECT_LE(dropped.tokens.size(), 5u);
  EXPECT_EQ(engine->stats().pages_held, 0);
  EXPECT_EQ(engine->stats().finished.at("abort"), 1);
}

// Whichever allocation of a step fails: the step throws (the process ends), or those it computed end with an error.
TEST(Engine, SurvivesMemoryThatRunsOutWhileABatchIsComputed) {
  auto engine = engine_with({});
  Request asked = request_of(prompt_of(40, 1), 3, 1.0);
  asked.sampling.logit_bias = {{1, 1.0f}};
  asked.sampling.logprobs = asked.sampling.prompt_logprobs = 3;
  const Collected expected = run_alone(*engine, asked);
  int survived = 0;
  bool failed = true;
  for (int nth = 0; failed; ++nth) {
    Collected first, second, waiting;
    engine->submit(asked, into(first));
    engine->submit(asked, into(second));
    engine->step();
    allocations_left = nth;
    bool thrown = false;
    try {
      engine->step();
    } catch (const std::bad_alloc&) {
      thrown = true;
    }
    failed = allocations_left.exchange(-1) < 0;
    if (thrown) {  // past what is computed: the state is not known, as the header says
      engine = engine_with({});
      continue;
    }
    survived += first.finish == FinishReason::error;  // the standard library gets by without some of its allocations
    EXPECT_EQ(first.finish, second.finish) << nth;
    EXPECT_EQ(first.engine_failed, first.finish == FinishReason::error) << nth;
    engine->submit(asked, into(waiting));
    run(*engine);
    EXPECT_EQ(waiting.tokens, expected.tokens) << nth;
    EXPECT_EQ(engine->stats().pages_held, 0);
  }
  EXPECT_GE(survived, 5);
}

// Before the device's own: throws instead of some forwards.
class ThrowingExecutor final : public Executor {
 public:
  ThrowingExecutor(std::unique_ptr<Executor> own, std::function<void()>& before) : own_(std::move(own)), before_(before) {}
  void bind(KvPool& pool) override { own_->bind(pool); }
  StepResult forward(const StepRows& rows, std::span<const std::optional<DeviceSampling>> sampling) override {
    before_();
    return own_->forward(rows, sampling);
  }
  std::span<const float> logits(std::span<const std::int64_t> rows) override { return own_->logits(rows); }
  std::int64_t max_logit_rows() const override { return own_->max_logit_rows(); }
  std::int64_t weight_bytes() const override { return own_->weight_bytes(); }
  std::int64_t scratch_bytes() const override { return own_->scratch_bytes(); }
  std::string description() const override { return own_->description(); }
  void probe_attention(AttentionProbe* probe) override { own_->probe_attention(probe); }
  void store(std::int64_t layer, std::span<const float> k, std::span<const float> v, std::span<const std::int64_t> slots) override {
    own_->store(layer, k, v, slots);
  }

 private:
  std::unique_ptr<Executor> own_;
  std::function<void()>& before_;
};

TEST(Engine, DeviceMemoryThatRunsOutInAStepEndsItsRequestsAlone) {
  auto roomy = engine_with({.max_num_seqs = 2});
  const Collected expected = run_alone(*roomy, request_of(prompt_of(40, 1), 6));
  std::function<void()> before = [] {};
  auto engine = engine_with({.max_num_seqs = 2, .wrap_executor = [&](std::unique_ptr<Executor> own) { return std::make_unique<ThrowingExecutor>(std::move(own), before); }});
  // In the prompts' step and in a decode step of the same two.
  for (const int good_steps : {0, 3}) {
    std::vector<Collected> running(2);
    Collected waiting;
    for (Collected& collected : running) engine->submit(request_of(prompt_of(40, 1), 6), into(collected));
    engine->submit(request_of(prompt_of(40, 1), 6), into(waiting));
    for (int i = 0; i < good_steps; ++i) engine->step();
    before = [] { throw OutOfMemory("a workspace wants 2 GiB of device memory; 1 GiB are free"); };
    engine->step();
    before = [] {};
    for (const Collected& collected : running) {
      EXPECT_EQ(collected.finish, FinishReason::error);
      EXPECT_TRUE(collected.engine_failed);
      EXPECT_NE(collected.error.find("out of memory"), std::string::npos) << collected.error;
      EXPECT_NE(collected.error.find("a workspace wants 2 GiB"), std::string::npos) << collected.error;
      EXPECT_EQ(static_cast<int>(collected.tokens.size()), good_steps);
    }
    EXPECT_EQ(waiting.finish, FinishReason::none);
    run(*engine);
    expect_same(expected, waiting, "who waited");
    EXPECT_EQ(engine->stats().pages_held, 0);
  }
  EXPECT_EQ(engine->stats().finished.at("error"), 4);
  Collected other;
  engine->submit(request_of(prompt_of(40, 1), 6), into(other));
  before = [] { throw Error("the device is lost"); };
  EXPECT_THROW(engine->step(), Error) << "what is not a want of memory ends the engine";
}

TEST(Engine, ChoicesOfOneRequestShareItsPromptAndDrawApart) {
  auto engine = engine_with({});
  Request request = request_of(prompt_of(64, 9), 6, 1.0);
  request.n = 4;
  std::map<int, std::vector<TokenId>> choices;
  std::map<int, std::int64_t> cached;
  engine->submit(request, [&](const Output& output) {
    auto& tokens = choices[output.choice];
    tokens.insert(tokens.end(), output.tokens.begin(), output.tokens.end());
    cached[output.choice] = output.cached_tokens;
  });
  run(*engine);
  ASSERT_EQ(choices.size(), 4u);
  EXPECT_NE(choices[0], choices[1]);
  EXPECT_EQ(cached[0], 0);
  for (int i = 1; i < 4; ++i) EXPECT_EQ(cached[i], 48) << i;
}

TEST(Engine, EndsWhereItShould) {
  auto engine = engine_with({});
  const std::vector<TokenId> prompt = prompt_of(10, 2);
  const Collected free_running = run_alone(*engine, request_of(prompt, 20));
  EXPECT_EQ(free_running.finish, FinishReason::length);
  const TokenId fourth = free_running.tokens[3];
  Request stopping = request_of(prompt, 20);
  stopping.sampling.stop_token_ids = {fourth};
  const auto first_at = std::find(free_running.tokens.begin(), free_running.tokens.end(), fourth) - free_running.tokens.begin();
  const Collected stopped = run_alone(*engine, stopping);
  EXPECT_EQ(stopped.finish, FinishReason::stop);
  EXPECT_EQ(static_cast<std::ptrdiff_t>(stopped.tokens.size()), first_at + 1);
  stopping.sampling.min_tokens = 10;
  const Collected later = run_alone(*engine, stopping);
  EXPECT_GE(later.tokens.size(), 10u);
  for (int i = 0; i < 9; ++i) EXPECT_NE(later.tokens[i], fourth);
}

TEST(Engine, CountsNoTokenForARowThatFailed) {
  auto engine = engine_with({});
  Request request = request_of(prompt_of(10, 2), 4);
  request.sampling.min_tokens = 4;
  for (TokenId token = 0; token < 300; ++token) request.sampling.stop_token_ids.push_back(token);  // leaves none to choose
  const Collected failed = run_alone(*engine, request);
  EXPECT_EQ(failed.finish, FinishReason::error);
  EXPECT_FALSE(failed.engine_failed);
  EXPECT_EQ(engine->stats().generation_tokens, 0);
  EXPECT_EQ(engine->stats().finished.at("error"), 1);
  run_alone(*engine, request_of(prompt_of(10, 2), 4));
  EXPECT_EQ(engine->stats().generation_tokens, 4);
}

TEST(Engine, RefusesBadRequestsAndSaysWhy) {
  auto engine = engine_with({.max_queued = 2});
  const auto refusal = [&](Request request) {
    const Submitted submitted = engine->submit(std::move(request), [](const Output&) { FAIL(); });
    EXPECT_EQ(submitted.status, SubmitStatus::invalid);
    return submitted.message;
  };
  EXPECT_NE(refusal(request_of({}, 1)).find("empty"), std::string::npos);
  EXPECT_NE(refusal(request_of({300}, 1)).find("300"), std::string::npos);
  EXPECT_NE(refusal(request_of({-1}, 1)).find("-1"), std::string::npos);
  EXPECT_NE(refusal(request_of(prompt_of(500, 1), 100)).find("512"), std::string::npos);
  EXPECT_NE(refusal(request_of({1}, std::numeric_limits<std::int64_t>::max())).find("512"), std::string::npos);
  Request request = request_of({1}, 1);
  request.sampling.top_p = NAN;
  EXPECT_NE(refusal(request).find("top_p"), std::string::npos);
  request = request_of({1}, 1);
  request.n = 1000;
  EXPECT_NE(refusal(request).find("n must"), std::string::npos);
  request.n = 3;
  EXPECT_NE(refusal(request).find("at most 2"), std::string::npos);
  EXPECT_EQ(engine->queue_room(), 2);
  EXPECT_EQ(engine->submit(request_of({1}, 1), [](const Output&) {}).status, SubmitStatus::accepted);
  EXPECT_EQ(engine->submit(request_of({1}, 1), [](const Output&) {}).status, SubmitStatus::accepted);
  EXPECT_EQ(engine->queue_room(), 0);
  EXPECT_EQ(engine->submit(request_of({1}, 1), [](const Output&) {}).status, SubmitStatus::queue_full);
  run(*engine);
  engine->stop();
  EXPECT_EQ(engine->submit(request_of({1}, 1), [](const Output&) {}).status, SubmitStatus::stopping);
}

// Where the tokenizer's vocabulary is larger than the model's; the address sanitizer sees a write past the logits.
TEST(Engine, AnEndTokenWithoutALogitIsLeftOut) {
  LoadedModel model = load_model(small_config(), {.format = LoadFormat::dummy, .dummy_seed = 5, .dummy_scale = 0.25f});
  model.config.eos_ids = {100'000'000};
  Engine engine(std::move(model), nullptr, "small", {.kv_cache_memory_bytes = 8 << 20, .threads = 1});
  Request request = request_of({1}, 4);
  request.sampling.min_tokens = 4;
  request.sampling.ignore_eos = false;
  EXPECT_EQ(run_alone(engine, request).tokens.size(), 4u);
}

TEST(Engine, RefusesImpossibleOptions) {
  const auto error = [](EngineOptions options) -> std::string {
    try {
      engine_with(options);
    } catch (const Error& e) {
      return e.what();
    }
    return "";
  };
  EXPECT_NE(error({.kv_cache_memory_bytes = 100}).find("too small for one page"), std::string::npos);
  EXPECT_NE(error({.max_model_len = 4096}).find("512"), std::string::npos);
  EXPECT_NE(error({.block_size = 5}).find("block size"), std::string::npos);
  EXPECT_NE(error({.kv_cache_dtype = "u4"}).find("u4 keys"), std::string::npos);
  EXPECT_NE(error({.max_num_seqs = 4, .max_num_batched_tokens = 64, .enable_chunked_prefill = false}).find("chunked"), std::string::npos);
}

TEST(Engine, AdmitsWholePromptsByTheStepBudget) {
  auto engine = engine_with({.kv_cache_memory_bytes = 64 << 20, .max_num_seqs = 32, .max_num_batched_tokens = 2048,
                             .enable_prefix_caching = false, .enable_chunked_prefill = false});
  // 32 prompts of a quarter thousand in a budget of eight: cohorts of 8, 7, 7, 7, 3, since each running one takes a row.
  std::vector<Collected> collected(32);
  for (int i = 0; i < 32; ++i) engine->submit(request_of(prompt_of(256, i), 30), into(collected[i]));
  std::vector<std::int64_t> cohorts;
  for (std::int64_t before = 0; before < 32;) {
    engine->step();
    cohorts.push_back(engine->stats().running - before);
    before = engine->stats().running;
  }
  EXPECT_EQ(cohorts, (std::vector<std::int64_t>{8, 7, 7, 7, 3}));
  run(*engine);
}

}  // namespace
}  // namespace keel
