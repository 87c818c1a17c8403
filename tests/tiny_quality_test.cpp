// models/tiny and its fragile twin (models/tiny/README.md) under every cache format: cached-decode NLL on held-out prose,
// pass-key retrieval, arithmetic. The README's figures were measured with another implementation (PyTorch on a GPU).
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <fstream>
#include <map>
#include <set>

#include "base/random.h"
#include "engine/engine.h"
#include "test_device.h"

namespace keel {
namespace {

const std::string kTiny = std::string(KEEL_SOURCE_DIR) + "/models/tiny";

// Held-out prose, empty where the shared test data is absent.
const std::string& prose() {
  static const std::string text = [] {
    std::string all;
    const std::string command = "xz -dc '" + std::string(KEEL_SHARED_DIR) + "/data/text/val.txt.xz' 2>/dev/null";
    if (FILE* pipe = popen(command.c_str(), "r")) {
      char block[65536];
      for (std::size_t n; (n = fread(block, 1, sizeof block, pipe)) > 0;) all.append(block, n);
      pclose(pipe);
    }
    return all;
  }();
  return text;
}

const Tokenizer& tokenizer() {
  static const std::unique_ptr<Tokenizer> loaded = load_tokenizer(kTiny);
  return *loaded;
}

const std::vector<TokenId>& prose_tokens() {
  static const std::vector<TokenId> ids = tokenizer().encode(std::string_view(prose()).substr(0, 1'500'000), {});
  return ids;
}

LoadedModel tiny(float key_bias) {
  LoadOptions options;
  if (key_bias != 0) options.key_bias_offsets = {{31, key_bias}, {30, -key_bias}};
  return load_model(find_model(kTiny), options);
}

// Mean NLL of 64 windows of 1,024 tokens, each token fed as a decode step that reads the cache.
double cached_decode_nll(const LoadedModel& model, std::string_view format) {
  constexpr std::int64_t kWindows = 64, kLength = 1024, kPage = 16;
  const ModelConfig& config = model.config;
  const KvGeometry geometry{config.layers, config.kv_heads, config.head_dim, kPage};
  TestDecoder decoder(model, KvLayout(parse_kv_format(format, config.dtype), geometry, page_order(test_device())), kWindows * kLength / kPage,
                      {.max_tokens = kWindows, .max_sequences = kWindows, .max_logit_rows = kWindows, .max_context = kLength});
  std::vector<std::vector<PageId>> pages(kWindows);
  for (std::int64_t i = 0; i < decoder.pool.pages(); ++i) pages[i % kWindows].push_back(*decoder.pool.allocate());

  const std::vector<TokenId>& ids = prose_tokens();
  double total = 0;
  StepRows rows;
  for (std::int64_t position = 0; position + 1 < kLength; ++position) {
    rows.clear();
    for (std::int64_t window = 0; window < kWindows; ++window) {
      rows.tokens.push_back(ids[window * kLength + position]);
      rows.positions.push_back(static_cast<std::int32_t>(position));
      rows.slots.push_back(pages[window][position / kPage] * kPage + position % kPage);
      rows.sequences.push_back({.first_row = window, .rows = 1, .context = position + 1, .pages = pages[window].data()});
      rows.logit_rows.push_back(window);
    }
    const std::span<const float> logits = decoder.forward(rows);
    std::vector<double> losses(kWindows);
    decoder.workers.parallel_for(kWindows, [&](std::int64_t window, int) {
      const auto row = logits.subspan(window * config.vocabulary, config.vocabulary);
      const float largest = *std::max_element(row.begin(), row.end());
      double sum = 0;
      for (float logit : row) sum += std::exp(static_cast<double>(logit) - largest);
      losses[window] = largest + std::log(sum) - row[ids[window * kLength + position + 1]];
    });
    for (double loss : losses) total += loss;
  }
  return total / (kWindows * (kLength - 1));
}

struct Row {
  float key_bias;
  std::map<std::string, double> rise;  // of NLL over k16v16
};

TEST(TinyQuality, NllRisesAsTheModelsReadmeSays) {
  if (prose().empty()) GTEST_SKIP() << "no held-out prose: the shared test data (or xz) is absent";
  // k16v4 here has a scale and a zero (README: a scale alone, +0.0068); +0.0049 is PyTorch's figure for that on this text.
  const Row kTable[] = {{0, {{"k16v8", 0.0002}, {"k8v8", 0.0027}, {"k16v4", 0.0049}}},
                        {100, {{"k16v8", 0.0002}, {"k8v8", 0.0535}, {"k16v4", 0.0049}}},
                        {300, {{"k16v8", 0.0002}, {"k8v8", 0.0728}, {"k16v4", 0.0049}}}};
  for (const auto& [key_bias, rises] : kTable) {
    const LoadedModel model = tiny(key_bias);
    const double native = cached_decode_nll(model, "k16v16");
    std::printf("key bias %3.0f  k16v16 NLL %.4f\n", key_bias, native);
    for (const auto& [format, rise] : rises) {
      const double found = cached_decode_nll(model, format) - native;
      std::printf("key bias %3.0f  %s  %+.4f (README %+.4f)\n", key_bias, format.c_str(), found, rise);
      // The twin's FP8 loss is large and depends on the text, of which README's is another part, and on the device's rounding of
      // keys near 300; four-bit codes tip with the last bit of a value.
      const double tolerance = rise > 0.01 ? 0.25 * rise : format == "k16v4" && test_device() == Device::cuda ? 0.0008 : 0.0005;
      EXPECT_NEAR(found, rise, tolerance) << "key bias " << key_bias << " " << format;
    }
  }
}

const char* const kFirst[] = {"Anna",  "Tom",   "Mary", "John",   "Clara",  "Henry", "Alice",  "Peter", "Ruth",   "Simon",
                              "Laura", "Frank", "Helen", "Oscar", "Julia",  "Edgar", "Martha", "Hugo",  "Nora",   "Walter",
                              "Irene", "Felix", "Emma", "Victor", "Grace",  "Albert", "Rose",  "Leonard", "Ada",  "Arthur"};
const char* const kLast[] = {"Bell",   "Carter", "Moor", "Price", "Lane",  "Foster", "Hale", "Reed", "Stone", "Marsh",
                             "Wood",   "Black",  "Fisher", "Archer", "Cook", "Mason", "Porter", "Shaw", "Field", "Brook",
                             "Hart",   "Cross",  "Dale", "Young", "King",  "Webb",   "Page", "Snow", "Park",  "Cole"};

std::vector<std::string> greedy(Engine& engine, const std::vector<std::vector<TokenId>>& prompts, std::int64_t max_tokens) {
  std::vector<std::string> answers(prompts.size());
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    Request request{.prompt = prompts[i]};
    request.sampling = {.temperature = 0, .max_tokens = max_tokens};
    const Submitted submitted = engine.submit(request, [&answers, i](const Output& output) { answers[i] += output.text; });
    EXPECT_EQ(submitted.status, SubmitStatus::accepted) << submitted.message;
  }
  while (engine.has_work()) engine.step();
  return answers;
}

std::vector<TokenId> chat(const std::string& question) {
  return tokenizer().encode("<|im_start|>user\n" + question + "<|im_end|>\n<|im_start|>assistant\n", {.parse_special = true});
}

// Three pass keys at random places in prose of `length` tokens; asks for one.
std::pair<std::vector<TokenId>, std::string> needle_case(std::int64_t length, std::uint64_t seed) {
  std::uint64_t draw = 0;
  const auto random = [&](std::uint64_t below) { return random_u64(seed, draw++) % below; };
  std::set<std::string> names;
  while (names.size() < 3) names.insert(std::string(kFirst[random(30)]) + " " + kLast[random(30)]);
  std::vector<std::string> keys;
  std::vector<std::vector<TokenId>> needles;
  for (const std::string& name : names) {
    std::string key;
    for (int i = 0; i < 5; ++i) key += static_cast<char>('0' + random(10));
    keys.push_back(key);
    needles.push_back(tokenizer().encode("\nThe pass key of " + name + " is " + key + ".\n", {}));
  }
  const std::size_t asked = random(3);
  const std::vector<TokenId> question = chat("What is the pass key of " + *std::next(names.begin(), asked) + "?");
  std::int64_t body = length - static_cast<std::int64_t>(question.size()) - 24;
  for (const auto& needle : needles) body -= static_cast<std::int64_t>(needle.size());
  const std::vector<TokenId>& corpus = prose_tokens();
  const auto start = corpus.begin() + random(corpus.size() - body);
  std::multiset<std::int64_t> cuts;
  for (int i = 0; i < 3; ++i) cuts.insert(random(body));
  std::vector<TokenId> prompt;
  std::int64_t from = 0;
  auto needle = needles.begin();
  for (std::int64_t cut : cuts) {
    prompt.insert(prompt.end(), start + from, start + cut);
    prompt.insert(prompt.end(), needle->begin(), needle->end());
    ++needle, from = cut;
  }
  prompt.insert(prompt.end(), start + from, start + body);
  prompt.insert(prompt.end(), question.begin(), question.end());
  return {prompt, keys[asked]};
}

std::pair<std::string, std::string> arithmetic_case(std::uint64_t seed) {
  const char* const kItems[] = {"apples", "books", "coins", "eggs"};
  std::uint64_t draw = 0;
  const auto random = [&](int low, int high) { return low + static_cast<int>(random_u64(seed, draw++) % (high - low)); };
  const std::string name = kFirst[random(0, 30)], item = kItems[random(0, 4)];
  int a = random(2, 50), b = random(2, 50);
  switch (random(0, 4)) {
    case 0:
      return {fmt::format("{0} has {1} {2} and buys {3} more. How many {2} does {0} have now?", name, a, item, b),
              fmt::format("{} + {} = {}. The answer is {}.", a, b, a + b, a + b)};
    case 1:
      if (a < b) std::swap(a, b);
      return {fmt::format("{} has {} {} and gives away {}. How many {} are left?", name, a, item, b, item),
              fmt::format("{} - {} = {}. The answer is {}.", a, b, a - b, a - b)};
    case 2:
      a = a % 11 + 2, b = b % 11 + 2;
      return {fmt::format("{} fills {} boxes with {} {} each. How many {} are there in all?", name, a, b, item, item),
              fmt::format("{} * {} = {}. The answer is {}.", a, b, a * b, a * b)};
    default: {
      const int c = std::min(random(2, 50), a + b);
      return {fmt::format("{0} has {1} {2}, finds {3} more and then loses {4}. How many {2} does {0} have?", name, a, item, b, c),
              fmt::format("{} + {} = {}. {} - {} = {}. The answer is {}.", a, b, a + b, a + b, c, a + b - c, a + b - c)};
    }
  }
}

// transformers in f32 answers the same cases 39, 38, 40, 39 times of 40 at 512 to 4,096 tokens and 99 of 100 sums, with the same
// wrong answers as k16v16: what is missed is the model's, not the cache's.
TEST(TinyQuality, RetrievesPassKeysAndCountsUnderSixteenBitKeys) {
  if (prose().empty()) GTEST_SKIP() << "no held-out prose: the shared test data (or xz) is absent";
  for (const float key_bias : {0.0f, 300.0f}) {
    for (const char* format : {"k16v16", "k16v8"}) {
      Engine engine(tiny(key_bias), load_tokenizer(kTiny), "tiny",
                    {.device = test_device_name(), .kv_cache_dtype = format, .kv_cache_memory_bytes = 512 << 20, .max_num_seqs = 40});
      for (const std::int64_t length : {512, 1024, 2048, 4096}) {
        std::vector<std::vector<TokenId>> prompts;
        std::vector<std::string> keys;
        for (int i = 0; i < 40; ++i) {
          auto [prompt, key] = needle_case(length, 1000 * length + i);
          prompts.push_back(prompt);
          keys.push_back(key);
        }
        const std::vector<std::string> answers = greedy(engine, prompts, 24);
        int right = 0;
        for (int i = 0; i < 40; ++i) right += answers[i].find(keys[i]) != std::string::npos;
        std::printf("key bias %3.0f  %s  retrieval at %4ld tokens: %d/40\n", key_bias, format, static_cast<long>(length), right);
        EXPECT_GE(right, 38) << format << " " << length;
      }
      std::vector<std::vector<TokenId>> prompts;
      for (int i = 0; i < 100; ++i) prompts.push_back(chat(arithmetic_case(i).first));
      const std::vector<std::string> answers = greedy(engine, prompts, 40);
      int right = 0;
      for (int i = 0; i < 100; ++i) {
        const bool equal = answers[i] == arithmetic_case(i).second;
        right += equal;
        if (!equal) std::printf("  %s -> %s\n", arithmetic_case(i).first.c_str(), answers[i].c_str());
      }
      std::printf("key bias %3.0f  %s  arithmetic: %d/100\n", key_bias, format, right);
      EXPECT_GE(right, 99) << format;
    }
  }
}

}  // namespace
}  // namespace keel
