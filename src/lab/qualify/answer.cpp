#include "lab/qualify/answer.h"

#include <algorithm>
#include <cctype>

namespace keel {

std::optional<std::string> plain_number(std::string_view text) {
  std::string digits;
  bool point = false, any = false;
  std::size_t i = text.find_first_not_of(" \t\r\n$");
  if (i == std::string_view::npos) return std::nullopt;
  const bool negative = text[i] == '-';
  i += negative || text[i] == '+';
  if (i < text.size() && text[i] == '$') ++i;
  for (; i < text.size(); ++i) {
    const char c = text[i];
    const bool digit_follows = i + 1 < text.size() && text[i + 1] >= '0' && text[i + 1] <= '9';
    if (c >= '0' && c <= '9') {
      digits += c;
      any = true;
    } else if (c == '.' && !point && digit_follows) {
      digits += c;
      point = true;
    } else if (!(c == ',' && any && digit_follows && !point)) {
      break;
    }
  }
  if (!any) return std::nullopt;
  // What follows may be punctuation or words ("18.", "18 dollars"), not more of the number ("1/2", "10%", "3e5", "12:30").
  const auto digit_at = [&](std::size_t at) { return at < text.size() && text[at] >= '0' && text[at] <= '9'; };
  if (i < text.size() && (text[i] == '.' || text[i] == ',') && digit_at(i + 1)) return std::nullopt;
  if (i < text.size() && std::string_view("/%:").find(text[i]) != std::string_view::npos) return std::nullopt;
  if (i < text.size() && (std::isalpha(static_cast<unsigned char>(text[i])) != 0 || text[i] == '_')) return std::nullopt;
  if (point) {
    while (digits.ends_with('0')) digits.pop_back();
    if (digits.ends_with('.')) digits.pop_back();
  }
  digits.erase(0, std::min(digits.find_first_not_of('0'), digits.size()));
  if (digits.empty() || digits.front() == '.') digits.insert(digits.begin(), '0');
  return negative && digits != "0" ? "-" + digits : digits;
}

bool is_right(std::string_view answer, std::string_view wanted, std::string_view mark, bool cut_off) {
  const auto digit = [](char c) { return c >= '0' && c <= '9'; };
  if (mark.empty()) {
    const auto begin = std::find_if(answer.begin(), answer.end(), digit);
    const auto end = std::find_if_not(begin, answer.end(), digit);
    return std::string_view(begin, end) == wanted;
  }
  const std::size_t at = answer.rfind(mark);
  if (cut_off || at == std::string_view::npos) return false;
  const auto number = plain_number(answer.substr(at + mark.size()));
  return number && *number == wanted;
}

void Answer::add(const Output& output) {
  text += output.text;
  finish = output.finish;
  error = output.error;
  engine_failed = output.engine_failed;
}

nlohmann::json outcome_of(const Answer& answer, const std::string& label, std::string_view wanted, std::string_view mark) {
  if (answer.engine_failed) fail("{}: {}; that is no answer, so nothing is counted: the same command asks again", label, answer.error);
  if (answer.finish == FinishReason::none || answer.finish == FinishReason::abort) {
    fail("{}: the engine dropped the request; that is no answer, so nothing is counted: the same command asks again", label);
  }
  const bool cut_off = answer.finish == FinishReason::length, failed = answer.finish == FinishReason::error;
  nlohmann::json outcome{{"right", !failed && is_right(answer.text, wanted, mark, cut_off)}, {"finish", name(answer.finish)}, {"answer", answer.text}};
  if (failed) outcome["error"] = answer.error;
  return outcome;
}

}  // namespace keel
