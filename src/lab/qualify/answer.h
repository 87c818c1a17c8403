// Whether a model's answer is right. An answer that could not be computed is none: it is never counted.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "engine/request.h"

namespace keel {

// `mark`: the number after the last one must equal the wanted one, and an answer that was ended by its token limit (`cut_off`) is
// wrong. Empty: the answer's first run of digits must be the wanted one.
bool is_right(std::string_view answer, std::string_view wanted, std::string_view mark, bool cut_off);

// "1,234.50" -> "1234.5"; nothing where it is no number.
std::optional<std::string> plain_number(std::string_view text);

struct Answer {
  std::string text, error;
  FinishReason finish = FinishReason::none;
  bool engine_failed = false;

  void add(const Output& output);
};

// What stands in the journal and the record: {"right", "finish", "answer"} and "error" where there is one. A model that gives no
// finite logit has answered, wrongly, as it would again. Throws Error, naming `label`, where the engine failed (memory ran out, the
// request was dropped): whether the answer is right is then not known.
nlohmann::json outcome_of(const Answer& answer, const std::string& label, std::string_view wanted, std::string_view mark);

}  // namespace keel
