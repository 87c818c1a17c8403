#include "text/gguf_pre_tokenizer.h"

#include <functional>
#include <map>

namespace keel {
namespace {

constexpr std::string_view kLlama3Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kQwen2Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

// Words change from capitals to small letters at most once; with the ends of English contractions, or without.
constexpr std::string_view kGpt4oPattern =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kTekkenPattern =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+)"
    R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*)"
    R"(|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kDeepseekV3Pattern =
    R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+)"
    R"(| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kSeedCoderPattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+)";

const std::map<std::string, GgufPreTokenizer, std::less<>>& known_pre_tokenizers() {
  static const GgufPreTokenizer kGpt2{.patterns = {kGpt2Pattern}};
  static const GgufPreTokenizer kSingleDigits{.patterns = {R"(\p{N})", kGpt2Pattern}};
  static const GgufPreTokenizer kLlama3{
      .patterns = {kLlama3Pattern}, .ignore_merges = true, .adds_bos = true};
  static const GgufPreTokenizer kLlama3Merging{.patterns = {kLlama3Pattern}};
  static const GgufPreTokenizer kQwen2{.patterns = {kQwen2Pattern}};
  static const std::map<std::string, GgufPreTokenizer, std::less<>> known = {
      {"default",
       {.patterns = {R"([\p{P}\$\+<=>\^~\|]+)", kGpt2Pattern, R"(\p{N}+)", "[0-9][0-9][0-9]"}}},
      {"gpt-2", kGpt2},
      {"phi-2", kGpt2},
      {"mpt", kGpt2},
      {"olmo", kGpt2},
      {"starcoder", kSingleDigits},
      {"refact", kSingleDigits},
      {"command-r", kSingleDigits},
      {"smollm", kSingleDigits},
      {"codeshell", kSingleDigits},
      {"llama3", kLlama3},
      {"llama-v3", kLlama3},
      {"llama-bpe", kLlama3},
      {"falcon3", kLlama3},
      {"pixtral", kLlama3},
      {"dbrx", kLlama3Merging},
      {"smaug-bpe", kLlama3Merging},
      {"qwen2", {.patterns = {kQwen2Pattern}, .nfc = true}},  // as the models' own tokenizer.json
      {"stablelm2", kQwen2},
      {"deepseek-r1-qwen", kQwen2},
      {"tekken", {.patterns = {kTekkenPattern}, .ignore_merges = true, .adds_bos = true}},
      {"gpt-4o", {.patterns = {kGpt4oPattern}}},  // Phi-4-mini
      {"llama4", {.patterns = {kGpt4oPattern}}},
      {"seed-coder", {.patterns = {kSeedCoderPattern}}},
      {"deepseek-v3",
       {.patterns = {R"(\p{N}{1,3})", R"([\x{4e00}-\x{9fa5}\x{3040}-\x{309f}\x{30a0}-\x{30ff}]+)", kDeepseekV3Pattern}}},
      {"deepseek-coder",
       {.patterns = {R"([\r\n])",
                     R"(\s?\p{L}+)",
                     R"(\s?\p{P}+)",
                     R"([\x{4e00}-\x{9fa5}\x{0800}-\x{4e00}\x{ac00}-\x{d7ff}]+)",
                     R"(\p{N})"}}},
      {"falcon", {.patterns = {R"([\p{P}\$\+<=>\^~\|`]+)", kGpt2Pattern, "[0-9][0-9][0-9]"}}},
  };
  return known;
}

}  // namespace

PreTokenizer GgufPreTokenizer::pre_tokenizer(const std::string& where) const {
  PreTokenizer result;
  for (const std::string_view pattern : patterns) {
    result.steps.emplace_back(Split{Regex(pattern, where), SplitBehavior::isolated});
  }
  return result;
}

const GgufPreTokenizer* find_gguf_pre_tokenizer(std::string_view name) {
  const auto found = known_pre_tokenizers().find(name);
  return found == known_pre_tokenizers().end() ? nullptr : &found->second;
}

}  // namespace keel
