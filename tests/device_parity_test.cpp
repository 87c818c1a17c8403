// The CUDA engine against the CPU engine on models/tiny and its fragile twin: the same greedy text for every cache format,
// whatever way attention took. Skips where there is no GPU.
#include <gtest/gtest.h>

#include <fmt/format.h>

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

// Questions whose answers the model is sure of, behind prefaces of many lengths.
std::vector<std::vector<TokenId>> prompts() {
  const char* const kNames[] = {"Anna", "Tom", "Mary", "John"};
  const std::string sentence = "The old house stood at the end of the lane, and nobody had lived in it for many years. ";
  std::vector<std::vector<TokenId>> all;
  for (int i = 0; i < 24; ++i) {
    std::string preface;
    for (int repeat = 0; repeat < i * i / 8; ++repeat) preface += sentence;
    std::vector<TokenId> prompt = tokenizer()->encode(preface, {});
    const std::vector<TokenId> question =
        chat(fmt::format("{} has {} apples and buys {} more. How many apples does {} have now?", kNames[i % 4], 3 + i, 41 - i, kNames[i % 4]));
    prompt.insert(prompt.end(), question.begin(), question.end());
    all.push_back(std::move(prompt));
  }
  return all;
}

struct Answers {
  std::vector<std::string> texts;
  EngineStats stats;
};

Answers answer(const std::string& device, const std::string& format, float key_bias, std::int64_t step_tokens, bool eager = false) {
  LoadOptions load;
  if (key_bias != 0) load.key_bias_offsets = {{31, key_bias}, {30, -key_bias}};
  Engine engine(load_model(find_model(kTiny), load), tokenizer(), "tiny",
                {.device = device, .kv_cache_dtype = format, .kv_cache_memory_bytes = 256 << 20, .enforce_eager = eager, .max_num_seqs = 16,
                 .max_num_batched_tokens = step_tokens});
  const std::vector<std::vector<TokenId>> asked = prompts();
  Answers answers{.texts = std::vector<std::string>(asked.size()), .stats = {}};
  for (std::size_t i = 0; i < asked.size(); ++i) {
    Request request{.prompt = asked[i]};
    request.sampling = {.temperature = 0, .max_tokens = 32};
    const Submitted submitted = engine.submit(request, [&answers, i](const Output& output) { answers.texts[i] += output.text; });
    EXPECT_EQ(submitted.status, SubmitStatus::accepted) << submitted.message;
  }
  while (engine.has_work()) engine.step();
  answers.stats = engine.stats();
  return answers;
}

class DeviceParity : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (!has_gpu()) GTEST_SKIP() << "no GPU that keel serves, or a build without CUDA";
  }
};

TEST_P(DeviceParity, GreedyTextIsTheCpusForTheModelAndItsTwin) {
  for (const float key_bias : {0.0f, 300.0f}) {
    const Answers cpu = answer("cpu", GetParam(), key_bias, 2048);
    const Answers cuda = answer("cuda", GetParam(), key_bias, 2048);
    EXPECT_EQ(cuda.texts, cpu.texts) << "key bias " << key_bias;
    for (const auto& [route, rows] : cuda.stats.routes) std::printf("%s  %s: %ld rows\n", GetParam().c_str(), route.c_str(), static_cast<long>(rows));
  }
}

TEST_P(DeviceParity, ChunksGraphsAndEagerStepsGiveTheSameText) {
  const std::vector<std::string> whole = answer("cuda", GetParam(), 0, 4096).texts;
  EXPECT_EQ(answer("cuda", GetParam(), 0, 100).texts, whole);
  EXPECT_EQ(answer("cuda", GetParam(), 0, 4096, true).texts, whole);
}

INSTANTIATE_TEST_SUITE_P(Formats, DeviceParity, testing::Values("k16v16", "k16v8", "k8v8", "k16v4"));

}  // namespace
}  // namespace keel
