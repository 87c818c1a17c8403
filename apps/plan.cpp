// keel plan CONFIG|MODEL: what a KV cache costs and holds in every format, calculated.
#include <fmt/format.h>

#include "base/bytes.h"
#include "base/option_error.h"
#include "base/text_file.h"
#include "lab/byte_plan_report.h"
#include "model/json_object.h"
#include "options.h"

namespace keel {
namespace {

struct PlanFlags {
  std::string model, pool, gpu_memory, reserved, transfer, curve, html, dtype = "auto";
  std::vector<std::string> formats;
  PlanOptions options;
  std::vector<LinkWorkload> workloads = default_workloads();
  bool json = false;
};

// The file is all this command reads: whatever is wrong with it is wrong with the command line.
ModelConfig read_config(const ModelPath& path) {
  if (path.kind == ModelFiles::gguf) return read_gguf_config(GgufFile(path.path));
  const std::filesystem::path file = path.kind == ModelFiles::hf_folder ? path.path / "config.json" : path.path;
  const JsonObject json = JsonObject::read(file);
  if (json.has("kv_lora_rank")) {
    fail("{}: kv_lora_rank {}: a compressed-latent cache (MLA) holds no separate keys and values, so formats of K and V do not apply to it; "
         "keel does not serve it", json.label(), json.text("kv_lora_rank"));
  }
  return read_hf_config(file);
}

std::int64_t bytes_of(const char* flag, const std::string& text, std::int64_t least) {
  if (text.empty()) return 0;
  const std::int64_t bytes = parse_bytes(text);
  if (bytes < least) refuse_option("{} must be at least {} bytes, found {}", flag, least, text);
  return bytes;
}

void plan(PlanFlags flags) {
  PlanOptions& options = flags.options;
  options.pool_bytes = bytes_of("--kv-cache-memory-bytes", flags.pool, 1);
  options.gpu_memory_bytes = bytes_of("--gpu-memory", flags.gpu_memory, 1);
  options.reserved_bytes = bytes_of("--reserved-memory", flags.reserved, 0);
  if (!flags.transfer.empty()) options.transfer_bytes = bytes_of("--max-transfer-bytes", flags.transfer, 1);
  options.workloads = flags.workloads;
  BytePlan result;
  try {
    const ModelPath path = find_model(flags.model);
    ModelConfig config = read_config(path);
    if (flags.dtype != "auto") config.dtype = *parse_dtype(flags.dtype);
    for (const std::string& format : flags.formats) options.formats.push_back(parse_kv_format(format, config.dtype));
    if (!flags.curve.empty()) options.curve = read_curve(read_text_file(flags.curve), flags.curve, static_cast<double>(options.context));
    result = make_byte_plan(path.name, config, options);
  } catch (const Error& error) {
    throw OptionError(error.what());
  }
  if (!flags.html.empty()) write_text_file(flags.html, to_html(result));
  if (flags.json) {
    fmt::print("{}\n", as_json(result).dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
  } else {
    fmt::print("{}", to_table(result));
  }
}

}  // namespace

void add_plan(CLI::App& app) {
  auto flags = std::make_shared<PlanFlags>();
  PlanOptions& o = flags->options;
  CLI::App* command = app.add_subcommand("plan", "What a KV cache costs and holds in every format, calculated from a config.json");
  command->add_option("model,-m,--model", flags->model, "A config.json, a Hugging Face folder, an org/name in the local cache, or a .gguf file")->required();
  command->add_option("--kv-cache-memory-bytes", flags->pool, "Size of the pool, such as 40GiB");
  command->add_option("--gpu-memory", flags->gpu_memory, "The GPU's memory, such as 141GiB: the pool is what weights and scratch leave");
  command->add_option("--gpu-memory-utilization", o.gpu_memory_utilization, "Share of it to use")->check(number_between(0.01, 1))->capture_default_str();
  command->add_option("--reserved-memory", flags->reserved, "Of it, left for what cannot be calculated (CUDA's context, graphs)");
  command->add_option("--multiprocessors", o.multiprocessors, "Of the GPU")->check(CLI::Range(1, 1024))->capture_default_str();
  command->add_option("--context", o.context, "Cached tokens of a sequence when decoding begins")->capture_default_str();
  command->add_option("--output", o.output, "Tokens out of a request")->capture_default_str();
  command->add_option("--batch", o.batch, "Sequences of a decode step")->capture_default_str();
  command->add_option("--kv-cache-dtype", flags->formats, "Formats to plan, separated by semicolons (all pairs of 16, 8 and 4 bits)")->delimiter(';');
  command->add_option("--dtype", flags->dtype, "The model's 16-bit type")->check(CLI::IsMember({"auto", "float16", "bfloat16"}))->capture_default_str();
  command->add_option("--block-size", o.page_size, "Token slots of a page")->capture_default_str();
  command->add_option("--max-num-seqs", o.max_sequences, "Sequences that run at once")->capture_default_str();
  command->add_option("--max-num-batched-tokens", o.max_tokens, "Tokens a step may compute")->capture_default_str();
  command->add_option("-T,--tensor-parallel-size", o.ranks, "Plan one rank of as many")->capture_default_str();
  command->add_option("--other-step-bytes", o.other_step_bytes, "Bytes a decode step reads beside weights and cache")->check(number_between(0, 1e18));
  command->add_option("--max-transfer-bytes", flags->transfer, "Largest NVMe command (128KiB)");
  command->add_option("--chunk-tokens", o.chunk_tokens, "Tokens of an offloaded chunk")->capture_default_str();
  LinkWorkload &stream = flags->workloads[0], &reload = flags->workloads[1], &handover = flags->workloads[2];
  const CLI::Validator seconds = number_between(1e-6, 1e6), rate = number_between(0, 1e9);
  command->add_option("--step-deadline", stream.deadline_s, "Streaming overflow: seconds of a decode step")->check(seconds)->capture_default_str();
  command->add_option("--offloaded-share", stream.share, "Streaming overflow: share of the cache that is not resident")->check(number_between(0, 1))->capture_default_str();
  command->add_option("--streaming-sequences", stream.concurrent, "Streaming overflow: sequences of a step that stream")->check(number_between(1, 1e6))->capture_default_str();
  command->add_option("--reload-deadline", reload.deadline_s, "Reload: seconds it may take")->check(seconds)->capture_default_str();
  command->add_option("--reloads-per-second", reload.events_per_second, "Reload: how many arrive; 0 = one alone")->check(rate)->capture_default_str();
  command->add_option("--handover-deadline", handover.deadline_s, "Hand-over: seconds it may take")->check(seconds)->capture_default_str();
  command->add_option("--handovers-per-second", handover.events_per_second, "Hand-over: how many; 0 = one alone")->check(rate)->capture_default_str();
  command->add_option("--fit", flags->curve, "What `keel fit --json` printed: the throughput that resident requests buy, at --context");
  command->add_option("--html", flags->html, "File for a page of charts and numbers");
  command->add_flag("--json", flags->json, "As JSON");
  command->callback([flags] { plan(*flags); });
}

}  // namespace keel
