// Decode and prefill speed of a whole model at given contexts, and of several streams at once, as JSON lines.
//
//   engine_bench MODEL [--case CONTEXTxSTREAMS]… [--repeats N] [FORMAT…]     default: five cases, 3 repeats, k16v16 k16v8 k8v8
//
// Bytes a decode step must read: all weights once, and the cache of each stream. Roofs are measured in the same run.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <vector>

#include "base/error.h"
#include "base/random.h"
#include "bench_roofs.h"
#include "device/buffer.h"
#include "engine/engine.h"

namespace keel {
namespace {

using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

constexpr std::int64_t kDecodeTokens = 48, kBatchedTokens = 512;

std::vector<TokenId> random_prompt(std::int64_t length, std::int64_t vocabulary, std::uint64_t seed) {
  std::vector<TokenId> prompt(length);
  for (std::int64_t i = 0; i < length; ++i) prompt[i] = static_cast<TokenId>(random_u64(seed, i) % vocabulary);
  return prompt;
}

struct Case {
  std::int64_t context, streams;
};

struct Measured {
  double prefill_s = 0, decode_s = 0;
};

// `streams` equal prompts of `context` tokens, then kDecodeTokens steps in which all of them decode. Those that began earlier
// have decoded meanwhile; what they still could is cancelled.
Measured measure(Engine& engine, std::int64_t context, std::int64_t streams) {
  int first_tokens = 0;
  std::vector<RequestId> ids;
  for (std::int64_t i = 0; i < streams; ++i) {
    Request request{.prompt = random_prompt(context, engine.config().vocabulary, context * 1000 + i)};
    const std::int64_t ahead = streams == 1 ? 0 : streams * (context / kBatchedTokens + 2);
    request.sampling = {.temperature = 0, .max_tokens = kDecodeTokens + 1 + ahead, .ignore_eos = true};
    ids.push_back(engine.submit(std::move(request), [&](const Output& output) {
      first_tokens += output.completion_tokens == 1;
    }).id);
  }
  Measured measured;
  const auto start = Clock::now();
  while (first_tokens < streams) engine.step();
  measured.prefill_s = seconds_since(start);
  const auto decode_start = Clock::now();
  for (std::int64_t step = 0; step < kDecodeTokens; ++step) engine.step();
  measured.decode_s = seconds_since(decode_start);
  check(engine.stats().running == (streams == 1 ? 0 : streams), "every stream decoded in every measured step");
  for (const RequestId id : ids) engine.cancel(id);
  engine.step();
  return measured;
}

// The processor at its best, on the same threads: bytes read from memory and f32 multiply-adds.
nlohmann::ordered_json roofs() {
  WorkerPool workers(0);
  Buffer<float> memory(std::size_t{64} << 20, "the bandwidth roof");
  std::fill_n(memory.data(), memory.size(), 1.0f);
  double read_s = 1e9, flops = 0;
  for (int repeat = 0; repeat < 5; ++repeat) {
    auto start = Clock::now();
    read_all(workers, memory.span());
    read_s = std::min(read_s, seconds_since(start));
    start = Clock::now();
    const auto operations = static_cast<double>(multiply_add_burst(workers));
    flops = std::max(flops, operations / seconds_since(start));
  }
  return {{"roof_read_gb_per_s", memory.bytes() / read_s / 1e9}, {"roof_f32_gflop_per_s", flops / 1e9}};
}

void run(int argc, char** argv) {
  const std::string model = argv[1];
  std::vector<std::string> formats;
  std::vector<Case> cases;
  int repeats = 3;
  for (int i = 2; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--case" && i + 1 < argc) {
      const std::string text = argv[++i];
      const std::size_t x = text.find('x');
      if (x == std::string::npos) fail("--case {}: wanted CONTEXTxSTREAMS", text);
      cases.push_back({std::stoll(text.substr(0, x)), std::stoll(text.substr(x + 1))});
    } else if (word == "--repeats" && i + 1 < argc) {
      repeats = std::stoi(argv[++i]);
    } else {
      formats.push_back(word);
    }
  }
  if (formats.empty()) formats = {"k16v16", "k16v8", "k8v8"};
  if (cases.empty()) cases = {{128, 1}, {1024, 1}, {4096 - kDecodeTokens - 1, 1}, {512, 1}, {512, 8}};
  fmt::print("{}\n", roofs().dump());
  std::vector<std::unique_ptr<Engine>> engines;
  for (const std::string& format : formats) {
    engines.push_back(std::make_unique<Engine>(load_model(find_model(model), {}), nullptr, model,
                                               EngineOptions{.kv_cache_dtype = format, .kv_cache_memory_bytes = 512 << 20,
                                                             .max_num_seqs = 8, .max_num_batched_tokens = kBatchedTokens,
                                                             .enable_prefix_caching = false}));
  }
  for (const auto& [context, streams] : cases) {
    std::vector<std::vector<Measured>> found(formats.size());
    for (int repeat = 0; repeat <= repeats; ++repeat) {  // interleaved; the first is a shorter warm-up
      for (std::size_t i = 0; i < formats.size(); ++i) {
        const Measured measured = measure(*engines[i], repeat > 0 ? context : std::min<std::int64_t>(context, 1024), streams);
        if (repeat > 0) found[i].push_back(measured);
      }
    }
    for (std::size_t i = 0; i < formats.size(); ++i) {
      const auto median = [&](auto field) {
        std::vector<double> values;
        for (const Measured& m : found[i]) values.push_back(m.*field);
        std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
        return values[values.size() / 2];
      };
      const Attestation& a = engines[i]->attestation();
      const double step_s = median(&Measured::decode_s) / kDecodeTokens;
      const double step_bytes = static_cast<double>(a.weight_bytes + streams * (context + kDecodeTokens / 2) * a.bytes_per_token);
      fmt::print("{}\n", nlohmann::ordered_json{{"model", model}, {"kv_cache", short_name(a.format)}, {"context", context},
                                                {"streams", streams}, {"threads", a.threads}, {"cpu_target", a.cpu_target},
                                                {"decode_tokens_per_s", streams / step_s},
                                                {"decode_gb_per_s", step_bytes / step_s / 1e9},
                                                {"prefill_tokens_per_s", streams * context / median(&Measured::prefill_s)}}
                             .dump());
      std::fflush(stdout);
    }
  }
}

}  // namespace
}  // namespace keel

int main(int argc, char** argv) {
  if (argc < 2) {
    fmt::print(stderr, "usage: engine_bench MODEL [FORMAT...]\n");
    return 2;
  }
  try {
    keel::run(argc, argv);
  } catch (const std::exception& error) {
    fmt::print(stderr, "engine_bench: {}\n", error.what());
    return 1;
  }
}
