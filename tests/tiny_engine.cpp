#include "tiny_engine.h"

#include "test_device.h"

namespace keel {

std::filesystem::path tiny_model() {
  for (const std::filesystem::path& folder :
       {std::filesystem::path(KEEL_SOURCE_DIR) / "models/tiny", std::filesystem::path(KEEL_SHARED_DIR) / "models/tiny"}) {
    if (std::filesystem::exists(folder / "model.safetensors")) return folder;
  }
  return {};
}

std::unique_ptr<Engine> tiny_engine(EngineOptions options) {
  if (options.kv_cache_memory_bytes == 0) options.kv_cache_memory_bytes = 64 << 20;
  if (options.threads == 0) options.threads = 2;
  if (options.device == "auto") options.device = test_device_name();
  std::shared_ptr<const Tokenizer> tokenizer = load_tokenizer(tiny_model());
  return std::make_unique<Engine>(load_model(find_model(tiny_model().string()), {}), tokenizer, "tiny", options);
}

ChatTemplate tiny_chat_template(const Engine& engine) { return ChatTemplate(engine.tokenizer()->chat_template()); }

OfflineAnswer run_offline(Engine& engine, const std::string& prompt, SamplingParams sampling) {
  OfflineAnswer answer;
  const Submitted submitted = engine.submit(
      {.prompt = engine.tokenizer()->encode(prompt, {.add_special = true, .parse_special = true}), .sampling = sampling},
      [&](const Output& output) {
        answer.text += output.text;
        answer.tokens.insert(answer.tokens.end(), output.tokens.begin(), output.tokens.end());
        answer.finish = output.finish;
      });
  check(submitted.status == SubmitStatus::accepted, "the engine takes the test's request");
  while (engine.has_work()) engine.step();
  return answer;
}

}  // namespace keel
