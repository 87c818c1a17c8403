#include "text/tokenizer_json_steps.h"

#include <map>

#include "base/error.h"

namespace keel {
namespace {

using nlohmann::json;

constexpr std::string_view kSpaceMark = "\xe2\x96\x81";  // ▁, U+2581

// Calls visit(step) for the object itself, or in order for what its (nested) Sequence holds.
template <class Visit>
void for_each_step(const FileFields& fields, const char* list, const Visit& visit, int depth = 0) {
  constexpr int kDeepest = 8;
  if (fields.text("type") != "Sequence") return visit(fields);
  if (depth == kDeepest) fail("{}: more than {} Sequences in each other", fields.where, kDeepest);
  for (const json& entry : fields.array(list))
    for_each_step(FileFields(entry, fields.where), list, visit, depth + 1);
}

[[noreturn]] void refuse(const FileFields& step) {
  fail("{}: the type {:?} is not supported", step.where, step.text("type"));
}

std::variant<std::string, Regex> read_pattern(const FileFields& step) {
  const FileFields pattern = step.inside("pattern");
  if (pattern.has("Regex")) return Regex(pattern.text("Regex"), pattern.where);
  std::string text = pattern.text("String");
  if (text.empty()) fail("{}: an empty string", pattern.where);
  return text;
}

SplitBehavior read_behavior(const FileFields& step, const char* otherwise) {
  static const std::map<std::string, SplitBehavior> kBehaviors = {
      {"Removed", SplitBehavior::removed},
      {"Isolated", SplitBehavior::isolated},
      {"MergedWithPrevious", SplitBehavior::merged_with_previous},
      {"MergedWithNext", SplitBehavior::merged_with_next},
      {"Contiguous", SplitBehavior::contiguous}};
  const auto found = kBehaviors.find(step.text_or("behavior", otherwise));
  if (found == kBehaviors.end())
    fail("{}: the behavior {:?} is not supported", step.where, step.text_or("behavior", otherwise));
  return found->second;
}

std::string read_replacement(const FileFields& step) {
  std::string text = step.text_or("replacement", std::string(kSpaceMark));
  if (text.empty() || decode_utf8(text, 0).length != static_cast<int>(text.size()))
    fail("{}: the replacement {:?} is not one character", step.where, text);
  return text;
}

Metaspace::Prepending read_prepending(const FileFields& step) {
  // Files older than prepend_scheme have add_prefix_space alone.
  const std::string scheme =
      step.text_or("prepend_scheme", step.flag_or("add_prefix_space", true) ? "always" : "never");
  if (scheme == "always") return Metaspace::Prepending::always;
  if (scheme == "first") return Metaspace::Prepending::first;
  if (scheme == "never") return Metaspace::Prepending::never;
  fail("{}: the prepend_scheme {:?} is not supported", step.where, scheme);
}

std::size_t read_count(const FileFields& step, const char* key) {
  const std::int64_t count = step.integer(key);
  if (count < 0) fail("{}: \"{}\" is {}", step.where, key, count);
  return static_cast<std::size_t>(count);
}

}  // namespace

void read_normalizer(const FileFields& fields, Normalizer& normalizer) {
  static const std::map<std::string, NormalForm> kForms = {{"NFC", NormalForm::nfc},
                                                           {"NFD", NormalForm::nfd},
                                                           {"NFKC", NormalForm::nfkc},
                                                           {"NFKD", NormalForm::nfkd}};
  for_each_step(fields, "normalizers", [&](const FileFields& step) {
    const std::string type = step.text("type");
    if (const auto form = kForms.find(type); form != kForms.end()) {
      normalizer.steps.emplace_back(form->second);
    } else if (type == "Lowercase") {
      normalizer.steps.emplace_back(Lowercase{});
    } else if (type == "Strip") {
      normalizer.steps.emplace_back(
          StripSpace{step.flag_or("strip_left", true), step.flag_or("strip_right", true)});
    } else if (type == "Prepend") {
      normalizer.steps.emplace_back(Prepend{step.text("prepend")});
    } else if (type == "Replace") {
      normalizer.steps.emplace_back(Replace{read_pattern(step), step.text("content")});
    } else {
      refuse(step);
    }
  });
}

bool read_pre_tokenizer(const FileFields& fields, PreTokenizer& pre_tokenizer) {
  bool byte_level = false;
  auto& steps = pre_tokenizer.steps;
  for_each_step(fields, "pretokenizers", [&](const FileFields& step) {
    const std::string type = step.text("type");
    if (byte_level) fail("{}: {} after ByteLevel is not supported", step.where, type);
    if (type == "Split") {
      steps.emplace_back(
          Split{read_pattern(step), read_behavior(step, ""), step.flag_or("invert", false)});
    } else if (type == "ByteLevel") {
      if (step.flag_or("add_prefix_space", true)) steps.emplace_back(PrefixSpace{});
      if (step.flag_or("use_regex", true))
        steps.emplace_back(Split{Regex(kGpt2Pattern, step.where), SplitBehavior::isolated});
      byte_level = true;
    } else if (type == "Digits") {
      steps.emplace_back(SplitDigits{step.flag_or("individual_digits", false)});
    } else if (type == "Punctuation") {
      steps.emplace_back(SplitPunctuation{read_behavior(step, "Isolated")});
    } else if (type == "WhitespaceSplit") {
      steps.emplace_back(SplitWhiteSpace{});
    } else if (type == "Metaspace") {
      steps.emplace_back(
          Metaspace{read_replacement(step), read_prepending(step), step.flag_or("split", true)});
    } else {
      refuse(step);
    }
  });
  return byte_level;
}

void read_decoder(const FileFields& fields, TokenDecoder& decoder) {
  bool fused = false;  // what follows sees the whole text, where keel sees one token
  bool bytes = false;  // what follows sees single bytes of characters
  for_each_step(fields, "decoders", [&](const FileFields& step) {
    const std::string type = step.text("type");
    if (type == "Fuse") {
      fused = true;
    } else if (type == "Strip") {
      DecodeStrip strip{
          step.text("content"), read_count(step, "start"), read_count(step, "stop"), fused};
      if (strip.character.empty()) fail("{}: Strip without a character", step.where);
      if (fused && (strip.start > 1 || strip.stop > 0))
        fail(
            "{}: Strip of {} at the start and {} at the end after Fuse is not supported (1 and 0 "
            "are)",
            step.where,
            strip.start,
            strip.stop);
      decoder.steps.emplace_back(std::move(strip));
    } else if (fused) {
      fail("{}: {} after Fuse is not supported", step.where, type);
    } else if (type == "ByteLevel") {
      decoder.steps.emplace_back(DecodeByteLevel{});
      bytes = true;
    } else if (type == "ByteFallback") {
      decoder.steps.emplace_back(DecodeByteFallback{});
      bytes = true;
    } else if (type == "Replace") {
      Replace replace{read_pattern(step), step.text("content")};
      if (bytes && std::holds_alternative<Regex>(replace.pattern))
        fail("{}: Replace by a regular expression after bytes is not supported", step.where);
      decoder.steps.emplace_back(std::move(replace));
    } else if (type == "Metaspace") {
      decoder.steps.emplace_back(DecodeMetaspace{
          read_replacement(step), read_prepending(step) != Metaspace::Prepending::never});
    } else {
      refuse(step);
    }
  });
}

Surroundings read_post_processor(const FileFields& fields) {
  Surroundings around;
  for_each_step(fields, "processors", [&](const FileFields& step) {
    const std::string type = step.text("type");
    if (type == "ByteLevel") return;  // moves offsets, which nobody asks for here
    if (type != "TemplateProcessing") refuse(step);
    std::vector<TokenId> before, after;
    bool seen_text = false;
    for (const json& entry : step.array("single")) {
      const FileFields item(entry, step.where + ", \"single\"");
      if (item.has("Sequence")) {
        if (seen_text) fail("{}: the text stands there twice", item.where);
        seen_text = true;
        continue;
      }
      const std::string name = item.inside("SpecialToken").text("id");
      const FileFields token = step.inside("special_tokens").inside(name.c_str());
      for (const json& id : token.array("ids")) {
        if (!id.is_number_integer()) fail("{}: the id {}", token.where, id.dump());
        const auto value = id.get<std::int64_t>();
        if (value < 0 || value > INT32_MAX) fail("{}: the id {}", token.where, value);
        (seen_text ? after : before).push_back(static_cast<TokenId>(value));
      }
    }
    if (!seen_text) fail("{}: the text itself is left out of \"single\"", step.where);
    around.prefix.insert(around.prefix.begin(), before.begin(), before.end());
    around.suffix.insert(around.suffix.end(), after.begin(), after.end());
  });
  return around;
}

}  // namespace keel
