#include "lab/qualify/journal.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <iterator>

#include "base/error.h"

namespace keel {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

class JournalTest : public testing::Test {
 protected:
  JournalTest() : file(fs::temp_directory_path() / ("keel_journal_" + std::to_string(getpid()) + ".jsonl")) { fs::remove(file); }
  ~JournalTest() override { fs::remove(file); }
  std::string text() const {
    std::ifstream in(file, std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(in), {});
  }
  void write(const std::string& all) const { std::ofstream(file, std::ios::binary) << all; }
  static void add(Journal& journal, std::int64_t item, Json found) {
    const Journal::Entry entry{.gate = "nll", .arm = "", .item = item, .found = std::move(found)};
    journal.add({&entry, 1});
  }

  fs::path file;
  Json head{{"plan", "abc"}};
};

TEST_F(JournalTest, KeepsNumbersToTheLastBit) {
  const double x = 0.1 + 0.2;
  {
    Journal journal(file, head);
    add(journal, 3, x);
    add(journal, 3, 7);  // what is there stays
  }
  Journal again(file, head);
  EXPECT_EQ(again.resumed(), 1);
  ASSERT_NE(again.find("nll", "", 3), nullptr);
  EXPECT_EQ(again.find("nll", "", 3)->get<double>(), x);
  EXPECT_EQ(again.find("nll", "candidate", 3), nullptr);
}

TEST_F(JournalTest, ALineThatWasCutOffIsDroppedWhereverTheCutIs) {
  {
    Journal journal(file, head);
    add(journal, 0, {{"right", true}});
    add(journal, 1, {{"right", false}});
  }
  const std::string whole = text();
  const std::size_t first_end = whole.find('\n') + 1, second_end = whole.find('\n', first_end) + 1;
  for (std::size_t cut = 0; cut <= whole.size(); ++cut) {
    write(whole.substr(0, cut));
    Journal journal(file, head);
    EXPECT_EQ(journal.resumed(), (cut >= second_end) + (cut == whole.size())) << cut;
    add(journal, 0, {{"right", true}});
    add(journal, 1, {{"right", false}});
    EXPECT_EQ(text(), whole) << cut;
  }
}

TEST_F(JournalTest, AnotherPlansJournalAndASecondWriterAreRefused) {
  const auto refusal = [&] {
    try {
      Journal(file, head);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  {
    Journal journal(file, head);
    EXPECT_NE(refusal().find("another run is writing it"), std::string::npos);
  }
  fs::remove(file);
  LineJournal(file).append({{R"({"plan":"other"})"}});
  EXPECT_NE(refusal().find("begun with {\"plan\":\"other\"}"), std::string::npos);
  fs::remove(file);
  LineJournal(file).append({{head.dump(), R"({"gate":1})"}});
  EXPECT_NE(refusal().find(":2: wanted gate, arm, item and found"), std::string::npos);
}

}  // namespace
}  // namespace keel
