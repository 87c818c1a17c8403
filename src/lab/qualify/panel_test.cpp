#include "lab/qualify/panel.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <set>

#include "base/option_error.h"
#include "lab/qualify/answer.h"

namespace keel {
namespace {

namespace fs = std::filesystem;

class PanelTest : public testing::Test {
 protected:
  PanelTest() : tokenizer(load_tokenizer(fs::path(KEEL_SOURCE_DIR) / "models/tiny")), chat(tokenizer->chat_template()) {
    folder = fs::temp_directory_path() / ("keel_panel_" + std::to_string(getpid()));
    fs::create_directories(folder);
    small.documents = kLeastDocuments;
    small.prompt_tokens = 64;
    small.targets = 32;
    small.needle_cases = 12;
    small.needle_lengths = {256, 512};
    small.sums = 30;
  }
  ~PanelTest() override { fs::remove_all(folder); }
  Panel make(const PanelOptions& options, std::int64_t context = 4096) const { return make_panel(options, *tokenizer, &chat, context, 1 << 20); }
  fs::path file(const std::string& name, const std::string& text) const {
    std::ofstream(folder / name) << text;
    return folder / name;
  }
  // Empty where nothing is refused.
  template <class Call>
  static std::string refusal(Call call) {
    try {
      call();
    } catch (const Error& error) {
      return error.what();
    }
    return {};
  }

  std::unique_ptr<Tokenizer> tokenizer;
  ChatTemplate chat;
  PanelOptions small;
  fs::path folder;
};

TEST_F(PanelTest, FollowsFromItsOptionsAlone) {
  const Panel one = make(small), again = make(small);
  EXPECT_EQ(one.digest(), again.digest());
  PanelOptions other = small;
  other.seed = 2;
  EXPECT_NE(make(other).digest(), one.digest());
}

TEST_F(PanelTest, DocumentsDoNotMeet) {
  PanelOptions options = small;
  options.documents = 32;
  options.prompt_tokens = 896;
  options.targets = 128;
  const Panel panel = make(options);
  const std::int64_t length = 1024, tokens = static_cast<std::int64_t>(panel.text.size());
  ASSERT_EQ(panel.documents.size(), 32u);
  for (std::int64_t i = 0; i < 32; ++i) {
    const std::int64_t start = i * (tokens - length) / 31;
    EXPECT_TRUE(std::equal(panel.documents[i].begin(), panel.documents[i].end(), panel.text.begin() + start));
    if (i == 0) continue;
    EXPECT_GE(start, (i - 1) * (tokens - length) / 31 + length);
  }
}

TEST_F(PanelTest, NeedlesFitTheirLengthsAndHoldWhatIsAskedFor) {
  for (const bool in_message : {false, true}) {
    PanelOptions options = small;
    options.haystack_in_message = in_message;
    const Panel panel = make(options);
    std::set<std::string> labels;
    for (std::size_t i = 0; i < panel.needles.items.size(); ++i) {
      const PanelItem& needle = panel.needles.items[i];
      const std::int64_t room = (i % 2 == 0 ? 256 : 512) - panel.needles.answer_tokens;
      EXPECT_LE(static_cast<std::int64_t>(needle.prompt.size()), room);
      EXPECT_GE(static_cast<std::int64_t>(needle.prompt.size()), room - 12);
      const std::string text = tokenizer->decode(needle.prompt, true);
      EXPECT_NE(text.find(" is " + needle.wanted + "."), std::string::npos) << text;
      EXPECT_EQ(text.find("<|im_start|>user") < text.find("The pass key of"), in_message);
      EXPECT_TRUE(text.ends_with("<|im_start|>assistant\n"));
      labels.insert(needle.label);
    }
    EXPECT_EQ(labels.size(), panel.needles.items.size());  // every length and depth once
  }
}

TEST_F(PanelTest, SumsHaveTheirAnswers) {
  const Panel panel = make(small);
  for (const PanelItem& item : panel.questions.items) {
    EXPECT_TRUE(plain_number(item.wanted)) << item.wanted;
    EXPECT_NE(tokenizer->decode(item.prompt).find("How many"), std::string::npos);
  }
}

TEST_F(PanelTest, QuestionsComeFromAFile) {
  PanelOptions options = small;
  options.questions_file = file("q.jsonl", "{\"question\": \"6 * 7?\", \"answer\": \"6 * 7 = 42\\n#### 42\"}\n\n{\"question\": \"1000 + 234?\", \"answer\": \"1,234\"}\n");
  const Panel panel = make(options);
  ASSERT_EQ(panel.questions.items.size(), 2u);
  EXPECT_EQ(panel.questions.items[0].wanted, "42");
  EXPECT_EQ(panel.questions.items[1].wanted, "1234");
  EXPECT_EQ(panel.questions.mark, "####");
  options.questions = 1;
  EXPECT_EQ(make(options).questions.items.size(), 1u);
  options.questions = 0;
  for (const auto& [text, said] : {std::pair<std::string, std::string>{"", "holds no question"}, {"{\"question\": \"a\"}\n", "q.jsonl:1: wanted an object"}, {"{\"question\": \"a\", \"answer\": \"b\"}\n", "no number"}, {"[\n", "q.jsonl:1"},
                                   {"{\"question\": \" \", \"answer\": \"1\"}\n", "q.jsonl:1: the question is empty"}, {"{\"question\": \"a\", \"answer\": \"\\n\"}\n", "q.jsonl:1: the answer is empty"},
                                   {"{\"question\": \"a\", \"answer\": \"1\"}\n\n{\"question\": \"a\", \"answer\": \"2\"}\n", "q.jsonl:3: the question of line 1 again"}}) {
    file("q.jsonl", text);
    EXPECT_NE(refusal([&] { make(options); }).find(said), std::string::npos) << text;
  }
}

TEST_F(PanelTest, WhatDoesNotFitIsRefusedByName) {
  PanelOptions options = small;
  options.documents = 5000;
  EXPECT_NE(refusal([&] { make(options); }).find("5000 documents of 96 tokens want 480000"), std::string::npos);
  options = small;
  options.documents = 15;
  EXPECT_NE(refusal([&] { make(options); }).find("15 documents are too few"), std::string::npos);
  options = small;
  EXPECT_NE(refusal([&] { make_panel(options, *tokenizer, &chat, 4096, 300); }).find("and the model has 300"), std::string::npos);
  EXPECT_NE(refusal([&] { make(options, 90); }).find("do not fit the model's context of 90"), std::string::npos);
  EXPECT_NE(refusal([&] { make(options, 300); }).find("needles in 512 tokens do not fit"), std::string::npos);
  options.needle_answer_tokens = 400;
  EXPECT_NE(refusal([&] { make(options); }).find("needles in 256 tokens: the question takes"), std::string::npos);
  options = small;
  options.text_file = file("short.txt", "Too short.");
  EXPECT_NE(refusal([&] { make(options); }).find("short.txt"), std::string::npos);
}

TEST_F(PanelTest, APanelFileIsCheckedKeyByKey) {
  const PanelOptions read = read_panel(file("p.json", R"({"documents": 17, "needle_lengths": [128], "haystack_in_message": true, "text_file": "t.txt"})"));
  EXPECT_EQ(read.documents, 17);
  EXPECT_EQ(read.needle_lengths, std::vector<std::int64_t>{128});
  EXPECT_TRUE(read.haystack_in_message);
  EXPECT_EQ(read.text_file, folder / "t.txt");
  for (const auto& [text, said] : {std::pair<std::string, std::string>{R"({"documents": 15})", "'documents' must be a whole number from 16"}, {R"({"documents": 1.5})", "'documents'"}, {R"({"targets": "many"})", "'targets'"}, {R"({"limit": 0.5})", "'limit' is no part"},
                                   {R"({"needle_lengths": []})", "'needle_lengths'"}, {R"({"documents": 1, "documents": 2})", "documents"}, {"[]", "object"}, {"{", "p.json"}}) {
    file("p.json", text);
    EXPECT_NE(refusal([&] { read_panel(folder / "p.json"); }).find(said), std::string::npos) << text;
  }
}

}  // namespace
}  // namespace keel
