// keel scan MODEL: are its keys or values fragile, why, and what to run next.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "base/option_error.h"
#include "base/text_file.h"
#include "lab/quality/builtin_prose.h"
#include "lab/scan/scan_report.h"
#include "options.h"

namespace keel {
namespace {

constexpr std::int64_t kMostProbeTokens = std::int64_t{1} << 22;  // each is decoded in some twenty roundings

struct ScanFlags {
  ModelFlags model;
  ProbePlan plan;
  std::string data, html, device = "cpu";
  std::optional<std::uint64_t> random_tokens;
  std::optional<std::int64_t> layer_tokens;
  bool weights_only = false, json = false;
  int threads = 0;
};

// The document's own BOS, where the tokenizer puts one in front of a text.
std::optional<std::int32_t> leading_bos(const Tokenizer& tokenizer) {
  const std::vector<TokenId> ids = tokenizer.encode("a", {.add_special = true});
  return !ids.empty() && tokenizer.bos() == ids.front() ? tokenizer.bos() : std::nullopt;
}

ProbeText probe_text(const ScanFlags& flags, const ModelPath& path, const ModelConfig& config) {
  if (flags.random_tokens) return random_documents(config.vocabulary, *flags.random_tokens, flags.plan);
  std::shared_ptr<const Tokenizer> tokenizer;
  std::string why = "no tokenizer beside the weights";
  try {
    tokenizer = open_tokenizer(path);
  } catch (const Error& error) {
    why = error.what();
  }
  if (!tokenizer) fail("{}; without one, scan with --weights-only or probe with --random-tokens SEED", why);
  const std::string text = flags.data.empty() ? std::string(builtin_prose()) : read_text_file(flags.data);
  const std::string source = flags.data.empty() ? "the built-in prose" : std::filesystem::path(flags.data).filename().string();
  return cut_documents(source, tokenizer->encode(text, {}), leading_bos(*tokenizer), flags.plan);
}

void scan(ScanFlags flags) {
  if (flags.device != "cpu") refuse_option("--device {}: the probe changes keys and values between two operations, which only the CPU can", flags.device);
  if (flags.plan.documents > kMostProbeTokens / flags.plan.tokens) {
    refuse_option("--documents {} of --tokens {}: wanted at most {} tokens in all", flags.plan.documents, flags.plan.tokens, kMostProbeTokens);
  }
  if (flags.plan.layer_documents > flags.plan.documents) {
    refuse_option("--layer-documents {} is more than --documents {}", flags.plan.layer_documents, flags.plan.documents);
  }
  flags.plan.layer_tokens = flags.layer_tokens.value_or(std::min(flags.plan.layer_tokens, flags.plan.tokens));
  if (flags.plan.layer_tokens > flags.plan.tokens) refuse_option("--layer-tokens {} is more than --tokens {}", flags.plan.layer_tokens, flags.plan.tokens);
  const ModelPath path = flags.model.path();
  const LoadedModel model = load_model(path, flags.model.load_options());
  Scan result{.model = flags.model.model, .weights = model.weights.format, .config = model.config, .biases = scan_weights(model), .probe = {}};
  if (!flags.weights_only) {
    WorkerPool workers(flags.threads);
    result.probe = probe_model(model, probe_text(flags, path, model.config), flags.plan, workers);
  }
  const ScanVerdict verdict = judge(result);
  if (!flags.html.empty()) write_text_file(flags.html, to_html(result, verdict));
  if (flags.json) {
    fmt::print("{}\n", as_json(result, verdict).dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
  } else {
    fmt::print("{}", to_table(result, verdict));
  }
}

}  // namespace

void add_scan(CLI::App& app) {
  auto flags = std::make_shared<ScanFlags>();
  CLI::App* command = app.add_subcommand("scan", "Whether a model's keys or values are fragile, why, and what to run next");
  flags->model.add_to(*command);
  command->add_option("--device", flags->device, "The probe runs on the CPU")->check(CLI::IsMember({"cpu", "cuda", "auto"}))->capture_default_str();
  CLI::Option* weights_only = command->add_flag("--weights-only", flags->weights_only, "Config and weights alone: no forward pass");
  CLI::Option* data = command->add_option("--data", flags->data, "Text to probe with, instead of the built-in prose")->excludes(weights_only);
  command->add_option("--random-tokens", flags->random_tokens, "Probe with tokens drawn from this seed: for a model without a tokenizer")->check(whole_number())->excludes(weights_only)->excludes(data);
  command->add_option("--documents", flags->plan.documents, "Documents of the probe")->check(CLI::Range(kScreenPrompts, std::int64_t{1} << 16))->capture_default_str();
  command->add_option("--tokens", flags->plan.tokens, "Tokens of each")->check(CLI::Range(std::int64_t{2}, std::int64_t{1} << 20))->capture_default_str();
  command->add_option("--layer-documents", flags->plan.layer_documents, "Of the documents, those for each layer alone")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 16))
      ->capture_default_str();
  command->add_option("--layer-tokens", flags->layer_tokens, "Of those documents' tokens (128, or --tokens where that is less)")->check(CLI::Range(std::int64_t{2}, std::int64_t{1} << 20));
  command->add_option("-t,--threads", flags->threads, "Threads that compute; 0 = one a processor")->check(CLI::Range(0, 1024))->capture_default_str();
  command->add_option("--html", flags->html, "Also a page with charts");
  command->add_flag("--json", flags->json, "As JSON, with every channel and layer");
  command->callback([flags] { scan(*flags); });
}

}  // namespace keel
