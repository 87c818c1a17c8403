#include "base/text_file.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>

#include "base/error.h"

namespace keel {
namespace {

namespace fs = std::filesystem;

class TextFile : public testing::Test {
 protected:
  void SetUp() override { fs::create_directories(folder_); }
  void TearDown() override { fs::remove_all(folder_); }
  static std::string refusal(const fs::path& path, const std::string& text) {
    try {
      write_text_file(path, text);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  }

  fs::path folder_ = fs::temp_directory_path() / ("keel_text_file_" + std::to_string(getpid()));
};

TEST_F(TextFile, IsReadAsItWasWritten) {
  const std::string text = std::string("a\0b\r\n\xff", 6);
  write_text_file(folder_ / "a", "longer than what comes after it");
  write_text_file(folder_ / "a", text);
  EXPECT_EQ(read_text_file(folder_ / "a"), text);
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), fs::directory_iterator()), 1);
  EXPECT_THROW(read_text_file(folder_ / "absent"), Error);
  EXPECT_THROW(read_text_file(folder_), Error);
}

TEST_F(TextFile, WhatCannotBeWrittenLeavesTheOldFileWhole) {
  write_text_file(folder_ / "a", "old");
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  const rlimit small{.rlim_cur = 1000, .rlim_max = before.rlim_max};
  const auto ignored = std::signal(SIGXFSZ, SIG_IGN);
  setrlimit(RLIMIT_FSIZE, &small);
  const std::string why = refusal(folder_ / "a", std::string(5000, 'x'));
  setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, ignored);
  EXPECT_EQ(why, (folder_ / "a").string() + ": cannot be written: File too large");
  EXPECT_EQ(read_text_file(folder_ / "a"), "old");
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), fs::directory_iterator()), 1);
  EXPECT_NE(refusal(folder_ / "absent/a", "x").find("No such file or directory"), std::string::npos);
  EXPECT_NE(refusal(folder_, "x").find("Is a directory"), std::string::npos);
}

TEST_F(TextFile, AFileKeepsItsModeAndANewOneHasTheUmasks) {
  const auto mode = [&] { return static_cast<int>(fs::status(folder_ / "a").permissions()); };
  const mode_t before = umask(002);
  write_text_file(folder_ / "a", "new");
  EXPECT_EQ(mode(), 0664);
  for (const int own : {0600, 0666, 0755}) {
    fs::permissions(folder_ / "a", fs::perms(own));
    write_text_file(folder_ / "a", "again");
    EXPECT_EQ(mode(), own);
  }
  umask(before);
}

TEST_F(TextFile, ALinkIsWrittenThroughAndStays) {
  write_text_file(folder_ / "a", "old and longer");
  fs::create_symlink(folder_ / "a", folder_ / "link");
  write_text_file(folder_ / "link", "new");
  EXPECT_TRUE(fs::is_symlink(folder_ / "link"));
  EXPECT_EQ(read_text_file(folder_ / "a"), "new");
}

}  // namespace
}  // namespace keel
