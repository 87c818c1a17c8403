#include "lab/compare/gate.h"

#include <vector>

#include "base/error.h"
#include "base/json.h"
#include "lab/qualify/record.h"

namespace keel {
namespace {

// What has to be the same for a record to say anything about a run: all of its subject but names and words.
constexpr std::pair<const char*, const char*> kSubject[] = {{"model_digest", "the model"},        {"tokenizer_digest", "the tokenizer"}, {"weights", "the weights"},
                                                            {"control", "the control's format"},  {"candidate", "the cache's format"},   {"scales_digest", "the scales"},
                                                            {"device_class", "the device"},       {"build_line", "the build"},           {"page_size", "the page size"}};

std::string words_of(const PlanJson& subject, const char* key) {
  if (!subject.is_object() || !subject.contains(key)) return "nothing";
  return shortened(subject[key].is_string() ? subject[key].get<std::string>() : subject[key].dump(), 24);
}

std::vector<std::string> objections(const Record& record, const PlanJson& subject) {
  std::vector<std::string> found;
  if (record.broken_on_purpose) found.emplace_back("its run was broken on purpose");
  if (record.verdict != Verdict::pass) found.push_back(fmt::format("its verdict is {}", name(record.verdict)));
  const PlanJson qualified = record.subject;
  for (const auto& [key, what] : kSubject) {
    const bool same = subject.is_object() && subject.contains(key) && subject[key] == qualified.at(key);
    if (!same) found.push_back(fmt::format("{} is {} there and {} here", what, words_of(qualified, key), words_of(subject, key)));
  }
  return found;
}

}  // namespace

ComparisonGate read_gate(const std::string& record, const std::filesystem::path& folder, const PlanJson& subject) {
  ComparisonGate gate{.record = record, .words = ""};
  try {
    const Record qualified = read_record(folder / record);
    const std::vector<std::string> against = objections(qualified, subject);
    gate.passes = against.empty();
    gate.tested_tokens = qualified.longest_context_tokens;
    gate.words = gate.passes ? fmt::format("{} on {}: pass, up to {} tokens", words_of(subject, "candidate"), words_of(subject, "model"), qualified.longest_context_tokens) : fmt::format("{}", fmt::join(against, "; "));
  } catch (const Error& error) {
    gate.words = error.what();
  }
  return gate;
}

}  // namespace keel
