// keel serve: the OpenAI-compatible server.
#include <sys/resource.h>

#include <cstdlib>

#include "base/bytes.h"
#include "base/error.h"
#include "base/log.h"
#include "options.h"
#include "server/server.h"

namespace keel {
namespace {

struct ServeFlags {
  ModelFlags model;
  EngineFlags engine;
  ServerOptions server;
  std::string template_file, generation_config = "auto", max_body = "16MiB";
  std::int64_t shutdown_timeout = 30;
};

// Each connection takes a file, and the usual soft limit is 1,024: takes what the hard limit allows.
void raise_open_file_limit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
  if (limit.rlim_max < 1024) log_warning("{} open files are all this process may have, so fewer connections than that", limit.rlim_max);
}

void serve(ServeFlags& flags) {
  flags.server.max_body_bytes = static_cast<std::size_t>(parse_bytes(flags.max_body));
  flags.server.shutdown_timeout = std::chrono::seconds(flags.shutdown_timeout);
  flags.server.model_sampling_defaults = flags.generation_config == "auto";
  flags.engine.options.attention_plans = true;
  const std::unique_ptr<Engine> engine = open_engine(flags.model, flags.engine);
  if (engine->tokenizer() == nullptr) fail("{}: no tokenizer beside the weights, so no request can be read", flags.model.model);
  const auto chat_template = open_chat_template(*engine->tokenizer(), flags.template_file);
  print_attestation(engine->attestation());
  raise_open_file_limit();
  const int code = run_server(*engine, chat_template.get(), flags.server);
  if (code != 0) throw CLI::RuntimeError(code);
}

}  // namespace

void add_serve(CLI::App& app) {
  auto flags = std::make_shared<ServeFlags>();
  CLI::App* command = app.add_subcommand("serve", "Serve a model through OpenAI's API");
  flags->model.add_to(*command);
  flags->engine.add_to(*command);
  ServerOptions& server = flags->server;
  const CLI::Validator some_text([](const std::string& text) { return text.empty() ? "wanted some text, found none" : ""; }, "");  // "$UNSET"
  command->add_option("--host", server.host, "Address to listen on")->check(some_text)->capture_default_str();
  command->add_option("--port", server.port, "Port; 0 = any free one")->capture_default_str();
  command->add_option("--api-key", server.api_keys, "Key that requests must bring; may be given more than once (KEEL_API_KEY adds one)")->check(some_text)->allow_extra_args(false);
  command->add_option("--served-model-name", server.served_model_names, "Name that requests use; may be given more than once")->check(some_text);
  command->add_option("--chat-template", flags->template_file, "File with another chat template");
  command->add_option("--generation-config", flags->generation_config, "auto: the model's sampling defaults; vllm: OpenAI's")
      ->check(CLI::IsMember({"auto", "vllm"}))
      ->capture_default_str();
  command->add_option("--max-body-bytes", flags->max_body, "Largest request body")->capture_default_str();
  command->add_option("--shutdown-timeout", flags->shutdown_timeout, "Seconds that running requests get after SIGTERM")
      ->check(CLI::Range(std::int64_t{0}, std::int64_t{86'400}))
      ->capture_default_str();
  command->add_flag("--vllm-metric-names", server.vllm_metric_names, "Metrics under vLLM's names, for its dashboards");
  command->callback([flags] { serve(*flags); });
}

}  // namespace keel
