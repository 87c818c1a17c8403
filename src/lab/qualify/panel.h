// What a model is asked: text for NLL, needles in a haystack for retrieval, questions with one right answer. All of it follows from
// the options, the text and the tokenizer.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "lab/qualify/verdict.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace keel {

// Of fewer documents a bootstrap's limit says little.
inline constexpr std::int64_t kLeastDocuments = 16;

struct PanelOptions {
  std::int64_t documents = 32;     // at least kLeastDocuments
  std::int64_t prompt_tokens = 0;  // of a document, in front of its targets; 0 = 896, or what the model's context leaves
  std::int64_t targets = 128;
  std::int64_t needle_cases = 100;
  std::vector<std::int64_t> needle_lengths;  // contexts, answer included; empty = of 512, 1,024, 2,048 and 4,096 those that the model has
  std::int64_t needle_answer_tokens = 32;
  bool haystack_in_message = false;  // the text is part of the user's message; else it stands before the conversation
  std::int64_t questions = 0;        // of the file; 0 = all
  std::int64_t sums = 400;           // where no file is given
  std::int64_t answer_tokens = 0;    // 0 = 512 for a file's questions, 48 for sums
  std::uint64_t seed = 1;
  std::filesystem::path text_file, questions_file;  // empty = built in
};

// A JSON object whose keys are the names above. Throws OptionError naming the file and the key: unknown, of another type, out of range.
PanelOptions read_panel(const std::filesystem::path& file);

struct PanelItem {
  std::string label;  // "1024 tokens, depth 0.42", "question 17"
  std::vector<TokenId> prompt;
  std::string wanted;
};

// Items that are answered and judged right or wrong: those of one gate.
struct AnswerPanel {
  std::string gate;  // "retrieval" or "questions"
  std::string name, sha256;  // of the questions' file, or what is built in and ""
  std::string mark;  // answer.h
  std::int64_t answer_tokens = 0;
  AnswerRule rule;
  std::vector<PanelItem> items;

  std::int64_t longest() const;  // prompt and answer
};

struct Panel {
  std::string text_name, text_sha256;
  std::vector<TokenId> text;                      // the production gate's words come from its beginning
  std::int64_t prompt_tokens = 0, targets = 0;
  std::vector<std::vector<TokenId>> documents;    // [documents][prompt_tokens + targets]
  std::vector<std::int64_t> needle_lengths;
  AnswerPanel needles, questions;

  std::string digest() const;                // over every token and wanted answer
  std::int64_t longest_context() const;      // of all that is asked
};

// `chat_template` may be null: questions are then asked in plain words. Throws OptionError where the text is too short for the
// documents, a panel is empty, or a prompt does not fit the model's context; Error where the tokenizer has tokens that the model has not.
Panel make_panel(const PanelOptions& options, const Tokenizer& tokenizer, const ChatTemplate* chat_template, std::int64_t longest_context, std::int64_t vocabulary);

}  // namespace keel
