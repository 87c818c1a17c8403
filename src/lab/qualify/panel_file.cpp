#include <map>

#include "base/json.h"
#include "base/option_error.h"
#include "base/text_file.h"
#include "lab/qualify/panel.h"

namespace keel {

PanelOptions read_panel(const std::filesystem::path& file) {
  const std::string text = read_text_file(file);
  if (const auto problem = json_problem(text, {.allow_repeated_keys = false})) refuse_option("{}: {}", file.string(), *problem);
  const nlohmann::json json = nlohmann::json::parse(text);
  if (!json.is_object()) refuse_option("{}: wanted an object", file.string());
  PanelOptions options;
  const auto whole = [&](const nlohmann::json& value, const std::string& key, std::int64_t least, std::int64_t most) {
    if (!value.is_number_integer() || value < least || value > most) refuse_option("{}: '{}' must be a whole number from {} to {}, found {}", file.string(), key, least, most, value.dump());
    return value.get<std::int64_t>();
  };
  struct Number {
    std::int64_t* target;
    std::int64_t least, most;
  };
  const std::map<std::string, Number> numbers{{"documents", {&options.documents, kLeastDocuments, 100'000}},
                                              {"prompt_tokens", {&options.prompt_tokens, 1, 1 << 24}},
                                              {"targets", {&options.targets, 1, 1 << 20}},
                                              {"needle_cases", {&options.needle_cases, 1, 100'000}},
                                              {"needle_answer_tokens", {&options.needle_answer_tokens, 1, 4096}},
                                              {"questions", {&options.questions, 1, 1'000'000}},
                                              {"sums", {&options.sums, 1, 1'000'000}},
                                              {"answer_tokens", {&options.answer_tokens, 1, 1 << 20}}};
  for (const auto& [key, value] : json.items()) {
    if (const auto number = numbers.find(key); number != numbers.end()) {
      *number->second.target = whole(value, key, number->second.least, number->second.most);
    } else if (key == "seed") {
      options.seed = static_cast<std::uint64_t>(whole(value, key, 0, INT64_MAX));
    } else if (key == "haystack_in_message") {
      if (!value.is_boolean()) refuse_option("{}: '{}' must be true or false, found {}", file.string(), key, value.dump());
      options.haystack_in_message = value;
    } else if (key == "needle_lengths") {
      if (!value.is_array() || value.empty()) refuse_option("{}: '{}' must be an array of whole numbers, found {}", file.string(), key, value.dump());
      for (const auto& length : value) options.needle_lengths.push_back(whole(length, key, 64, 1 << 24));
    } else if (key == "text_file" || key == "questions_file") {
      if (!value.is_string()) refuse_option("{}: '{}' must be a path, found {}", file.string(), key, value.dump());
      const std::filesystem::path path = file.parent_path() / value.get<std::string>();
      (key == "text_file" ? options.text_file : options.questions_file) = path;
    } else {
      refuse_option("{}: '{}' is no part of a panel", file.string(), key);
    }
  }
  return options;
}

}  // namespace keel
