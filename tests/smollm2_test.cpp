// SmolLM2-135M-Instruct (Q4_1 GGUF): token ids and NLL against Hugging Face on the same text, and three plain questions.
// Wants the model where tools/fetch-model puts it.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "base/sha256.h"
#include "engine/engine.h"
#include "text/chat_template.h"

namespace keel {
namespace {

std::string model_file() {
  const std::filesystem::path folder = std::string(KEEL_SOURCE_DIR) + "/.cache/smollm2";
  std::error_code missing;
  for (const auto& entry : std::filesystem::directory_iterator(folder, missing)) {
    if (entry.path().extension() == ".gguf") return entry.path();
  }
  return "";
}

std::string read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(in), {});
}

std::unique_ptr<Engine> engine_with(const char* format) {
  return std::make_unique<Engine>(load_model(find_model(model_file()), {}), load_tokenizer(GgufFile(model_file())), "smollm2",
                                  EngineOptions{.kv_cache_dtype = format, .kv_cache_memory_bytes = 512 << 20, .max_model_len = 2048,
                                                .max_num_seqs = 16, .max_num_batched_tokens = 512});
}

TEST(SmolLm2, TokenIdsAndNllAreTheReferences) {
  const std::string text = read_file(std::string(KEEL_SHARED_DIR) + "/data/text/wikitext-2-test.txt");
  if (text.empty() || model_file().empty()) GTEST_SKIP() << "SmolLM2 (tools/fetch-model smollm2) or the shared test text is absent";
  const auto golden = nlohmann::json::parse(read_file(std::string(KEEL_SOURCE_DIR) + "/tests/golden/smollm2_nll.json"));
  const std::vector<TokenId> all = load_tokenizer(GgufFile(model_file()))->encode(text, {});
  const std::vector<TokenId> ids(all.begin(), all.begin() + 16 * 1024);
  EXPECT_EQ(hex(sha256(std::as_bytes(std::span(ids)))), golden["ids_sha256"]);

  for (const auto& [format, bound] : {std::pair{"k16v16", 0.005}, {"k16v8", 0.02}}) {
    const auto engine = engine_with(format);
    double total = 0;
    std::int64_t targets = 0;
    for (int window = 0; window < 16; ++window) {
      Request request{.prompt = std::vector<TokenId>(ids.begin() + window * 1024, ids.begin() + (window + 1) * 1024)};
      request.sampling = {.temperature = 0, .max_tokens = 1, .prompt_logprobs = 0};
      engine->submit(request, [&](const Output& output) {
        for (std::size_t i = 1; i < output.prompt_reports.size(); ++i, ++targets) total -= output.prompt_reports[i].chosen.logprob;
      });
    }
    while (engine->has_work()) engine->step();
    ASSERT_EQ(targets, 16 * 1023);
    const double nll = total / static_cast<double>(targets);
    std::printf("%s NLL %.5f, reference %.5f\n", format, nll, golden["mean_nll"].get<double>());
    EXPECT_NEAR(nll, golden["mean_nll"].get<double>(), bound) << format;
  }
}

TEST(SmolLm2, AnswersPlainQuestions) {
  if (model_file().empty()) GTEST_SKIP() << "SmolLM2 is absent: tools/fetch-model smollm2";
  const auto engine = engine_with("k16v8");
  const ChatTemplate chat_template(engine->tokenizer()->chat_template());
  const std::pair<const char*, const char*> kQuestions[] = {{"What is the capital of France?", "Paris"},
                                                            {"What is the chemical formula of water?", "H2O"},
                                                            {"Which planet is known as the Red Planet?", "Mars"}};
  for (const auto& [question, word] : kQuestions) {
    const auto prompt = chat_template.render({{"messages", {{{"role", "user"}, {"content", question}}}}, {"add_generation_prompt", true}});
    ASSERT_TRUE(prompt.ok()) << prompt.error();
    Request request{.prompt = engine->tokenizer()->encode(prompt.value(), {.parse_special = true})};
    request.sampling = {.temperature = 0, .max_tokens = 60};
    std::string answer;
    engine->submit(request, [&](const Output& output) { answer += output.text; });
    while (engine->has_work()) engine->step();
    std::printf("%s -> %s\n", question, answer.c_str());
    EXPECT_NE(answer.find(word), std::string::npos) << answer;
  }
}

}  // namespace
}  // namespace keel
