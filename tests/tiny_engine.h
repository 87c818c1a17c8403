// The repository's tiny model in an engine, for whole-system tests.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "text/chat_template.h"

namespace keel {

// Empty where the model is not at hand.
std::filesystem::path tiny_model();

// On the tests' device.
std::unique_ptr<Engine> tiny_engine(EngineOptions options = {});
ChatTemplate tiny_chat_template(const Engine& engine);

struct OfflineAnswer {
  std::string text;
  std::vector<TokenId> tokens;
  FinishReason finish = FinishReason::none;
};
// Runs one request to its end on this thread. Text before a stop is all the text there is.
OfflineAnswer run_offline(Engine& engine, const std::string& prompt, SamplingParams sampling);

}  // namespace keel
