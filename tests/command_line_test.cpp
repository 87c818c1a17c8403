// The program's exit codes, as scripts see them.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdio>
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
