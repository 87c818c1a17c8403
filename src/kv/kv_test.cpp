#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/bytes.h"
#include "base/error.h"
#include "base/random.h"
#include "kv/pool.h"

namespace keel {
namespace {

constexpr KvGeometry kSmall{.layers = 2, .kv_heads = 2, .head_dim = 16, .page_size = 16};
constexpr KvFormat kK16V8{DType::f16, DType::e4m3};

KvPool small_pool(std::int64_t pages) {
  const KvLayout layout(kK16V8, kSmall);
  return KvPool(layout, KvScales::unit(kSmall), pages * layout.page_bytes());
}

std::string error_of(auto action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(KvFormat, ReadsEverySpelling) {
  EXPECT_EQ(parse_kv_format("k16v8", DType::bf16), (KvFormat{DType::bf16, DType::e4m3}));
  EXPECT_EQ(parse_kv_format("k16v8", DType::f32), (KvFormat{DType::f16, DType::e4m3}));
  EXPECT_EQ(parse_kv_format("auto", DType::f16), (KvFormat{DType::f16, DType::f16}));
  EXPECT_EQ(parse_kv_format("fp8", DType::f16), (KvFormat{DType::e4m3, DType::e4m3}));
  EXPECT_EQ(parse_kv_format("k=bf16,v=fp8_e4m3", DType::f16), (KvFormat{DType::bf16, DType::e4m3}));
  EXPECT_EQ(parse_kv_format("v=u4", DType::bf16), (KvFormat{DType::bf16, DType::u4}));
  EXPECT_EQ(parse_kv_format("f32", DType::f16), (KvFormat{DType::f32, DType::f32}));
  EXPECT_EQ(short_name(parse_kv_format("k16v4", DType::f16)), "k16v4");
  EXPECT_EQ(short_name({DType::f16, DType::bf16}), "k=f16,v=bf16");
}

TEST(KvFormat, WritesNamesThatItReads) {
  constexpr DType kKeys[] = {DType::f32, DType::f16, DType::bf16, DType::e4m3};
  constexpr DType kValues[] = {DType::f32, DType::f16, DType::bf16, DType::e4m3, DType::u4};
  for (const DType key : kKeys) {
    for (const DType value : kValues) {
      const KvFormat format{key, value};
      EXPECT_EQ(parse_kv_format(to_string(format), DType::f16), format) << to_string(format);
      EXPECT_EQ(parse_kv_format(short_name(format), key), format) << short_name(format);
    }
  }
}

TEST(KvFormat, RefusesWhatNoKernelReads) {
  EXPECT_NE(error_of([] { parse_kv_format("u4", DType::f16); }).find("u4 keys"), std::string::npos);
  EXPECT_NE(error_of([] { parse_kv_format("k=q9,v=f16", DType::f16); }).find("'q9'"), std::string::npos);
  EXPECT_NE(error_of([] { parse_kv_format("k4v16", DType::f16); }).find("'k4v16'"), std::string::npos);
}

TEST(KvLayout, ReproducesThePublishedByteArithmetic) {
  std::ifstream in(std::string(KEEL_SHARED_DIR) + "/vectors/bytes.json");
  if (!in) GTEST_SKIP() << "the shared test vectors are absent";
  const auto vectors = nlohmann::json::parse(in);
  const std::vector<std::string> formats = {"k16v16", "k16v8", "k8v8"};
  for (const auto& row : vectors["bytes_per_token"]) {
    const KvGeometry geometry{row["layers"], row["kv_heads"], row["head_dim"], 16};
    for (const auto& format : formats) {
      EXPECT_EQ(KvLayout(parse_kv_format(format, DType::f16), geometry).bytes_per_token(), row[format].get<std::int64_t>())
          << row["model"] << " " << format;
    }
  }
  const KvGeometry qwen3{36, 8, 128, 16};
  for (const auto& row : vectors["pool_qwen3_8b_page16"]) {
    const std::int64_t bytes = row["pool_gib"].get<std::int64_t>() << 30;
    for (const auto& format : {"k16v16", "k16v8"}) {
      const KvLayout layout(parse_kv_format(format, DType::f16), qwen3);
      EXPECT_EQ(layout.pages_in(bytes), row[format][0].get<std::int64_t>());
      EXPECT_EQ(layout.pages_in(bytes) * 16, row[format][1].get<std::int64_t>());
      if (row.contains("both_bytes")) {
        EXPECT_EQ(layout.pages_in(bytes) * layout.page_bytes(), row["both_bytes"].get<std::int64_t>());
      }
    }
  }
}

TEST(KvLayout, CountsFourBitValuesWithTheirScaleAndZero) {
  const KvLayout layout({DType::f16, DType::u4}, {1, 8, 128, 16});
  EXPECT_EQ(layout.bytes_per_token(), 2592);
}

TEST(KvLayout, RefusesPageSizesTheKernelsDoNotTake) {
  for (std::int64_t size : {0, 1, 8, 24, 512, -16}) {
    EXPECT_NE(error_of([&] { KvLayout(kK16V8, {2, 2, 16, size}); }).find("block size"), std::string::npos) << size;
  }
}

TEST(Pool, AllocatesExactlyThePagesThatFit) {
  const KvLayout layout(kK16V8, kSmall);
  KvPool pool(layout, KvScales::unit(kSmall), 3 * layout.page_bytes() + layout.page_bytes() - 1);
  EXPECT_EQ(pool.pages(), 3);
  EXPECT_EQ(pool.physical_bytes(), 3 * layout.page_bytes());
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(pool.allocate());
  EXPECT_FALSE(pool.allocate());
  EXPECT_NE(error_of([&] { KvPool(layout, KvScales::unit(kSmall), layout.page_bytes() - 1); }).find("too small for one page"),
            std::string::npos);
}

TEST(Pool, KeepsLayersAndSidesApart) {
  KvPool pool = small_pool(2);
  const KvLayout& layout = pool.layout();
  EXPECT_EQ(pool.layer(1).keys - pool.layer(0).keys, 2 * layout.key_page_bytes());
  EXPECT_EQ(pool.layer(1).values - pool.layer(0).values, 2 * layout.value_page_bytes());
  const std::byte* keys_end = pool.layer(1).key_page(1) + layout.key_page_bytes();
  const std::byte* values_end = pool.layer(1).value_page(1) + layout.value_page_bytes();
  EXPECT_TRUE(keys_end <= pool.layer(0).values || values_end <= pool.layer(0).keys);
}

TEST(Pool, FreesPagesOnlyWhenTheLastOwnerLetsGo) {
  KvPool pool = small_pool(1);
  const PageId page = *pool.allocate();
  pool.retain(page);
  pool.release(page);
  EXPECT_FALSE(pool.allocate());
  pool.release(page);
  EXPECT_TRUE(pool.allocate());
}

TEST(Pool, FindsPublishedPagesUntilTheyAreTakenForOthers) {
  KvPool pool = small_pool(2);
  const Digest first = sha256("first"), second = sha256("second");
  const PageId a = *pool.allocate(), b = *pool.allocate();
  pool.publish(a, first);
  pool.publish(b, second);
  pool.release(a);
  pool.release(b);
  EXPECT_EQ(pool.cached(), 2);
  EXPECT_EQ(pool.find(second), b);
  EXPECT_EQ(pool.allocate(), a);  // the least recently released, and the only one nobody holds
  EXPECT_FALSE(pool.find(first));
  EXPECT_FALSE(pool.allocate());
  pool.release(b);
  pool.clear_cached();
  EXPECT_FALSE(pool.find(second));
  EXPECT_EQ(pool.available(), 1);
}

TEST(Pool, StaysConsistentUnderRandomUse) {
  KvPool pool = small_pool(20);
  std::vector<PageId> held;
  std::uint64_t draw = 0;
  for (int i = 0; i < 20'000; ++i) {
    const std::uint64_t choice = random_u64(7, draw++) % 4;
    const std::uint64_t which = random_u64(7, draw++);
    if (choice == 0) {
      if (auto page = pool.allocate()) held.push_back(*page);
    } else if (choice == 1 && !held.empty()) {
      pool.retain(held[which % held.size()]);
      held.push_back(held[which % held.size()]);
    } else if (choice == 2) {
      const Digest hash = sha256(std::to_string(which % 40));
      if (auto page = pool.find(hash)) held.push_back(*page);
      else if (!held.empty()) pool.publish(held[which % held.size()], hash);
    } else if (!held.empty()) {
      std::swap(held[which % held.size()], held.back());
      pool.release(held.back());
      held.pop_back();
    }
    std::vector<PageId> distinct = held;
    std::sort(distinct.begin(), distinct.end());
    distinct.erase(std::unique(distinct.begin(), distinct.end()), distinct.end());
    ASSERT_EQ(pool.held(), static_cast<std::int64_t>(distinct.size()));
  }
}

TEST(PrefixHash, DependsOnTokensPredecessorFormatScalesAndSalt) {
  const KvScales unit = KvScales::unit(kSmall);
  KvScales other = unit;
  other.values[1] = 0.5f;
  const KvLayout layout(kK16V8, kSmall);
  const Digest root = prefix_root(layout, unit, "");
  EXPECT_NE(root, prefix_root(KvLayout({DType::f16, DType::f16}, kSmall), unit, ""));
  EXPECT_NE(root, prefix_root(layout, other, ""));
  EXPECT_NE(root, prefix_root(layout, unit, "salt"));
  const std::vector<std::int32_t> tokens = {1, 2, 3}, swapped = {2, 1, 3};
  EXPECT_NE(prefix_hash(root, tokens), prefix_hash(root, swapped));
  EXPECT_NE(prefix_hash(root, tokens), prefix_hash(prefix_hash(root, tokens), tokens));
  EXPECT_EQ(prefix_hash(root, tokens), prefix_hash(prefix_root(layout, unit, ""), tokens));
}

TEST(Calibration, ReplacesNothingButAPlainFile) {
  const CalibrationRecord record{"tiny", "prose.txt", 1000, kSmall, {1, 2, 3, 4}, {448, 224, 0, 112}};
  const auto folder = std::filesystem::temp_directory_path() / ("keel_calibration_target_test_" + std::to_string(getpid()));
  std::filesystem::create_directories(folder / "taken");
  EXPECT_NE(error_of([&] { write_calibration(folder / "taken", record); }).find("wanted a new file"), std::string::npos);
  EXPECT_NE(error_of([&] { write_calibration(folder / "no" / "x", record); }).find("no folder"), std::string::npos);
  std::filesystem::create_symlink(folder / "else", folder / "link");
  EXPECT_NE(error_of([&] { write_calibration(folder / "link", record); }).find("wanted a new file"), std::string::npos);
  EXPECT_NE(error_of([&] { read_calibration(folder, kSmall, kK16V8); }).find("no such"), std::string::npos);
  std::ofstream(folder / "wrong") << "{\"format\": 5, \"version\": []}";
  EXPECT_NE(error_of([&] { read_calibration(folder / "wrong", kSmall, kK16V8); }).find("keel-kv-calibration"), std::string::npos);
  std::filesystem::remove_all(folder);
}

TEST(Calibration, TakesTheLargestOfEachHeadAndRefusesWhatIsNotFinite) {
  const KvGeometry geometry{2, 2, 2};
  CalibrationRecord record{.geometry = geometry, .key_maxima = std::vector<float>(4), .value_maxima = std::vector<float>(4)};
  const float k[] = {1, -3, 0, 0.5f, 2, 1, -7, 6}, v[] = {0, 0, 9, 0, 0, -1, 0, 0};  // two tokens, two heads of two
  record.observe(1, 2, k, v);
  record.observe(1, 1, v, k);
  EXPECT_EQ(record.key_maxima, (std::vector<float>{0, 0, 3, 9}));
  EXPECT_EQ(record.value_maxima, (std::vector<float>{0, 0, 3, 9}));
  for (const float bad : {INFINITY, -INFINITY, NAN}) {
    const float broken[] = {1, 2, 3, bad};
    EXPECT_NE(error_of([&] { record.observe(1, 1, broken, v); }).find("layer 1, KV head 1: a key is"), std::string::npos) << bad;
    EXPECT_NE(error_of([&] { record.observe(0, 1, v, broken); }).find("layer 0, KV head 1: a value is"), std::string::npos) << bad;
  }
}

TEST(KvFormat, RefusesASideNamedTwice) {
  EXPECT_NE(error_of([] { parse_kv_format("k=f16,v=fp8,v=u4", DType::f16); }).find("names v twice"), std::string::npos);
}

TEST(Calibration, RoundTripsAndRefusesPlaceholders) {
  const auto file = std::filesystem::temp_directory_path() / fmt::format("keel_calibration_test_{}.json", getpid());
  CalibrationRecord record{"tiny", "prose.txt", 1000, kSmall, {1, 2, 3, 4}, {448, 224, 0, 112}};
  write_calibration(file, record);
  const KvScales scales = read_calibration(file, kSmall, kK16V8);
  EXPECT_EQ(scales.keys, (std::vector<float>{1, 1, 1, 1}));  // 16-bit keys are stored unscaled
  EXPECT_EQ(scales.values, (std::vector<float>{1, 0.5f, 1, 0.25f}));
  EXPECT_NE(scales.description().find("1000 tokens of prose.txt"), std::string::npos);

  record.value_maxima = {448, 448, 448, 448};
  write_calibration(file, record);
  EXPECT_NE(error_of([&] { read_calibration(file, kSmall, kK16V8); }).find("placeholder"), std::string::npos);
  EXPECT_NE(error_of([&] { read_calibration(file, {3, 2, 16, 16}, kK16V8); }).find("the model has 3"), std::string::npos);
  std::ofstream(file) << "{\"format\":1}";
  EXPECT_NE(error_of([&] { read_calibration(file, kSmall, kK16V8); }).find("wanted \"format\""), std::string::npos);
  std::ofstream(file) << "{\"format\":1";
  EXPECT_NE(error_of([&] { read_calibration(file, kSmall, kK16V8); }).find("not a JSON object"), std::string::npos);
  std::filesystem::remove(file);
}

TEST(Bytes, ReadsUnitsAndRefusesTheRest) {
  EXPECT_EQ(parse_bytes("2GiB"), std::int64_t{2} << 30);
  EXPECT_EQ(parse_bytes("1.5g"), std::int64_t{3} << 29);
  EXPECT_EQ(parse_bytes("10MB"), 10'000'000);
  EXPECT_EQ(parse_bytes("4096"), 4096);
  for (const char* bad : {"", "-1", "x", "1QiB", "nan", "1e30TiB", "0x10"}) EXPECT_FALSE(error_of([&] { parse_bytes(bad); }).empty()) << bad;
}

}  // namespace
}  // namespace keel
