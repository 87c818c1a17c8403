// What a model is asked: text for NLL, needles in a haystack for retrieval, questions with one right answer. All of it follows from
// the options, the text and the tokenizer.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace keel {

struct PanelOptions {
  std::int64_t documents = 32;
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

// A JSON object whose keys are the names above. Throws Error naming the file and the key: unknown, of another type, out of range.
PanelOptions read_panel(const std::filesystem::path& file);

enum class Judge {
  first_digits,  // the answer's first run of digits is the wanted one
  marked_number  // the number after the last mark equals the wanted one; an answer that was cut off is wrong
};

struct PanelItem {
  std::string label;  // "1024 tokens, depth 0.42", "question 17"
  std::vector<TokenId> prompt;
  std::string wanted;
};

struct Panel {
  std::string text_name, text_sha256;
  std::vector<TokenId> text;                      // the production gate's words come from its beginning
  std::int64_t prompt_tokens = 0, targets = 0;
  std::vector<std::vector<TokenId>> documents;    // [documents][prompt_tokens + targets]
  std::vector<std::int64_t> needle_lengths;
  std::int64_t needle_answer_tokens = 0;
  std::vector<PanelItem> needles;
  std::string questions_name, questions_sha256, mark;
  std::int64_t answer_tokens = 0;
  std::vector<PanelItem> questions;

  // Over every token and wanted answer.
  std::string digest() const;
  std::int64_t longest_needle() const;    // prompt and answer
  std::int64_t longest_question() const;
};

// `chat_template` may be null: questions are then asked in plain words. Throws Error where the text is too short for the
// documents, a panel is empty, or a prompt does not fit the model's context.
Panel make_panel(const PanelOptions& options, const Tokenizer& tokenizer, const ChatTemplate* chat_template, std::int64_t longest_context);

// Whether an answer is right. `truncated`: it was ended by its token limit.
bool is_right(Judge judge, std::string_view answer, std::string_view wanted, std::string_view mark, bool truncated);
// "1,234.50" -> "1234.5"; nothing where it is no number.
std::optional<std::string> plain_number(std::string_view text);

}  // namespace keel
