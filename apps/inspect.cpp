// keel inspect MODEL: what it is and what would run. keel inspect kernels: what this build can do.
#include <fmt/format.h>

#include "base/bytes.h"
#include "base/log.h"
#include "kernels/cpu_features.h"
#include "kernels/paged_attention/paged_attention.h"
#include "options.h"

namespace keel {
namespace {

struct InspectFlags {
  ModelFlags model;
  EngineFlags engine;
  bool json = false;
};

std::string joined(const std::vector<std::string>& words) { return fmt::format("{}", fmt::join(words, ", ")); }

void inspect_cuda_kernels() {
  const std::vector<CudaCell> cells = cuda_cells();
  if (cells.empty()) {
    fmt::print("\nCUDA: not in this build\n");
    return;
  }
  fmt::print("\nCUDA (compute capability 9.0): models in f16 or bf16, page size 16, 1 to 16 query heads a KV head in decode.\n"
             "Prompts take cuDNN on fresh activations or gathered pages; `plain` is keel's own kernel, for every shape.\n\n");
  fmt::print("{:<12} {:>8} {:>8} {:>8} {:>8}\n", "format", "head dim", "decode", "cuDNN", "plain");
  const auto cell = [](const std::string& refusal, const char* otherwise) { return refusal.empty() ? "yes" : otherwise; };
  for (const CudaCell& row : cells) {
    fmt::print("{:<12} {:>8} {:>8} {:>8} {:>8}\n", short_name(row.format), row.head_dim,
               cell(row.decode, row.plain_prefill.empty() ? "plain" : "-"), cell(row.native_prefill, "-"), cell(row.plain_prefill, "-"));
  }
  fmt::print("\nWeights on CUDA: f16, bf16, AWQ int4 g128 as they are; the others are held in f16\n");
}

void inspect_kernels() {
  fmt::print("CPU instruction sets, best first: {} (in use: {})\n\n", joined(supported_targets()), chosen_target());
  fmt::print("Paged attention, KV write: head dim a multiple of 16 up to 256, any query heads a KV head, page size a multiple\n"
             "of {} up to {}; decode, prefill, chunk and cached prefix are one operation.\n\n", kPageSizeStep, kMaxPageSize);
  fmt::print("{:<12} {:<28} {:>6}\n", "format", "types", "device");
  for (const KvFormat& format : paged_attention_formats()) {
    const std::string brief = short_name(format), exact = to_string(format);
    fmt::print("{:<12} {:<28} {:>6}\n", brief == exact ? "-" : brief, exact, "cpu");
  }
  fmt::print("\nWeights: f32, f16, bf16, q8_0, q4_0, q4_1, q4_K, q5_K, q6_K, AWQ int4 g128 (cpu)\n");
  inspect_cuda_kernels();
}

nlohmann::ordered_json as_json(const Attestation& a) {
  nlohmann::ordered_json json = {{"model", a.model}, {"family", a.family}, {"weights", a.weights_format}, {"weight_bytes", a.weight_bytes},
          {"kv_cache", short_name(a.format)}, {"key_type", name(a.format.key)}, {"value_type", name(a.format.value)},
          {"scales", a.scales}, {"bytes_per_token", a.bytes_per_token}, {"page_size", a.page_size}, {"pages", a.pages},
          {"slots", a.slots}, {"kv_cache_bytes", a.pool_bytes}, {"scratch_bytes", a.scratch_bytes},
          {"max_model_len", a.max_model_len}, {"device", a.device}, {"cpu_target", a.cpu_target}, {"threads", a.threads}};
  if (const DeviceMemory& m = a.device_memory; m.total > 0) {
    json["device_memory"] = {{"weights", m.weights}, {"workspace", m.workspace}, {"cache", m.cache}, {"other", m.other()},
                             {"in_use", m.in_use}, {"total", m.total}, {"peak", m.peak}};
  }
  return json;
}

void inspect_model(const InspectFlags& flags) {
  const std::unique_ptr<Engine> engine = open_engine(flags.model, flags.engine);
  const ModelConfig& config = engine->config();
  const Attestation& a = engine->attestation();
  if (flags.json) {
    fmt::print("{}\n", as_json(a).dump(2));
    return;
  }
  const auto row = [](const char* what, const std::string& value) { fmt::print("{:<16} {}\n", what, value); };
  row("model", fmt::format("{} ({})", a.model, config.architecture));
  row("shape", fmt::format("{} layers, hidden {}, {} query and {} KV heads of {}, feed-forward {}, vocabulary {}{}", config.layers,
                           config.hidden, config.heads, config.kv_heads, config.head_dim, config.intermediate,
                           config.vocabulary, config.tied_head ? ", tied head" : ""));
  row("weights", fmt::format("{}, {}", a.weights_format, format_bytes(a.weight_bytes)));
  row("tokenizer", engine->tokenizer() ? engine->tokenizer()->description() : "none");
  row("KV cache", fmt::format("{}: keys {}, values {}", short_name(a.format), name(a.format.key), name(a.format.value)));
  row("scales", a.scales);
  row("bytes a token", fmt::format("{} (k16v16: {})", a.bytes_per_token,
                                   KvLayout({DType::f16, DType::f16}, {config.layers, config.kv_heads, config.head_dim}).bytes_per_token()));
  row("pages", fmt::format("{} of {} tokens: {} slots, {} bytes allocated", a.pages, a.page_size, a.slots, a.pool_bytes));
  row("longest context", std::to_string(a.max_model_len));
  row("scratch", format_bytes(a.scratch_bytes));
  row("device", a.device);
  if (const DeviceMemory& m = a.device_memory; m.total > 0) {
    row("GPU memory", fmt::format("{} of {} in use: weights {}, workspace {}, KV cache {}, others {}; peak of the first three {}", m.in_use, m.total, m.weights,
                                  m.workspace, m.cache, m.other(), m.peak));
  }
}

}  // namespace

void add_inspect(CLI::App& app) {
  auto flags = std::make_shared<InspectFlags>();
  CLI::App* command = app.add_subcommand("inspect", "What a model is and what would run; `inspect kernels`: what this build can do");
  flags->model.add_to(*command);
  flags->engine.add_to(*command);
  command->add_flag("--json", flags->json, "As JSON");
  command->callback([flags] { flags->model.model == "kernels" ? inspect_kernels() : inspect_model(*flags); });
}

}  // namespace keel
