// The CUDA engine against the CPU engine on models/tiny and its fragile twin: the same greedy text for every cache format,
// whatever way attention took. Skips where there is no GPU.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fmt/format.h>

#include "base/error.h"
#include "base/random.h"
#include "engine/engine.h"
#include "text/tokenizer.h"

namespace keel {
namespace {

const std::string kTiny = std::string(KEEL_SOURCE_DIR) + "/models/tiny";

bool has_gpu() {
  try {
    return choose_device("cuda") == Device::cuda;
  } catch (const Error&) {
    return false;
  }
}

const std::shared_ptr<const Tokenizer>& tokenizer() {
  static const std::shared_ptr<const Tokenizer> loaded = load_tokenizer(kTiny);
  return loaded;
}

std::vector<TokenId> chat(const std::string& question) {
  return tokenizer()->encode("<|im_start|>user\n" + question + "<|im_end|>\n<|im_start|>assistant\n", {.parse_special = true});
}

// Questions whose answers the model is sure of: sums, and a pass key that stands somewhere in a text of many lengths.
std::vector<std::vector<TokenId>> prompts() {
  const char* const kNames[] = {"Anna", "Tom", "Mary", "John"};
  const char* const kSentences[] = {
      "The rain had stopped before noon, and the road to the village was full of people going home.",
      "She put down her letter and looked out of the window for a long time.",
      "\"You are late,\" said the old man, \"but there is still some bread on the table.\"",
      "Nobody in the house had heard the carriage come up the drive.",
      "He took his hat from the chair, bowed to the company, and went out into the cold.",
      "Many years afterwards they still spoke of that winter as the hardest they had known.",
      "A little boat lay upon the sand, and two children were asleep in the shade of it."};
  std::vector<std::vector<TokenId>> all;
  for (int i = 0; i < 24; ++i) {
    std::uint64_t draw = 0;
    const auto random = [&](std::uint64_t below) { return static_cast<int>(random_u64(static_cast<std::uint64_t>(i), draw++) % below); };
    const std::string name = kNames[random(4)];
    if (i % 2 == 0) {
      all.push_back(chat(fmt::format("{0} has {1} apples and buys {2} more. How many apples does {0} have now?", name, 2 + random(45), 2 + random(45))));
      continue;
    }
    std::string text;
    const int sentences = 1 + i * i / 6, place = random(static_cast<std::uint64_t>(sentences));
    for (int sentence = 0; sentence < sentences; ++sentence) {
      text += std::string(kSentences[random(std::size(kSentences))]) + " ";
      if (sentence == place) text += fmt::format("\nThe pass key of {} Bell is {}.\n", name, 10'000 + random(90'000));
    }
    std::vector<TokenId> prompt = tokenizer()->encode(text, {});
    const std::vector<TokenId> question = chat(fmt::format("What is the pass key of {} Bell?", name));
    prompt.insert(prompt.end(), question.begin(), question.end());
    all.push_back(std::move(prompt));
  }
  return all;
}

struct Answers {
  std::vector<std::vector<TokenId>> tokens;
  std::vector<std::vector<TokenReport>> reports;  // where asked for
  EngineStats stats;
};

struct Run {
  std::string device, format;
  float key_bias = 0;
  std::int64_t step_tokens = 4096;
  bool eager = false;
  bool reports = false;
};

Answers answer(const Run& run) {
  LoadOptions load;
  if (run.key_bias != 0) load.key_bias_offsets = {{31, run.key_bias}, {30, -run.key_bias}};
  Engine engine(load_model(find_model(kTiny), load), tokenizer(), "tiny",
                {.device = run.device, .kv_cache_dtype = run.format, .kv_cache_memory_bytes = 256 << 20, .enforce_eager = run.eager,
                 .max_num_seqs = 16, .max_num_batched_tokens = run.step_tokens});
  const std::vector<std::vector<TokenId>> asked = prompts();
  Answers answers{.tokens = std::vector<std::vector<TokenId>>(asked.size()), .reports = std::vector<std::vector<TokenReport>>(asked.size()), .stats = {}};
  for (std::size_t i = 0; i < asked.size(); ++i) {
    Request request{.prompt = asked[i]};
    request.sampling = {.temperature = 0, .max_tokens = 32};
    if (run.reports) request.sampling.logprobs = 5;
    const Submitted submitted = engine.submit(request, [&answers, i](const Output& output) {
      answers.tokens[i].insert(answers.tokens[i].end(), output.tokens.begin(), output.tokens.end());
      answers.reports[i].insert(answers.reports[i].end(), output.reports.begin(), output.reports.end());
    });
    EXPECT_EQ(submitted.status, SubmitStatus::accepted) << submitted.message;
  }
  while (engine.has_work()) engine.step();
  answers.stats = engine.stats();
  return answers;
}

constexpr int kOthers = 2;  // texts that may differ at a tie

// Where two runs' greedy tokens first differ, the reference must have held both for equally likely within `tie` nats: a
// rounding apart, not an error. Texts past that point say nothing more.
// At most `others` texts may differ.
void expect_same_text(const Answers& found, const Answers& reference, double tie, int others, const std::string& what) {
  double widest = 0;
  int equal = 0;
  for (std::size_t i = 0; i < reference.tokens.size(); ++i) {
    const auto [at, other] =
        std::mismatch(reference.tokens[i].begin(), reference.tokens[i].end(), found.tokens[i].begin(), found.tokens[i].end());
    if (at == reference.tokens[i].end() && other == found.tokens[i].end()) {
      ++equal;
      continue;
    }
    ASSERT_TRUE(at != reference.tokens[i].end() && other != found.tokens[i].end()) << what << ", prompt " << i << ": one ends before the other";
    const TokenReport& report = reference.reports[i][static_cast<std::size_t>(at - reference.tokens[i].begin())];
    double margin = INFINITY;
    for (const TokenLogprob& top : report.top) {
      if (top.token == *other) margin = report.chosen.logprob - top.logprob;
    }
    widest = std::max(widest, margin);
    EXPECT_LE(margin, tie) << what << ", prompt " << i << ", token " << at - reference.tokens[i].begin();
  }
  std::printf("%s: %d of %zu texts equal, the others up to ties of %.3f nats\n", what.c_str(), equal, reference.tokens.size(), widest);
  EXPECT_GE(equal, static_cast<int>(reference.tokens.size()) - others) << what;
}

class DeviceParity : public testing::TestWithParam<std::pair<const char*, double>> {
 protected:
  void SetUp() override {
    if (!has_gpu()) GTEST_SKIP() << "no GPU that keel serves, or a build without CUDA";
  }
  const std::string format = GetParam().first;
  const double tie = GetParam().second;
};

TEST_P(DeviceParity, GreedyTextIsTheCpusForTheModelAndItsTwin) {
  for (const float key_bias : {0.0f, 300.0f}) {
    const Answers cpu = answer({.device = "cpu", .format = format, .key_bias = key_bias, .reports = true});
    const Answers cuda = answer({.device = "cuda", .format = format, .key_bias = key_bias});
    // Where the format breaks the model its texts hang on the last bit of every key: most are still equal.
    const bool broken = format == "k8v8" && key_bias != 0;
    expect_same_text(cuda, cpu, broken ? INFINITY : tie, broken ? 6 : kOthers, fmt::format("{}, key bias {}", format, key_bias));
    for (const auto& [route, rows] : cuda.stats.routes) std::printf("  %s: %ld rows\n", route.c_str(), static_cast<long>(rows));
  }
}

TEST_P(DeviceParity, ChunksGraphsAndEagerStepsGiveTheSameText) {
  const Answers whole = answer({.device = "cuda", .format = format, .reports = true});
  expect_same_text(answer({.device = "cuda", .format = format, .step_tokens = 100}), whole, tie, kOthers, format + " in chunks of 100");
  expect_same_text(answer({.device = "cuda", .format = format, .eager = true}), whole, tie, kOthers, format + " without graphs");
}

// Half an ulp here and there: f16 sums in 16-bit caches; in coarser ones a rounding may also tip a stored code.
INSTANTIATE_TEST_SUITE_P(Formats, DeviceParity, testing::Values(std::pair{"k16v16", 0.05}, std::pair{"k16v8", 0.1}, std::pair{"k8v8", 0.2}, std::pair{"k16v4", 0.2}));

}  // namespace
}  // namespace keel
