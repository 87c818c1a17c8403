#include "kernels/sample/sample_cuda.h"

#include <thread>

#include "engine/sampler.h"
#include "kernels/cuda_test.h"

namespace keel::cuda {
namespace {

using SampleCuda = CudaKernel;

std::vector<std::int32_t> sampled(const std::vector<float>& logits, std::int64_t vocabulary, const std::vector<RowSampling>& rows) {
  const auto logits_there = on_device(logits);
  const auto rows_there = on_device(rows);
  auto tokens_there = on_device(std::vector<std::int32_t>(rows.size(), -7));
  const auto count = static_cast<std::int64_t>(rows.size());
  const Stream stream;
  sample(stream, {.logits = logits_there.data(),
                  .rows = count,
                  .vocabulary = vocabulary,
                  .rows_sampling = rows_there.data(),
                  .tokens = tokens_there.data()});
  stream.synchronize();
  return on_host(tokens_there);
}

TokenId cpu_token(std::span<const float> logits, const RowSampling& row) {
  const SamplingParams params{.temperature = row.temperature, .top_k = row.top_k, .top_p = row.top_p, .min_p = row.min_p};
  const std::vector<TokenId> tokens(1 + row.draw);
  return keel::sample({.logits = logits, .params = params, .tokens = tokens, .prompt_tokens = 1, .forbidden = {}, .seed = row.seed}).token;
}

// Every row of `logits` with every setting, against the CPU's sampler.
void expect_cpu_tokens(const std::vector<float>& logits, std::int64_t vocabulary, const std::vector<RowSampling>& rows) {
  const auto found = sampled(logits, vocabulary, rows);
  std::vector<TokenId> wanted(rows.size());
  std::vector<std::thread> threads;
  for (std::size_t first = 0; first < 8; ++first) {
    threads.emplace_back([&, first] {
      for (std::size_t i = first; i < rows.size(); i += 8) {
        wanted[i] = cpu_token(std::span(logits).subspan(i * vocabulary, vocabulary), rows[i]);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (std::size_t i = 0; i < rows.size(); ++i) {
    EXPECT_EQ(found[i], wanted[i]) << "row " << i << " temperature " << rows[i].temperature << " top_k " << rows[i].top_k << " top_p "
                                   << rows[i].top_p << " min_p " << rows[i].min_p;
  }
}

RowSampling greedy() { return {.temperature = 0, .top_p = 1, .min_p = 0, .top_k = 0, .seed = 0, .draw = 0}; }

const RowSampling kSettings[] = {
    {.temperature = 1, .top_p = 1, .min_p = 0, .top_k = 0},
    {.temperature = 0.6, .top_p = 0.95, .min_p = 0, .top_k = 20},
    {.temperature = 0.7, .top_p = 0.8, .min_p = 0, .top_k = 0},
    {.temperature = 1, .top_p = 0.99, .min_p = 0, .top_k = 0},
    {.temperature = 2, .top_p = 1, .min_p = 0, .top_k = 1000},
    {.temperature = 1, .top_p = 1, .min_p = 0.05, .top_k = 0},
    {.temperature = 1.3, .top_p = 0.9, .min_p = 0.01, .top_k = 200},
    {.temperature = 0.01, .top_p = 0.5, .min_p = 0, .top_k = 3},
    {.temperature = 5, .top_p = 0.3, .min_p = 0, .top_k = 50000},
    {.temperature = 1, .top_p = 1e-9, .min_p = 1, .top_k = 1},
    {.temperature = 0, .top_p = 1, .min_p = 0, .top_k = 0},
};

std::vector<RowSampling> settings_for(std::size_t count) {
  std::vector<RowSampling> rows;
  for (std::size_t i = 0; i < count; ++i) {
    rows.push_back(kSettings[i % std::size(kSettings)]);
    rows.back().seed = random_u64(17, i);
    rows.back().draw = random_u64(18, i) % 100;
  }
  return rows;
}

TEST_F(SampleCuda, GreedyTakesTheLargestAndTheSmallerIdOfATie) {
  for (const std::int64_t vocabulary : {1, 7, 32, 33, 1000, 32001, 151936}) {
    constexpr std::int64_t kRows = 40;
    std::vector<float> logits(kRows * vocabulary);
    for (std::size_t i = 0; i < logits.size(); ++i) logits[i] = std::round(random_normal(1, i) * 2);  // many ties
    expect_cpu_tokens(logits, vocabulary, std::vector<RowSampling>(kRows, greedy()));
  }
}

TEST_F(SampleCuda, PassesOverNaNAndSaysSoWhenNoLogitIsFinite) {
  constexpr std::int64_t kVocabulary = 5000;
  const float nan = std::nanf(""), infinity = std::numeric_limits<float>::infinity();
  std::vector<float> logits;
  std::vector<RowSampling> rows;
  for (const double temperature : {0.0, 1.0}) {
    const auto add = [&](auto change) {
      std::vector<float> row(kVocabulary);
      for (std::int64_t i = 0; i < kVocabulary; ++i) row[i] = random_normal(2, i);
      change(row);
      logits.insert(logits.end(), row.begin(), row.end());
      rows.push_back({.temperature = temperature, .top_p = 0.9, .min_p = 0, .top_k = rows.size() % 2 == 0 ? 40 : 0, .seed = rows.size(), .draw = 1});
    };
    add([&](auto& row) { row[0] = nan, row[4321] = -nan; });
    add([&](auto& row) { std::fill(row.begin(), row.end(), nan); });
    add([&](auto& row) { std::fill(row.begin(), row.end(), -infinity); });
    add([&](auto& row) { row[77] = infinity; });
    add([&](auto& row) { std::fill(row.begin(), row.end(), -infinity), row[4999] = -3; });
    add([&](auto& row) { std::fill(row.begin(), row.end(), -0.0f), row[4000] = 0; });
    add([&](auto& row) { row[3] = -nan, row[9] = -infinity; });
  }
  expect_cpu_tokens(logits, kVocabulary, rows);
}

TEST_F(SampleCuda, DrawsTheCpusTokensFromRandomRows) {
  constexpr std::int64_t kVocabulary = 151936, kRows = 20 * std::size(kSettings);
  std::vector<float> logits(kRows * kVocabulary);
  std::vector<std::thread> threads;
  for (std::int64_t first = 0; first < 8; ++first) {
    threads.emplace_back([&, first] {
      for (std::int64_t row = first; row < kRows; row += 8) {
        const auto scale = static_cast<float>(0.5 + 4 * random_unit(3, row));
        for (std::int64_t i = row * kVocabulary; i < (row + 1) * kVocabulary; ++i) {
          // Sum of four uniforms: near enough to a normal, and quick.
          const std::uint64_t raw = random_u64(4, i);
          float sum = -2;
          for (int k = 0; k < 4; ++k) sum += static_cast<float>(raw >> (16 * k) & 0xffff) * 0x1p-16f;
          logits[i] = scale * sum * 1.7f + (row % 3 == 0 ? static_cast<float>(random_u64(5, i) % 5000 == 0) * 8 : 0);
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  expect_cpu_tokens(logits, kVocabulary, settings_for(kRows));
}

TEST_F(SampleCuda, DrawsTheCpusTokensWhereLogitsTie) {
  for (const std::int64_t vocabulary : {6, 100, 32000, 151936}) {
    constexpr std::int64_t kRows = 3 * std::size(kSettings);
    std::vector<float> logits(kRows * vocabulary);
    for (std::int64_t row = 0; row < kRows; ++row) {
      for (std::int64_t i = 0; i < vocabulary; ++i) {
        const float x = random_normal(6, row * vocabulary + i);
        // All equal; a few values; bfloat16's grid.
        logits[row * vocabulary + i] = row % 3 == 0 ? 1.5f : row % 3 == 1 ? std::round(x) : to_float(to_bf16(4 * x));
      }
    }
    expect_cpu_tokens(logits, vocabulary, settings_for(kRows));
  }
}

TEST_F(SampleCuda, FindsThresholdsAmongLogitsThatDifferByTheirLastBits) {
  constexpr std::int64_t kVocabulary = 20000, kRows = 4 * std::size(kSettings);
  std::vector<float> logits(kRows * kVocabulary);
  for (std::size_t i = 0; i < logits.size(); ++i) {
    const auto row = static_cast<std::int64_t>(i) / kVocabulary;
    const auto steps = static_cast<float>(random_u64(7, i) % 3000);
    logits[i] = row % 2 == 0 ? 16 + steps * 0x1p-19f : steps * 1e-3f * (i % 2 == 0 ? 1 : -1);
  }
  expect_cpu_tokens(logits, kVocabulary, settings_for(kRows));
}

TEST_F(SampleCuda, GivesEqualTokensInEveryReplay) {
  constexpr std::int64_t kVocabulary = 151936, kRows = 33;
  std::vector<float> logits(kRows * kVocabulary);
  for (std::size_t i = 0; i < logits.size(); ++i) logits[i] = 3 * static_cast<float>(random_unit(8, i));
  const auto logits_there = on_device(logits);
  const auto rows_there = on_device(settings_for(kRows));
  auto tokens_there = on_device(std::vector<std::int32_t>(kRows, -7));
  const Stream stream;
  const StepGraph graph(stream, [&] {
    sample(stream, {.logits = logits_there.data(), .rows = kRows, .vocabulary = kVocabulary, .rows_sampling = rows_there.data(), .tokens = tokens_there.data()});
  });
  std::vector<std::int32_t> first;
  for (int replay = 0; replay < 100; ++replay) {
    check(cudaMemsetAsync(tokens_there.data(), 0xee, tokens_there.bytes(), stream), "poison");
    graph.launch(stream);
    stream.synchronize();
    const auto tokens = on_host(tokens_there);
    if (replay == 0) first = tokens;
    ASSERT_EQ(tokens, first) << "replay " << replay;
  }
}

}  // namespace
}  // namespace keel::cuda
