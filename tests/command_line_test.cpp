// The program's exit codes, as scripts see them.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>

#include "tiny_engine.h"

namespace keel {
namespace {

struct Ended {
  int code;
  std::string said;  // on both outputs
};

Ended run(const std::string& arguments) {
  FILE* pipe = popen((std::string(KEEL_PROGRAM) + " " + arguments + " 2>&1 </dev/null").c_str(), "r");
  std::string said;
  char some[4096];
  for (std::size_t got; (got = std::fread(some, 1, sizeof(some), pipe)) > 0;) said.append(some, got);
  const int status = pclose(pipe);
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, said};
}

TEST(CommandLine, AWrongFlagValueEndsWithTwoWhoeverFindsIt) {
  if (tiny_model().empty()) GTEST_SKIP() << "no models/tiny here";
  const std::string inspect = "inspect " + tiny_model().string() + " -t 1 ", generate = "generate " + tiny_model().string() + " -t 1 -p a -n 1 ";
  struct Case {
    std::string arguments, said;
  };
  for (const Case& one : {Case{"", "subcommand"},
                          Case{"serve", "model"},
                          Case{inspect + "--no-such-flag", "--no-such-flag"},
                          Case{inspect + "--max-num-seqs many", "--max-num-seqs"},
                          Case{inspect + "--max-num-seqs 0", "--max-num-seqs"},
                          Case{inspect + "--max-num-seqs 64 --max-num-batched-tokens 8", "--max-num-batched-tokens"},
                          Case{inspect + "--max-queued 0", "--max-queued"},
                          Case{inspect + "--kv-cache-dtype k16v2", "k16v2"},
                          Case{inspect + "-ctk u4", "u4 keys"},
                          Case{inspect + "--kv-cache-memory-bytes 2QiB", "2QiB"},
                          Case{inspect + "--kv-cache-memory-bytes 0", "--kv-cache-memory-bytes"},
                          Case{inspect + "--kv-cache-memory-bytes 1KiB", "one page"},
                          Case{inspect + "--max-model-len 1000000", "--max-model-len"},
                          Case{inspect + "--kv-cache-memory-bytes 1MiB --max-model-len 4096", "does not fit"},
                          Case{inspect + "--block-size 5", "block size 5"},
                          Case{"inspect " + tiny_model().string() + " -t -1", "threads"},
                          Case{inspect + "--load-format dummy --dummy-scale -1", "scale"},
                          Case{generate + "--temperature -1", "temperature"},
                          Case{generate + "--top-p 0", "top_p"},
                          Case{"serve " + tiny_model().string() + " --max-body-bytes lots", "lots"}}) {
    const Ended ended = run(one.arguments);
    EXPECT_EQ(ended.code, 2) << one.arguments << "\n" << ended.said;
    EXPECT_NE(ended.said.find(one.said), std::string::npos) << one.arguments << "\n" << ended.said;
  }
}

TEST(CommandLine, StatisticsOfImpossibleNumbersAreRefusedByName) {
  struct Case {
    std::string arguments, said;
  };
  for (const Case& one : {Case{"", "subcommand"},
                          Case{"gross-loss --losses 12 --of 11", "0 to 11 losses of 11 items, found 12"},
                          Case{"gross-loss --losses -1 --of 11", "found -1"},
                          Case{"gross-loss --losses 0 --of 0", "found 0"},
                          Case{"gross-loss --losses 1.5 --of 11", "--losses"},
                          Case{"gross-loss --losses 1 --of 11 --confidence 95", "95"},
                          Case{"gross-loss --losses 1 --of 11 --limit nan", "the limit is nan"},
                          Case{"gross-loss --losses 1 --of 11 --loss-rate 0.1", "--limit"},
                          Case{"gross-loss --losses 1 --of 11 --limit 0.1 --loss-rate 2", "the loss rate is 2"},
                          Case{"sign 1.1 0", "ratio 2 is 0"},
                          Case{"sign 1.1 -2", "ratio 2 is -2"},
                          Case{"sign 1.1 nan", "'nan'"},
                          Case{"sign 1.1 --wins 1 --of 1", "either"},
                          Case{"sign --wins 1", "--of"},
                          Case{"sign --wins 2 --of 1", "found 2"},
                          Case{"sign", "wanted numbers"},
                          Case{"holm 0.1 1.5", "p 2 is 1.5"},
                          Case{"holm 0.1 0.2 --family 1", "2 to"},
                          Case{"holm 0.1 --family 0", "--family"},
                          Case{"median-ci --file -", "no numbers"},
                          Case{"median-ci 1 2x", "'2x'"},
                          Case{"median-ci 1 inf", "'inf'"},
                          Case{"median-ci ' , '", "no numbers"},
                          Case{"bootstrap-mean 1 2 --draws 0", "found 0"},
                          Case{"bootstrap-mean 1 2 --seed -1", "a whole number from 0 to 18446744073709551615, found -1"},
                          Case{"bootstrap-mean 1e308 1e308", "no sum"},
                          Case{"speculation --base 1 --quant 1,2 --spec 1 --both 1", "found 1 --base, 2 --quant"},
                          Case{"speculation --base 1 --quant 0 --spec 1 --both 1", "quant is 0"},
                          Case{"speculation --base 1e308 --quant 1e-308 --spec 1e-308 --both 1", "block 1: its throughputs"},
                          Case{"speculation --base , --quant , --spec , --both ,", "at least one block"},
                          Case{"bootstrap-mean 1 2 --limit nan", "--limit nan"},
                          Case{"spearman", "at least one x"},
                          Case{"spearman --x 1,2 --y 1", "2 x and 1 y"},
                          Case{"spearman --x 1,1 --y 1,2", "equal x"},
                          Case{"speculation --base 1 --quant 1 --spec 1", "--both"},
                          Case{"speculation --base 1,2 --quant 1 --spec 1 --both 1", "2 --base, 1 --quant"},
                          Case{"speculation --base 1,0 --quant 1,1 --spec 1,1 --both 1,1", "block 2: base is 0"}}) {
    const Ended ended = run("stats " + one.arguments);
    EXPECT_EQ(ended.code, 2) << one.arguments << "\n" << ended.said;
    EXPECT_NE(ended.said.find(one.said), std::string::npos) << one.arguments << "\n" << ended.said;
  }
  EXPECT_EQ(run("stats sign --file /no/such/file").code, 1);
}

TEST(CommandLine, StatisticsAreToldInWordsAndInJson) {
  struct Case {
    std::string arguments, words, json;
  };
  for (const Case& one : {Case{"gross-loss --losses 11 --of 1319", "1.37663 %", "\"upper\":0.01376631097"},
                          Case{"gross-loss --losses 18 --of 1319 --limit 0.02", "fails; at most 17", "\"passes\":false,\"most_losses\":17"},
                          Case{"gross-loss --losses 0 --of 100 --limit 0.02", "too few", "\"most_losses\":null"},
                          Case{"gross-loss --losses 0 --of 10 --limit 1 --loss-rate 0.5", "chance of 100 %", "\"chance_to_pass\":1.0"},
                          Case{"sign 1.1,1.2 1 0.5", "2 wins of 4 blocks (1 ties): p = 0.6875", "\"p\":0.6875"},
                          Case{"sign --wins 9 --of 10", "p = 0.0107422", "\"p\":0.0107421875"},
                          Case{"holm 0.0107421875 --family 24", "0.257812", "\"adjusted\":[0.2578125]"},
                          Case{"median-ci -0.5 2 -1", "median -0.5, 95 % interval [-1, 2]", "\"lower\":-1.0,\"upper\":2.0"},
                          Case{"bootstrap-mean 0.25 0.25 --limit 0.25", "limit 0.25: passes", "\"upper\":0.25"},
                          Case{"spearman --x 1,2,2,3 --y 1,3,2,2", "rho 0.5 of 4 pairs", "\"rho\":0.5"},
                          Case{"speculation --base 100 --quant 120 --spec 150 --both 180", "rho 1 of 1 block: multiplicative", "\"class\":\"multiplicative\""},
                          Case{"speculation --base 1,1,1 --quant 2,2,2 --spec 2,2,2 --both 2,3,4", "not settled", "\"class_settled\":false"}}) {
    const Ended words = run("stats " + one.arguments), json = run("stats " + one.arguments + " --json");
    EXPECT_EQ(words.code, 0) << words.said;
    EXPECT_EQ(json.code, 0) << json.said;
    EXPECT_NE(words.said.find(one.words), std::string::npos) << one.arguments << "\n" << words.said;
    EXPECT_NE(json.said.find(one.json), std::string::npos) << one.arguments << "\n" << json.said;
  }
}

TEST(CommandLine, PlanAndFitEndWithTwoForAFileTheyCannotUse) {
  const std::filesystem::path folder = std::filesystem::temp_directory_path() / fmt::format("keel_plan_{}", getpid());
  std::filesystem::create_directories(folder);
  const auto written = [&](const char* name, const char* text) {
    std::ofstream(folder / name) << text;
    return (folder / name).string();
  };
  const std::string mla = written("config.json", R"({"architectures": ["MiniCPM3ForCausalLM"], "kv_lora_rank": 256})");
  const std::string geometry = KEEL_SOURCE_DIR "/bench/geometries/qwen3-8b/config.json ";
  struct Case {
    std::string arguments, said;
  };
  for (const Case& one : {Case{"plan /no/such/config.json", "no/such"}, Case{"plan " + mla, "compressed-latent cache (MLA)"}, Case{"plan " + geometry + "-T 3", "8 KV heads"},
                          Case{"plan " + geometry + "--kv-cache-memory-bytes 1KiB", "one page"}, Case{"plan " + geometry + "--kv-cache-dtype k4v4", "k4v4"},
                          Case{"plan " + geometry + "--gpu-memory 0", "--gpu-memory"}, Case{"plan " + geometry + "--step-deadline nan", "a number from 1e-06 to 1e+06, found nan"},
                          Case{"plan " + geometry + "--other-step-bytes inf", "found inf"}, Case{"plan " + geometry + "--block-size 0", "--block-size"},
                          Case{"fit " + written("c.csv", "context,batch,tokens_per_s\n1,1,5\n1,2,1e308\n"), "c.csv:3: tokens_per_s"}, Case{"fit a.csv --capacity nan", "found nan"}, Case{"fit /no/such.csv", "cannot be read"},
                          Case{"fit " + written("a.csv", "context,batch\n1,2\n"), "a.csv:1: the header"},
                          Case{"fit " + written("b.csv", "context,batch,tokens_per_s\n1,1,5\n1,2,9\n"), "2 distinct batches"}}) {
    const Ended ended = run(one.arguments);
    EXPECT_EQ(ended.code, 2) << one.arguments << "\n" << ended.said;
    EXPECT_NE(ended.said.find(one.said), std::string::npos) << one.arguments << "\n" << ended.said;
  }
  const Ended planned = run("plan " + geometry + "--kv-cache-memory-bytes 40GiB");
  EXPECT_EQ(planned.code, 0) << planned.said;
  for (const char* slots : {"291,264", "388,352", "582,528", "42,948,624,384"}) EXPECT_NE(planned.said.find(slots), std::string::npos) << planned.said;
  std::filesystem::remove_all(folder);
}

TEST(CommandLine, QualifyTakesOnlyWhatItCanJudge) {
  if (tiny_model().empty()) GTEST_SKIP() << "no models/tiny here";
  const std::filesystem::path folder = std::filesystem::temp_directory_path() / fmt::format("keel_qualify_cli_{}", getpid());
  std::filesystem::create_directories(folder);
  std::ofstream(folder / "panel.json") << R"({"limit": 1})";
  std::ofstream(folder / "small.json") << R"({"documents": 16, "prompt_tokens": 16, "targets": 4, "needle_cases": 2, "needle_lengths": [128], "sums": 2})";
  std::ofstream(folder / "empty.jsonl");
  const std::string qualify = "qualify " + tiny_model().string() + " -t 1 --device cpu -o " + (folder / "r.json").string() + " ", in_folder = folder.string() + "/";
  struct Case {
    std::string arguments, said;
    int code;
  };
  for (const Case& one : {Case{"", "--candidate", 2}, Case{"--candidate k3v3", "k3v3", 2}, Case{"--candidate k16v8 --control k8v8", "--control", 2},
                          Case{"--candidate k16v8 --stop-after lunch", "lunch", 2}, Case{"--candidate k16v8 --break nothing", "no fault 'nothing'", 2}, Case{"--candidate k16v8 --panel " + in_folder + "panel.json", "'limit' is no part of a panel", 2},
                          Case{"--candidate k16v8 --questions " + in_folder + "empty.jsonl", "holds no question", 2}, Case{"--candidate k16v8 --text /no/such/file", "cannot be read", 2},
                          Case{"--candidate k16v8 --needles 0", "--needles", 2},
                          Case{"--candidate k16v8 --freeze-only --panel " + in_folder + "small.json", "plan ", 0}, Case{"--candidate k16v8 --freeze-only", "is not the frozen plan", 2},
                          Case{"--candidate k16v8 --stop-after production --panel " + in_folder + "small.json", "not reached", 2}}) {
    const Ended ended = run(qualify + one.arguments);
    EXPECT_EQ(ended.code, one.code) << one.arguments << "\n" << ended.said;
    EXPECT_NE(ended.said.find(one.said), std::string::npos) << one.arguments << "\n" << ended.said;
  }
  std::filesystem::remove_all(folder);
}

TEST(CommandLine, ScanReadsWeightsAloneAndRefusesWhatItCannotProbe) {
  if (tiny_model().empty()) GTEST_SKIP() << "no models/tiny here";
  const std::string golden = KEEL_SOURCE_DIR "/tests/golden/hf/", tiny = "scan " + tiny_model().string() + " ";
  const Ended weights = run("scan " + golden + "qwen2 --weights-only");
  EXPECT_EQ(weights.code, 0) << weights.said;
  EXPECT_NE(weights.said.find("of 2 heads have a channel"), std::string::npos) << weights.said;
  EXPECT_NE(run("scan " + golden + "phi3 --weights-only").said.find("(partial rotary)"), std::string::npos);
  EXPECT_NE(run("scan " + golden + "qwen3 --weights-only").said.find("QK-norm       yes"), std::string::npos);
  EXPECT_NE(run(tiny + "--weights-only --json").said.find("\"probe\": null"), std::string::npos);
  struct Case {
    std::string arguments;
    int code;
    std::string said;
  };
  for (const Case& one : {Case{tiny + "--device cuda", 2, "only the CPU can"}, Case{tiny + "--documents 4", 2, "--documents"},
                          Case{tiny + "--layer-documents 9", 2, "--layer-documents 9"}, Case{tiny + "--tokens 100000", 2, "found"}, Case{tiny + "--tokens 100 --layer-tokens 101", 2, "--layer-tokens 101"},
                          Case{tiny + "--random-tokens -1", 2, "a whole number from 0 to 18446744073709551615, found -1"}, Case{tiny + "--random-tokens 99999999999999999999", 2, "whole number"},
                          Case{tiny + "--random-tokens 1 --documents 65536 --tokens 1000000", 2, "wanted at most 4194304 tokens in all"}, Case{tiny + "--weights-only -t 1025", 2, "1024"},
                          Case{tiny + "--weights-only -t -1", 2, "1024"}, Case{tiny + "--weights-only --data x", 2, "--weights-only"}, Case{"scan " + golden + "qwen2", 1, "--random-tokens"}}) {
    const Ended ended = run(one.arguments);
    EXPECT_EQ(ended.code, one.code) << one.arguments << "\n" << ended.said;
    EXPECT_NE(ended.said.find(one.said), std::string::npos) << one.arguments << "\n" << ended.said;
  }
  const Ended probed = run("scan " + golden + "qwen2 --random-tokens 1 --documents 5 --tokens 16");
  EXPECT_EQ(probed.code, 0) << probed.said;
  EXPECT_NE(probed.said.find("random tokens, seed 1"), std::string::npos) << probed.said;
}

TEST(CommandLine, DummyWeightsWantNoMoreThanAFolderWithAConfig) {
  const std::filesystem::path folder = std::filesystem::temp_directory_path() / fmt::format("keel_dummy_{}", getpid());
  std::filesystem::create_directories(folder);
  std::filesystem::copy_file(KEEL_SOURCE_DIR "/tests/golden/hf/qwen2/config.json", folder / "config.json");
  const std::string latency = "bench latency " + folder.string() + " --batch-size 1 --input-len 4 --output-len 4 --num-iters-warmup 0 --num-iters 1 -t 1";
  const Ended dummy = run(latency + " --load-format dummy");
  EXPECT_EQ(dummy.code, 0) << dummy.said;
  EXPECT_NE(dummy.said.find("Avg latency"), std::string::npos) << dummy.said;
  EXPECT_EQ(run(latency).code, 1);
  std::filesystem::remove_all(folder);
}

TEST(CommandLine, WhatIsNotTheCommandLinesFaultEndsWithOne) {
  EXPECT_EQ(run("inspect /no/such/model").code, 1);
  EXPECT_EQ(run("tokenize /no/such/model").code, 1);
  EXPECT_EQ(run("--version").code, 0);
  EXPECT_EQ(run("serve --help").code, 0);
  if (tiny_model().empty()) GTEST_SKIP() << "no models/tiny here";
  EXPECT_EQ(run("inspect " + tiny_model().string() + " --kv-scales /no/such/file --kv-cache-dtype fp8").code, 1);
  EXPECT_EQ(run("inspect " + tiny_model().string() + " -t 1").code, 0);
}

}  // namespace
}  // namespace keel
