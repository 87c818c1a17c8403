#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <vector>

#include "base/dtype.h"
#include "base/log.h"
#include "base/random.h"
#include "base/worker_pool.h"

namespace keel {
namespace {

// Nearest element of a grid by brute force, ties to the even code: shares nothing with the conversions under test.
template <class Small>
Small nearest(float value, int codes, int largest_code, int sign_bit) {
  const double magnitude = std::fabs(static_cast<double>(value));
  int best = 0;
  double best_distance = INFINITY;
  for (int code = 0; code <= largest_code && code < codes; ++code) {
    const double distance = std::fabs(to_float(Small(code)) - magnitude);
    if (distance < best_distance || (distance == best_distance && code % 2 == 0)) best = code, best_distance = distance;
  }
  return Small(best | (std::signbit(value) ? 1 << sign_bit : 0));
}

TEST(E4m3, RoundTripsEveryFiniteCode) {
  for (int code = 0; code < 256; ++code) {
    if ((code & 0x7f) == 0x7f) {
      EXPECT_TRUE(std::isnan(to_float(E4m3(code))));
    } else {
      EXPECT_EQ(static_cast<int>(to_e4m3(to_float(E4m3(code)))), code);
    }
  }
  EXPECT_EQ(to_float(E4m3(0x7e)), 448);
  EXPECT_EQ(to_float(E4m3(0x01)), 0x1p-9f);
}

TEST(E4m3, RoundsToNearestEvenAndSaturates) {
  const std::pair<float, float> cases[] = {{398, 384}, {402, 416}, {400, 384}, {432, 448}, {449, 448}, {0x1p-10f, 0},
                                           {1e30f, 448}, {INFINITY, 448}, {-INFINITY, -448}, {0x1.8p-9f, 0x1p-8f}};
  for (auto [value, rounded] : cases) EXPECT_EQ(to_float(to_e4m3(value)), rounded) << value;
  EXPECT_EQ(static_cast<int>(to_e4m3(-0.0f)), 0x80);
  EXPECT_EQ(static_cast<int>(to_e4m3(NAN)) & 0x7f, 0x7f);
}

TEST(E4m3, AgreesWithBruteForce) {
  for (int i = 0; i < 20'000; ++i) {
    const double unit = random_unit(1, 2 * i) * 2 - 1;
    const float value = static_cast<float>(std::ldexp(unit, static_cast<int>(random_u64(1, 2 * i + 1) % 24) - 13));
    EXPECT_EQ(to_e4m3(value), nearest<E4m3>(value, 128, 0x7e, 7)) << value;
  }
}

TEST(Half, RoundTripsEveryCodeAndRoundsToNearestEven) {
  for (int code = 0; code < 65536; ++code) {
    const float value = to_float(Half(code));
    if (std::isnan(value)) continue;
    EXPECT_EQ(static_cast<int>(to_half(value)), code);
  }
  const std::pair<float, float> cases[] = {{65519, 65504}, {2049, 2048}, {2051, 2052}, {0x1p-25f, 0}, {0x1.8p-24f, 0x1p-23f},
                                           {0x1.ffcp-15f, 0x1p-14f}};
  for (auto [value, rounded] : cases) EXPECT_EQ(to_float(to_half(value)), rounded) << value;
  EXPECT_TRUE(std::isinf(to_float(to_half(65520))));
  EXPECT_TRUE(std::isnan(to_float(to_half(NAN))));
  for (int i = 0; i < 300; ++i) {
    const float value = static_cast<float>(std::ldexp(random_unit(2, i) * 2 - 1, i % 40 - 25));
    EXPECT_EQ(to_half(value), nearest<Half>(value, 32768, 0x7bff, 15)) << value;
  }
}

TEST(Bf16, RoundsToNearestEven) {
  EXPECT_EQ(to_float(to_bf16(1.0f + 0x1p-8f)), 1.0f);
  EXPECT_EQ(to_float(to_bf16(1.0f + 0x1.8p-7f)), 1.0f + 0x1p-6f);
  EXPECT_TRUE(std::isnan(to_float(to_bf16(std::bit_cast<float>(0x7f800001u)))));
  EXPECT_TRUE(std::isinf(to_float(to_bf16(3.4e38f))));
}

TEST(WorkerPool, RunsEveryTaskOnceForAnyThreadCount) {
  for (int threads : {1, 2, 3, 7}) {
    WorkerPool pool(threads);
    for (int round = 0; round < 200; ++round) {
      std::vector<std::atomic<int>> seen(round);
      pool.parallel_for(round, [&](std::int64_t task, int worker) {
        ASSERT_LT(worker, threads);
        ++seen[task];
      });
      for (auto& count : seen) ASSERT_EQ(count, 1);
    }
  }
}

TEST(WorkerPool, ThrowsOnWhatATaskThrewOnceNoneRuns) {
  for (int threads : {1, 2, 3}) {
    WorkerPool pool(threads);
    for (std::int64_t bad = 0; bad < 64; ++bad) {
      std::atomic<int> ended = 0;
      const auto body = [&](std::int64_t task, int) {
        if (task == bad) throw std::bad_alloc();
        ++ended;
      };
      EXPECT_THROW(pool.parallel_for(64, body), std::bad_alloc);
      EXPECT_EQ(ended, threads == 1 ? bad : 63);
      pool.parallel_for(bad, body);  // without the bad task: the failure is not remembered
    }
  }
}

TEST(Log, IsOneLineThatATerminalTakesForNothingElse) {
  testing::internal::CaptureStderr();
  log_warning("{}: wanted a number, found '{}'", "a.csv", "5\x1b[2J\n\xc2\x9b" "1m\x7f\xff\u00e9");
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "keel: warning: a.csv: wanted a number, found '5 [2J  1m \ufffd\u00e9'\n");
}

}  // namespace
}  // namespace keel
