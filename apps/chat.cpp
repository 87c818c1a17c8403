// keel chat: a conversation at a terminal, or one answer with --prompt.
#include <unistd.h>

#include <csignal>
#include <iostream>

#include "base/error.h"
#include "base/log.h"
#include "options.h"
#include "sampling_flags.h"

namespace keel {
namespace {

struct ChatFlags {
  ModelFlags model;
  EngineFlags engine;
  SamplingFlags sampling;
  std::string system, prompt, template_file;
};

volatile std::sig_atomic_t interrupted = 0;

// Prints the answer as it comes; Ctrl-C ends the answer, not the program.
std::string answer(Engine& engine, const ChatTemplate& chat_template, const Json& messages, const SamplingParams& sampling) {
  const std::string prompt = render_chat(chat_template, *engine.tokenizer(), {{"messages", messages}});
  Request request{.prompt = engine.tokenizer()->encode(prompt, {.add_special = false, .parse_special = true}),
                  .sampling = sampling};
  const auto room = engine.attestation().max_model_len - static_cast<std::int64_t>(request.prompt.size());
  if (room < 1) fail("the conversation has {} tokens, the longest context here is {}", request.prompt.size(), engine.attestation().max_model_len);
  request.sampling.max_tokens = std::min(request.sampling.max_tokens, room);
  std::string text, error;
  bool cut = false;
  const Submitted submitted = engine.submit(std::move(request), [&](const Output& output) {
    text += output.text;
    error = output.error;
    cut = output.finish == FinishReason::length;
    std::cout << output.text << std::flush;
  });
  if (submitted.status != SubmitStatus::accepted) fail("{}", submitted.message);
  interrupted = 0;
  while (engine.has_work()) {
    if (interrupted) engine.cancel(submitted.id);
    engine.step();
  }
  std::cout << '\n';
  if (cut) log_info("cut at {} tokens; --max-tokens allows more", sampling.max_tokens);
  if (!error.empty()) fail("{}", error);
  return text;
}

void chat(const ChatFlags& flags) {
  const std::unique_ptr<Engine> engine = open_engine(flags.model, flags.engine);
  print_attestation(engine->attestation());
  if (engine->tokenizer() == nullptr) fail("{}: no tokenizer beside the weights", flags.model.model);
  const auto chat_template = open_chat_template(*engine->tokenizer(), flags.template_file);
  if (!chat_template) fail("{}: the tokenizer brings no chat template; give one with --chat-template FILE", flags.model.model);

  Json messages = Json::array();
  if (!flags.system.empty()) messages.push_back({{"role", "system"}, {"content", flags.system}});
  const SamplingParams sampling = flags.sampling.params(engine->config());
  if (!flags.prompt.empty()) {
    messages.push_back({{"role", "user"}, {"content", flags.prompt}});
    answer(*engine, *chat_template, messages, sampling);
    return;
  }
  const bool terminal = isatty(STDIN_FILENO);
  if (terminal) std::cout << "Write a message and press Enter. /reset starts over, /quit or Ctrl-D ends.\n";
  std::signal(SIGINT, [](int) { interrupted = 1; });
  const Json start = messages;
  for (std::string line; (terminal ? std::cout << "> " << std::flush : std::cout), std::getline(std::cin, line);) {
    if (line == "/quit") break;
    if (line == "/reset") {
      messages = start;
      continue;
    }
    if (line.empty()) continue;
    messages.push_back({{"role", "user"}, {"content", line}});
    const std::string text = answer(*engine, *chat_template, messages, sampling);
    messages.push_back({{"role", "assistant"}, {"content", text}});
  }
}

}  // namespace

void add_chat(CLI::App& app) {
  auto flags = std::make_shared<ChatFlags>();
  flags->sampling.max_tokens = 1024;
  CLI::App* command = app.add_subcommand("chat", "Talk to a model at the terminal");
  flags->model.add_to(*command);
  flags->engine.add_to(*command);
  flags->sampling.add_to(*command);
  command->add_option("-p,--prompt", flags->prompt, "Answer this and end");
  command->add_option("--system", flags->system, "System message");
  command->add_option("--chat-template", flags->template_file, "File with another chat template");
  command->callback([flags] { chat(*flags); });
}

}  // namespace keel
