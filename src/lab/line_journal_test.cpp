#include "lab/line_journal.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <filesystem>

#include "base/error.h"
#include "base/sha256.h"
#include "base/text_file.h"

namespace keel {
namespace {

namespace fs = std::filesystem;

class LineJournalTest : public testing::Test {
 protected:
  void TearDown() override { fs::remove(path_); }

  std::string refusal() const {
    try {
      LineJournal journal(path_);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  }
  void write_three() const {
    LineJournal journal(path_);
    journal.append(objects_);
  }

  fs::path path_ = fs::temp_directory_path() / ("keel_line_journal_" + std::to_string(getpid()));
  std::vector<std::string> objects_{R"({"plan":1})", R"({"figure":2.5,"chain":"mine"})", R"({"figure":3.25})"};
};

TEST_F(LineJournalTest, GoesOnAfterWhatIsThere) {
  write_three();
  const std::string whole = read_text_file(path_);
  fs::remove(path_);
  for (const std::string& object : objects_) {
    LineJournal journal(path_);
    journal.append({{object}});
  }
  EXPECT_EQ(read_text_file(path_), whole);
  LineJournal journal(path_);
  EXPECT_EQ(journal.lines(), objects_);
}

TEST_F(LineJournalTest, TheChainIsTheHashOfTheChainBeforeAndTheLine) {
  write_three();
  const std::string first = hex(sha256(objects_[0])), second = hex(sha256(first + objects_[1]));
  EXPECT_TRUE(read_text_file(path_).starts_with(R"({"plan":1,"chain":")" + first + "\"}\n" + R"({"figure":2.5,"chain":"mine","chain":")" + second + "\"}\n"));
}

TEST_F(LineJournalTest, ALineThatWasCutOffIsDroppedWhereverTheCutIs) {
  write_three();
  const std::string whole = read_text_file(path_);
  for (std::size_t cut = 0; cut <= whole.size(); ++cut) {
    write_text_file(path_, whole.substr(0, cut));
    LineJournal journal(path_);
    const auto kept = static_cast<std::size_t>(std::count(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(cut), '\n'));
    EXPECT_EQ(journal.lines().size(), kept) << cut;
    journal.append(std::span(objects_).subspan(kept));
    EXPECT_EQ(read_text_file(path_), whole) << cut;
  }
}

TEST_F(LineJournalTest, AnyEditOfAByteIsNoticedWithItsLine) {
  write_three();
  const std::string whole = read_text_file(path_);
  for (std::size_t at = 0; at + 1 < whole.size(); ++at) {
    std::string edited = whole;
    edited[at] = whole[at] == '7' ? '8' : '7';
    write_text_file(path_, edited);
    const auto line = std::count(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(at), '\n') + 1;
    EXPECT_TRUE(refusal().starts_with(path_.string() + ":" + std::to_string(line) + ": ")) << at << refusal();
  }
  std::string without_second = whole;
  const std::size_t second = whole.find('\n') + 1;
  write_text_file(path_, without_second.erase(second, whole.find('\n', second) + 1 - second));
  EXPECT_EQ(refusal(), path_.string() + ":2: edited: it, or a line before it, is not what was written");
  write_text_file(path_, whole + "{\"figure\":9}\n");
  EXPECT_EQ(refusal(), path_.string() + ":4: no line of a journal: it has no chain");
}

TEST_F(LineJournalTest, AFileOfSomethingElseIsRefusedAndStaysAsItIs) {
  for (const std::string text : {"words", "{\"figure\":2.5}", "[1,2", "words\n{\"figure\"", "{\"figure\":2.5}\n{\"figure\""}) {
    write_text_file(path_, text);
    EXPECT_TRUE(refusal().starts_with(path_.string() + ":1: ")) << text << refusal();
    EXPECT_EQ(read_text_file(path_), text);
  }
}

TEST_F(LineJournalTest, WhatCannotBeWrittenLeavesTheJournalAsItWas) {
  write_three();
  const std::string whole = read_text_file(path_);
  fs::remove(path_);
  LineJournal journal(path_);
  journal.append(std::span(objects_).first(1));
  const std::string first = read_text_file(path_);
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  const auto ignored = std::signal(SIGXFSZ, SIG_IGN);
  for (std::size_t room = first.size(); room < whole.size(); room += 7) {
    const rlimit small{.rlim_cur = room, .rlim_max = before.rlim_max};
    setrlimit(RLIMIT_FSIZE, &small);
    EXPECT_THROW(journal.append(std::span(objects_).subspan(1)), Error);
    setrlimit(RLIMIT_FSIZE, &before);
    EXPECT_EQ(read_text_file(path_), first);
    EXPECT_EQ(journal.lines().size(), 1u);
  }
  std::signal(SIGXFSZ, ignored);
  journal.append(std::span(objects_).subspan(1));
  EXPECT_EQ(read_text_file(path_), whole);
}

TEST_F(LineJournalTest, ASecondWriterIsRefused) {
  {
    LineJournal journal(path_);
    EXPECT_EQ(refusal(), path_.string() + ": another run is writing it");
    journal.append(objects_);
  }
  EXPECT_EQ(refusal(), "");
}

}  // namespace
}  // namespace keel
