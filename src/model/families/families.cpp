#include <algorithm>
#include <utility>
#include <vector>

#include "base/error.h"
#include "files/printable.h"
#include "model/families/family.h"

namespace keel {
namespace {

constexpr const Family* kFamilies[] = {&kLlama, &kMistral, &kQwen2, &kQwen3, &kPhi3};

// Why some well-known architectures are out of reach; the first that is part of the name counts.
constexpr std::pair<std::string_view, std::string_view> kReasons[] = {
    {"GptOss", " (attention sinks and mixture of experts)"},
    {"gpt-oss", " (attention sinks and mixture of experts)"},
    {"Gemma", " (soft caps, scaled embeddings and norms of 1 + w)"},
    {"gemma", " (soft caps, scaled embeddings and norms of 1 + w)"},
    {"Deepseek", " (latent attention and mixture of experts)"},
    {"deepseek", " (latent attention and mixture of experts)"},
    {"Mixtral", " (mixture of experts)"},
    {"Moe", " (mixture of experts)"},
    {"moe", " (mixture of experts)"},
    {"Qwen3Next", " (linear attention)"},
    {"Qwen3_5", " (linear attention)"},
    {"Granite", " (scaled residuals and logits)"},
    {"SmolLM3", " (layers without RoPE)"},
};

std::string_view reason_for(std::string_view architecture) {
  for (const auto& [part, reason] : kReasons) {
    if (architecture.find(part) != std::string_view::npos) return reason;
  }
  return "";
}

[[noreturn]] void refuse(const std::string& label,
                         std::string_view architecture,
                         std::string_view Family::*field) {
  std::vector<std::string_view> supported;
  for (const Family* family : kFamilies) {
    const std::string_view name = family->*field;
    if (!name.empty()) supported.push_back(name);
  }
  fail("{}: the architecture {} is not supported{}; supported: {}",
       label,
       printable(architecture),
       reason_for(architecture),
       fmt::join(supported, ", "));
}

}  // namespace

std::span<const Family* const> families() {
  return kFamilies;
}

const Family& family_named(std::string_view name) {
  const auto* found = std::ranges::find(kFamilies, name, &Family::name);
  check(found != std::end(kFamilies), "a config names a known family");
  return **found;
}

const Family& family_of_hf(const std::string& label, std::string_view architecture) {
  const auto* found = std::ranges::find(kFamilies, architecture, &Family::architecture);
  if (found == std::end(kFamilies)) refuse(label, architecture, &Family::architecture);
  return **found;
}

const Family& family_of_gguf(const std::string& label, std::string_view architecture) {
  const auto* found = std::ranges::find(kFamilies, architecture, &Family::gguf_architecture);
  if (architecture.empty() || found == std::end(kFamilies)) {
    refuse(label, architecture, &Family::gguf_architecture);
  }
  return **found;
}

void limit_context(ModelConfig& config, std::int64_t tokens, const std::string& reason) {
  if (tokens >= config.max_positions || (config.context_limit && *config.context_limit <= tokens))
    return;
  config.context_limit = tokens;
  config.context_limit_reason = reason;
}

}  // namespace keel
