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
                          Case{"plan " + geometry + "--gpu-memory 0", "--gpu-memory"}, Case{"fit /no/such.csv", "cannot be read"},
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
