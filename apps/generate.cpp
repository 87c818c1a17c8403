// keel generate: prompts to text, offline.
#include <unistd.h>

#include <cstdio>
#include <iostream>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/log.h"
#include "base/text_file.h"
#include "options.h"
#include "sampling_flags.h"

namespace keel {
namespace {

struct GenerateFlags {
  ModelFlags model;
  EngineFlags engine;
  SamplingFlags sampling;
  std::vector<std::string> prompts;
  std::string prompt_file;
  bool jsonl = false;
};

struct Answer {
  std::string text, finish, error;
  std::int64_t prompt_tokens = 0, completion_tokens = 0;
  std::vector<TokenId> tokens;
};

int generate(const GenerateFlags& flags) {
  std::vector<std::string> prompts = flags.prompts;
  if (!flags.prompt_file.empty()) prompts.push_back(read_text_file(flags.prompt_file));
  if (prompts.empty()) throw CLI::RequiredError("no prompt: --prompt TEXT (any number of times) or --prompt-file FILE");
  const std::unique_ptr<Engine> engine = open_engine(flags.model, flags.engine);
  print_attestation(engine->attestation());
  if (engine->tokenizer() == nullptr) fail("{}: no tokenizer beside the weights, so no prompt can be read", flags.model.model);

  std::vector<Answer> answers(prompts.size());
  const bool stream = prompts.size() == 1 && !flags.jsonl;
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    Request request{.prompt = engine->tokenizer()->encode(prompts[i], {.add_special = true, .parse_special = true}),
                    .sampling = flags.sampling.params(engine->config())};
    const Submitted submitted = engine->submit(std::move(request), [&, i](const Output& output) {
      Answer& answer = answers[i];
      answer.text += output.text;
      answer.tokens.insert(answer.tokens.end(), output.tokens.begin(), output.tokens.end());
      answer.prompt_tokens = output.prompt_tokens;
      answer.completion_tokens = output.completion_tokens;
      answer.finish = name(output.finish);
      answer.error = output.error;
      if (stream) std::cout << output.text << std::flush;
    });
    if (submitted.status != SubmitStatus::accepted) fail("prompt {}: {}", i + 1, submitted.message);
  }
  while (engine->has_work()) engine->step();

  int failures = 0;
  for (std::size_t i = 0; i < answers.size(); ++i) {
    const Answer& answer = answers[i];
    if (!answer.error.empty()) ++failures, log_line("error", fmt::format("prompt {}: {}", i + 1, answer.error));
    if (flags.jsonl) {
      std::cout << nlohmann::ordered_json{{"prompt", prompts[i]}, {"text", answer.text}, {"finish_reason", answer.finish},
                                          {"prompt_tokens", answer.prompt_tokens},
                                          {"completion_tokens", answer.completion_tokens}, {"token_ids", answer.tokens}}
                       .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace)
                << '\n';
    } else {
      if (!stream) std::cout << (i > 0 ? "\n" : "") << "--- " << i + 1 << '\n' << answer.text;
      std::cout << '\n';
    }
  }
  return failures == 0 ? 0 : 1;
}

}  // namespace

void add_generate(CLI::App& app) {
  auto flags = std::make_shared<GenerateFlags>();
  CLI::App* command = app.add_subcommand("generate", "Continue prompts, without a server");
  flags->model.add_to(*command);
  flags->engine.add_to(*command);
  flags->sampling.add_to(*command);
  command->add_option("-p,--prompt", flags->prompts, "Text to continue; may be given more than once")->allow_extra_args(false);
  command->add_option("--prompt-file", flags->prompt_file, "File whose text is one prompt");
  command->add_flag("--jsonl", flags->jsonl, "One JSON object a prompt");
  command->callback([flags] {
    if (generate(*flags) != 0) throw CLI::RuntimeError(1);
  });
}

}  // namespace keel
