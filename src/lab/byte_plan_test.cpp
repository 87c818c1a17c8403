#include "lab/byte_plan.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/option_error.h"
#include "base/worker_pool.h"
#include "engine/scheduler.h"
#include "kv/pool.h"
#include "lab/byte_plan_report.h"
#include "lab/xml_problem.h"
#include "model/executor.h"

namespace keel {
namespace {

using Json = nlohmann::json;

Json vectors(const char* file) {
  const std::filesystem::path path = std::filesystem::path(KEEL_SHARED_DIR) / "vectors" / file;
  return std::filesystem::exists(path) ? Json::parse(std::ifstream(path)) : Json();
}

ModelConfig qwen3_8b() { return read_hf_config(std::filesystem::path(KEEL_SOURCE_DIR) / "bench/geometries/qwen3-8b/config.json"); }

BytePlan plan_of(const ModelConfig& config, PlanOptions options) { return make_byte_plan("model", config, std::move(options)); }

const FormatPlan& row_of(const BytePlan& plan, const char* format) {
  for (const FormatPlan& row : plan.formats) {
    if (short_name(row.format) == format) return row;
  }
  throw std::runtime_error(format);
}

std::string refusal(const std::function<void()>& action) {
  try {
    action();
  } catch (const OptionError& error) {
    return error.what();
  }
  return "";
}

TEST(BytePlan, BytesATokenAreThoseOfTheVectors) {
  const Json v = vectors("bytes.json");
  if (v.is_null()) GTEST_SKIP() << "no shared vectors here";
  for (const Json& model : v["bytes_per_token"]) {
    const KvGeometry geometry{model["layers"], model["kv_heads"], model["head_dim"]};
    for (const char* format : {"k16v16", "k16v8", "k8v8"}) {
      EXPECT_EQ(KvLayout(parse_kv_format(format, DType::f16), geometry).bytes_per_token(), model[format]) << model["model"] << format;
    }
  }
}

TEST(BytePlan, PoolsAndResidentsAreThoseOfTheVectors) {
  const Json v = vectors("bytes.json");
  if (v.is_null()) GTEST_SKIP() << "no shared vectors here";
  for (const Json& pool : v["pool_qwen3_8b_page16"]) {
    const BytePlan plan = plan_of(qwen3_8b(), {.pool_bytes = pool["pool_gib"].get<std::int64_t>() << 30});
    for (const char* format : {"k16v16", "k16v8"}) {
      EXPECT_EQ(row_of(plan, format).pool->pages, pool[format][0]);
      EXPECT_EQ(row_of(plan, format).pool->slots, pool[format][1]);
      if (pool.contains("both_bytes")) {
        EXPECT_EQ(row_of(plan, format).pool->allocated_bytes, pool["both_bytes"]);
        EXPECT_EQ(row_of(plan, format).pool->unused_bytes, pool["unused"]);
        EXPECT_EQ(row_of(plan, format).residents, v["residents_8320_slots_each"][format]);
      }
    }
  }
}

TEST(BytePlan, FortyGibHoldTheSlotsThatTheEngineReportedOnTheGpu) {
  const BytePlan plan = plan_of(qwen3_8b(), {.pool_bytes = std::int64_t{40} << 30});
  EXPECT_EQ(row_of(plan, "k16v16").pool->slots, 291264);
  EXPECT_EQ(row_of(plan, "k16v8").pool->slots, 388352);
  EXPECT_EQ(row_of(plan, "k8v8").pool->slots, 582528);
  for (const char* format : {"k16v16", "k16v8", "k8v8"}) EXPECT_EQ(row_of(plan, format).pool->allocated_bytes, 42948624384);
}

TEST(BytePlan, ResidentsAreAsManyAsTheSchedulerRunsTogether) {
  const PageMemory none{.allocate = [](std::size_t, const char*) -> void* { return nullptr; },
                        .release = [](void*, std::size_t) {},
                        .copy = [](void*, const void*, std::size_t) {}};
  for (const auto& [context, output] : std::vector<std::pair<std::int64_t, std::int64_t>>{{8192, 128}, {8319, 1}, {8192, 1}, {8192, 2}, {8177, 16}, {1024, 241}}) {
    const BytePlan plan = plan_of(qwen3_8b(), {.pool_bytes = std::int64_t{40} << 30, .context = context, .output = output});
    for (const FormatPlan& row : plan.formats) {
      const KvLayout layout(row.format, {36, 8, 128, 16});
      KvPool pool(layout, KvScales::unit(layout.geometry()), plan.options.pool_bytes, none);
      Scheduler scheduler(pool, {.max_num_seqs = 1024, .max_num_batched_tokens = 1 << 24, .max_model_len = 40'960, .chunked_prefill = true, .prefix_caching = false});
      const auto request = std::make_shared<Request>(Request{.prompt = std::vector<TokenId>(static_cast<std::size_t>(context), 1)});
      request->sampling.max_tokens = output;
      for (std::uint64_t i = 0; i < static_cast<std::uint64_t>(row.residents) + 1; ++i) {
        scheduler.add(std::make_unique<Sequence>(Sequence{.request_id = i, .choice = 0, .request = request, .sink = {}, .seed = 0, .arrival = i, .tokens = request->prompt,
                                                          .prompt_tokens = context, .prefix_root = {}, .stream = TokenStream(nullptr, {}, false, false)}));
      }
      scheduler.next();
      EXPECT_EQ(scheduler.running(), row.residents) << short_name(row.format) << " " << context << " + " << output;
    }
  }
}

TEST(BytePlan, AnAllocatedPoolHasThePlannedPagesAndBytes) {
  const KvGeometry geometry{3, 2, 48};
  for (const KvFormat& format : plan_formats(DType::bf16)) {
    const KvLayout layout(format, geometry);
    for (const std::int64_t bytes : {layout.page_bytes(), 7 * layout.page_bytes() - 1, std::int64_t{1} << 20}) {
      const PoolPlan plan = plan_pool(layout, bytes);
      const KvPool pool(layout, KvScales::unit(geometry), bytes);
      EXPECT_EQ(plan.pages, pool.pages());
      EXPECT_EQ(plan.slots, pool.slots());
      EXPECT_EQ(plan.allocated_bytes, pool.physical_bytes());
      EXPECT_EQ(plan.allocated_bytes + plan.unused_bytes, bytes);
    }
  }
}

TEST(BytePlan, CudaScratchIsWhatTheDecoderHolds) {
  try {
    choose_device("cuda");
  } catch (const std::exception& why) {
    GTEST_SKIP() << why.what();
  }
  const LoadedModel model = load_model(find_model(std::string(KEEL_SOURCE_DIR) + "/models/tiny"), {});
  const ModelConfig& config = model.config;
  WorkerPool workers(0);
  for (const char* format : {"k16v16", "k16v8", "k8v8", "k16v4"}) {
    const KvLayout layout(parse_kv_format(format, config.dtype), {config.layers, config.kv_heads, config.head_dim, 16}, page_order(Device::cuda));
    const auto executor = make_executor(Device::cuda, model, layout, {.max_tokens = 300, .max_sequences = 7, .max_logit_rows = 64, .max_context = 1000}, workers);
    std::int64_t planned = 0;
    for (const NamedBytes& part : cuda_scratch(config, {.max_sequences = 7, .max_tokens = 300, .max_logit_rows = 64, .max_context = 1000}, 132)) planned += part.bytes;
    // Fewer warps of decode attention, at most 12 of 16, hold that much less.
    const std::int64_t fewer = planned - executor->scratch_bytes();
    EXPECT_GE(fewer, 0) << format;
    EXPECT_LE(fewer, 132 * 8 * (16 * 66 * 4 + 32)) << format;
  }
}

// An 8B model's layers in every type that the device holds in another way, in front of a small vocabulary.
TEST(BytePlan, CudaWeightsAreWhatTheDecoderHolds) {
  try {
    choose_device("cuda");
  } catch (const std::exception& why) {
    GTEST_SKIP() << why.what();
  }
  WorkerPool workers(0);
  for (const char* geometry : {"qwen3-8b", "qwen3-8b-awq"}) {
    for (const char* dtype : {"float16", "bfloat16", "float32"}) {
      if (std::string(geometry).ends_with("awq") && std::string(dtype) != "float16") continue;
      for (const bool tied : {false, true}) {
        Json json = Json::parse(std::ifstream(std::filesystem::path(KEEL_SOURCE_DIR) / "bench/geometries" / geometry / "config.json"));
        json["num_hidden_layers"] = 2, json["vocab_size"] = 4096, json["torch_dtype"] = dtype, json["tie_word_embeddings"] = tied;
        const std::filesystem::path file = std::filesystem::path(testing::TempDir()) / "keel_byte_plan_test" / "config.json";
        std::filesystem::create_directories(file.parent_path());
        std::ofstream(file) << json << std::flush;
        const LoadedModel model = load_model({ModelFiles::config_json, file, "two layers"}, {.format = LoadFormat::dummy});
        const KvLayout layout(parse_kv_format("k8v8", model.config.dtype), {2, 8, 128, 16}, page_order(Device::cuda));
        const auto executor = make_executor(Device::cuda, model, layout, {.max_tokens = 64, .max_sequences = 2, .max_logit_rows = 2, .max_context = 100}, workers);
        EXPECT_EQ(executor->weight_bytes(), weight_bytes(model.config).device) << geometry << " " << dtype << " " << tied;
        EXPECT_EQ(device_memory(Device::cuda).weights, executor->weight_bytes());
      }
    }
  }
}

TEST(BytePlan, LinkDemandsAreThoseOfTheVectors) {
  const Json v = vectors("bytes.json");
  if (v.is_null()) GTEST_SKIP() << "no shared vectors here";
  const Json& demand = v["link_demand_qwen25_7b_131072"];
  ModelConfig config = qwen3_8b();
  config.layers = 28, config.kv_heads = 4, config.heads = 28, config.max_positions = 1 << 20;
  const BytePlan plan = plan_of(config, {.context = 131072});
  int i = 0;
  for (const char* format : {"k16v16", "k16v8", "k8v8"}) {
    const FormatPlan& row = row_of(plan, format);
    EXPECT_DOUBLE_EQ(static_cast<double>(row.payload_bytes) / 0x1p30, demand["gib"][i]);
    EXPECT_DOUBLE_EQ(row.link_gbps[0], demand["reread_10ms_GBps"][i]);
    EXPECT_DOUBLE_EQ(row.link_gbps[1], demand["reload_1s_GBps"][i]);
    EXPECT_DOUBLE_EQ(row.link_gbps[2], demand["reload_1s_GBps"][i]);
    ++i;
  }
}

TEST(BytePlan, ARateAboveTheDeadlineIsTheLargerDemand) {
  EXPECT_DOUBLE_EQ(link_demand({"reload", "", 1, 0}, 2e9), 2);
  EXPECT_DOUBLE_EQ(link_demand({"reload", "", 1, 4}, 2e9), 8);
  EXPECT_DOUBLE_EQ(link_demand({"stream", "", 0.5, 0, 0.25, 3}, 2e9), 3);
}

TEST(BytePlan, TrafficShareAndReadsAreThoseOfTheVectors) {
  const Json v = vectors("bytes.json"), hill = vectors("hill.json");
  if (v.is_null()) GTEST_SKIP() << "no shared vectors here";
  for (const Json& one : v["traffic_share"]) {
    EXPECT_NEAR(kv_traffic_share(one["weights"], one["batch"], one["context"], one["bytes_per_token"], one["other"]), one["expected"], 5e-6);
  }
  EXPECT_EQ(cached_token_reads(hill["reads"]["generated"], hill["reads"]["context"]), hill["reads"]["expected"]);
}

TEST(BytePlan, NvmeCommandsAreThoseOfTheVectors) {
  const Json v = vectors("bytes.json");
  if (v.is_null()) GTEST_SKIP() << "no shared vectors here";
  for (const Json& one : v["io_commands_mdts_131072_chunk256"]) {
    const IoCommands io = io_commands(one["payload"], 131072);
    EXPECT_EQ(io.load_commands, one["load"]);
    EXPECT_EQ(io.store_commands, one["store"]);
  }
}

TEST(BytePlan, ATailIsRoundedUpToABlockAndAStoreWritesAHeader) {
  const IoCommands tail = io_commands(700000, 131072);
  EXPECT_EQ(tail.load_commands, 6);
  EXPECT_EQ(tail.load_bytes, 700416);
  const IoCommands llama = io_commands(33554432, 131072);
  EXPECT_EQ(llama.store_bytes, 33558528);
  EXPECT_EQ(io_commands(132120576, 1 << 20).load_commands, 126);
  EXPECT_EQ(io_commands(132120576, 2 << 20).load_commands, 63);
}

// What the records of docs/results/2026-11-29-h200-qwen3-8b say of the loaded weights: norms in f32 and 16-bit matrices both there and here.
TEST(BytePlan, WeightsOfADenseModelAreWhatARunReported) {
  EXPECT_EQ(weight_bytes(qwen3_8b()).device, 16382087168);
  EXPECT_EQ(weight_bytes(qwen3_8b()).device - weight_bytes(qwen3_8b()).step, 151936 * 4096 * 2);
}

TEST(BytePlan, PackedWeightsTakeAThirdOfDenseOnesOrLess) {
  const ModelConfig awq = read_hf_config(std::filesystem::path(KEEL_SOURCE_DIR) / "bench/geometries/qwen3-8b-awq/config.json");
  // The records' 6,099,095,552 bytes have zeros of 4 bits beside scales of 16; the device keeps both in 32.
  const std::int64_t matrices = (16382087168 - 2 * std::int64_t{151936} * 4096 * 2) / 2;
  EXPECT_NEAR(static_cast<double>(weight_bytes(awq).device - 6099095552), static_cast<double>(matrices) / 128 * 1.5, 1e6);
}

TEST(BytePlan, TheGpuLeavesThePoolWhatWeightsAndScratchDoNotTake) {
  const std::int64_t memory = std::int64_t{141} << 30;
  const BytePlan plan = plan_of(qwen3_8b(), {.gpu_memory_bytes = memory, .reserved_bytes = 1 << 30});
  const FormatPlan& row = row_of(plan, "k16v8");
  EXPECT_EQ(row.pool_bytes, static_cast<std::int64_t>(0.9 * static_cast<double>(memory)) - plan.weights.device - plan.scratch_bytes - (1 << 30));
  EXPECT_GT(row.pool->slots, row_of(plan, "k16v16").pool->slots);
  EXPECT_GT(plan.scratch_bytes, std::int64_t{320} << 20);  // the prefill workspace and the library's
}

TEST(BytePlan, AGpuTooSmallForTheWeightsIsSaidNotClamped) {
  const BytePlan plan = plan_of(qwen3_8b(), {.gpu_memory_bytes = std::int64_t{16} << 30});
  EXPECT_FALSE(plan.formats.front().pool);
  EXPECT_NE(plan.formats.front().gpu_refusal.find("weights"), std::string::npos);
  EXPECT_NE(to_table(plan).find("leave no page"), std::string::npos);
  EXPECT_TRUE(as_json(plan)["formats"][0].contains("refused"));
}

TEST(BytePlan, ARankHoldsItsShareAndNothingIsSplitUnevenly) {
  const BytePlan whole = plan_of(qwen3_8b(), {}), half = plan_of(qwen3_8b(), {.ranks = 2});
  EXPECT_EQ(row_of(half, "k16v8").bytes_per_token * 2, row_of(whole, "k16v8").bytes_per_token);
  EXPECT_NE(refusal([] { plan_of(qwen3_8b(), {.ranks = 3}); }).find("3 does not divide the model's 8 KV heads"), std::string::npos);
  EXPECT_NE(refusal([] { plan_of(qwen3_8b(), {.ranks = 16}); }).find("KV heads"), std::string::npos);
  EXPECT_NE(refusal([] { plan_of(qwen3_8b(), {.ranks = 0}); }).find("at least 1"), std::string::npos);
}

TEST(BytePlan, WrongOptionsAreRefusedByName) {
  EXPECT_NE(refusal([] { plan_of(qwen3_8b(), {.context = 0}); }).find("--context"), std::string::npos);
  EXPECT_NE(refusal([] { plan_of(qwen3_8b(), {.context = 40960}); }).find("40960 positions"), std::string::npos);
  EXPECT_NE(refusal([] { plan_of(qwen3_8b(), {.pool_bytes = 1 << 30, .gpu_memory_bytes = 1 << 30}); }).find("one of them"), std::string::npos);
  EXPECT_NE(refusal([] { plan_of(qwen3_8b(), {.pool_bytes = 1024}); }).find("too small for one page"), std::string::npos);
  EXPECT_NE(refusal([] { plan_of(qwen3_8b(), {.page_size = 5}); }).find("block size 5"), std::string::npos);
  EXPECT_NE(refusal([] { plan_of(qwen3_8b(), {.page_size = 0}); }).find("--block-size must be between 1 and 256, found 0"), std::string::npos);
  ModelConfig endless = qwen3_8b();
  endless.max_positions = INT32_MAX;
  EXPECT_NE(refusal([&] { plan_of(endless, {.context = 1'000'000'000, .output = 1'000'000'000}); }).find("fewer than 2^63 bytes of cache"), std::string::npos);
  EXPECT_NE(refusal([] { plan_of(qwen3_8b(), {.transfer_bytes = 1000}); }).find("multiple of 4096"), std::string::npos);
}

TEST(BytePlan, ResidentsAreBatchesOnAFittedCurve) {
  const MeasuredCurve curve{.hill = {2000, 35, 1}, .context = 8192, .largest_batch = 40, .flags = {"noted"}};  // half the ceiling at 35 residents
  const BytePlan plan = plan_of(qwen3_8b(), {.pool_bytes = std::int64_t{40} << 30, .curve = curve});
  EXPECT_DOUBLE_EQ(row_of(plan, "k16v16").curve_tokens_per_s, 1000);
  EXPECT_DOUBLE_EQ(row_of(plan, "k16v16").throughput_x, 1);
  EXPECT_DOUBLE_EQ(row_of(plan, "k16v8").throughput_x, 2 * 46.0 / (46 + 35));
  EXPECT_DOUBLE_EQ(row_of(plan, "k8v8").token_time_x, 1.5);  // (70 + 35) / (35 + 35)
  EXPECT_NE(to_table(plan).find("! the fit: noted"), std::string::npos);
  EXPECT_TRUE(as_json(plan)["formats"][1]["curve"]["extrapolated"]);
  EXPECT_NE(refusal([&] { plan_of(qwen3_8b(), {.curve = curve}); }).find("--fit wants a pool"), std::string::npos);
}

TEST(BytePlan, TheTableAndTheJsonSayThatFiguresAreCalculated) {
  const BytePlan plan = plan_of(qwen3_8b(), {.pool_bytes = std::int64_t{40} << 30, .batch = 32});
  EXPECT_NE(to_table(plan).find("calculated"), std::string::npos);
  EXPECT_NE(to_table(plan).find("388,352"), std::string::npos);
  EXPECT_EQ(as_json(plan)["basis"], "calculated");
  EXPECT_EQ(as_json(plan)["formats"].size(), 6u);
}

TEST(BytePlan, ThePageOfAHostileConfigIsWellFormed) {
  ModelConfig config = qwen3_8b();
  config.architecture = "<script>alert(1)</script>\x01\xff\"&" + std::string(100'000, 'x');
  config.layers = 4096, config.kv_heads = config.heads = 16384, config.max_positions = INT32_MAX;
  const MeasuredCurve curve{.hill = {1e17, 1e18, 5}, .context = 1, .largest_batch = 1e15, .flags = {"</pre><b>"}};
  const std::string html = to_html(make_byte_plan("a<b>&\"c", config, {.pool_bytes = std::int64_t{1} << 62, .context = 1, .output = 1, .curve = curve}));
  EXPECT_EQ(xml_problem(html), std::nullopt) << *xml_problem(html);
  EXPECT_EQ(occurrences(html, "<script"), 0);
  EXPECT_EQ(occurrences(html, "</pre><b>"), 0);
  EXPECT_EQ(occurrences(html, "nan"), 0);
}

TEST(BytePlan, ThePageDrawsEveryFormatWithWhatWasAsked) {
  const std::string bare = to_html(plan_of(qwen3_8b(), {}));
  EXPECT_EQ(xml_problem(bare), std::nullopt) << *xml_problem(bare);
  EXPECT_EQ(occurrences(bare, "aria-label=\"Resident requests"), 0);  // no pool was given
  const MeasuredCurve curve{.hill = {2000, 35, 1}, .context = 8192, .largest_batch = 40, .flags = {"noted <here>"}};
  const std::string whole = to_html(plan_of(qwen3_8b(), {.pool_bytes = std::int64_t{40} << 30, .batch = 32, .curve = curve}));
  EXPECT_EQ(xml_problem(whole), std::nullopt) << *xml_problem(whole);
  EXPECT_EQ(occurrences(whole, "aria-label=\"Resident requests"), 2);
  EXPECT_EQ(occurrences(whole, "noted &lt;here&gt;"), 3);  // aloud, and in the table and JSON
  EXPECT_EQ(occurrences(whole, ">110,592<"), 2);  // k16v8, k8v16
  EXPECT_EQ(occurrences(whole, "<title>k16v8: 46 residents"), 2);  // throughput, time per token
  const std::string none = to_html(plan_of(qwen3_8b(), {.gpu_memory_bytes = std::int64_t{8} << 30}));
  EXPECT_EQ(xml_problem(none), std::nullopt);
  EXPECT_GE(occurrences(none, "leave no page beside weights"), 2);
}

}  // namespace
}  // namespace keel
