#include "options.h"

#include <charconv>
#include <filesystem>

#include "base/bytes.h"
#include "base/json.h"
#include "base/log.h"
#include "base/option_error.h"
#include "base/text_file.h"
#include "kv/format.h"
#include "lab/qualify/model_digest.h"
#include "lab/qualify/plan.h"
#include "lab/qualify/qualified_format.h"
#include "lab/qualify/qualify.h"

namespace keel {

namespace {

// Refuses text that is not all of a number which `fits`.
template <class Number>
CLI::Validator number_check(const std::string& wanted, std::function<bool(Number)> fits) {
  return CLI::Validator(
      [wanted, fits](std::string& text) {
        Number number{};
        const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
        const bool good = error == std::errc() && end == text.data() + text.size() && fits(number);
        return good ? std::string() : fmt::format("wanted {}, found {}", wanted, shortened(text, 40));
      },
      "");
}

}  // namespace

CLI::Validator number_between(double least, double most) {
  return number_check<double>(fmt::format("a number from {:g} to {:g}", least, most), [=](double number) { return number >= least && number <= most; });  // false for NaN
}

CLI::Validator whole_number() {
  return number_check<std::uint64_t>("a whole number from 0 to 18446744073709551615", [](std::uint64_t) { return true; });
}

void ModelFlags::add_to(CLI::App& command) {
  command
      .add_option("model,-m,--model", model,
                  "A Hugging Face folder, an org/name in the local Hugging Face cache, or a .gguf file")
      ->required();
  command.add_option("--load-format", load_format, "dummy: seeded random weights from a config.json alone")
      ->check(CLI::IsMember({"auto", "safetensors", "gguf", "dummy"}))
      ->capture_default_str();
  command.add_option("--dtype", dtype, "The model's 16-bit type: what 16 means in --kv-cache-dtype")
      ->check(CLI::IsMember({"auto", "float16", "bfloat16", "float32", "half"}))
      ->capture_default_str();
  command.add_option("--dummy-seed", dummy_seed, "Seed of --load-format dummy")->check(whole_number())->capture_default_str();
  command.add_option("--dummy-scale", dummy_scale, "Dummy weights are uniform between plus and minus this")->capture_default_str();
}

ModelPath ModelFlags::path() const {
  ModelPath found = find_model(model);
  if (load_format == "dummy" && found.kind == ModelFiles::hf_folder && !std::filesystem::exists(found.path / "tokenizer.json") &&
      !std::filesystem::exists(found.path / "tokenizer.model")) {
    found.kind = ModelFiles::config_json;
    found.path /= "config.json";
  }
  return found;
}

LoadOptions ModelFlags::load_options() const {
  LoadOptions options;
  options.format = load_format == "dummy"         ? LoadFormat::dummy
                   : load_format == "safetensors" ? LoadFormat::safetensors
                   : load_format == "gguf"        ? LoadFormat::gguf
                                                  : LoadFormat::automatic;
  options.dummy_seed = dummy_seed;
  options.dummy_scale = static_cast<float>(dummy_scale);
  if (dtype != "auto") options.dtype = parse_dtype(dtype);
  return options;
}

void EngineFlags::add_to(CLI::App& command) {
  command.add_option("--device", options.device, "auto (CUDA where there is a GPU that keel serves), cpu or cuda")
      ->check(CLI::IsMember({"auto", "cpu", "cuda"}))
      ->capture_default_str();
  command.add_option("--gpu-memory-utilization", options.gpu_memory_utilization,
                     "CUDA: of the device's memory, the share that may be in use once the KV cache is there, by all programs; where the cache's size is not given")
      ->check(number_between(0.01, 1))
      ->capture_default_str();
  command.add_flag("--enforce-eager", options.enforce_eager, "CUDA: launch decode steps instead of replaying graphs");
  command.add_option("--kv-cache-dtype", kv_cache_dtype,
                     "k16v16, k16v8, k8v8, k16v4, one type for both, k=TYPE,v=TYPE, or auto: the cheapest that `keel qualify` passed, else 16 bits");
  command.add_option("--qualification-dir", qualification_dir, "Where auto looks for records (~/.local/share/keel/qualifications)");
  command.add_option("--cache-type-k", cache_type_k, "Type of cached keys (also -ctk)");
  command.add_option("--cache-type-v", cache_type_v, "Type of cached values (also -ctv)");
  command.add_option("--kv-cache-memory-bytes", kv_cache_memory, "Size of the KV cache, such as 2GiB; otherwise what --max-num-seqs contexts need, at most 4 GiB or half of the memory available");
  command.add_option("--kv-scales", options.kv_scales, "Scales of FP8 keys and values, made by `keel calibrate`");
  command.add_option("-c,--max-model-len", options.max_model_len, "Longest context, prompt and answer together");
  command.add_option("--max-num-seqs", options.max_num_seqs, "Sequences that run at once")->capture_default_str();
  command.add_option("--max-num-batched-tokens", options.max_num_batched_tokens, "Tokens a step may compute; otherwise 2,048 on the CPU, 8,192 on CUDA");
  command.add_option("--block-size", options.block_size, "Token slots of a page: a multiple of 16 up to 256")->capture_default_str();
  command.add_option("--max-queued", options.max_queued, "Waiting requests past which new ones are refused")->capture_default_str();
  command.add_flag("--enable-prefix-caching,!--no-enable-prefix-caching", options.enable_prefix_caching, "Reuse the pages of equal prefixes (on)");
  command.add_flag("--enable-chunked-prefill,!--no-enable-chunked-prefill", options.enable_chunked_prefill, "Split long prompts over steps (on)");
  command.add_option("-t,--threads", options.threads, "Threads that compute; 0 = one a processor")->capture_default_str();
  command.add_option("--seed", options.seed, "Seed of requests that bring none")->check(whole_number())->capture_default_str();
}

EngineOptions EngineFlags::engine_options() const {
  EngineOptions result = options;
  const bool sides = !cache_type_k.empty() || !cache_type_v.empty();
  if (sides && !kv_cache_dtype.empty()) {
    throw CLI::ValidationError("--kv-cache-dtype and -ctk/-ctv both name the cache's types: give one of them");
  }
  if (!kv_cache_dtype.empty()) result.kv_cache_dtype = kv_cache_dtype;
  if (sides) {
    result.kv_cache_dtype = cache_type_k.empty() ? "" : "k=" + cache_type_k;
    if (!cache_type_v.empty()) result.kv_cache_dtype += (cache_type_k.empty() ? "v=" : ",v=") + cache_type_v;
  }
  if (!kv_cache_memory.empty()) {
    result.kv_cache_memory_bytes = parse_bytes(kv_cache_memory);
    if (result.kv_cache_memory_bytes == 0) refuse_option("--kv-cache-memory-bytes must be positive, found {}", kv_cache_memory);
  }
  return result;
}

std::shared_ptr<const Tokenizer> open_tokenizer(const ModelPath& path) {
  switch (path.kind) {
    case ModelFiles::hf_folder: return load_tokenizer(path.path);
    case ModelFiles::gguf: return load_tokenizer(GgufFile(path.path));
    case ModelFiles::config_json: return nullptr;
  }
  return nullptr;
}

std::unique_ptr<ChatTemplate> open_chat_template(const Tokenizer& tokenizer, const std::string& file) {
  const std::string source = file.empty() ? tokenizer.chat_template() : read_text_file(file);
  if (!file.empty() && source.empty()) fail("{}: wanted a chat template, found an empty file", file);
  return source.empty() ? nullptr : std::make_unique<ChatTemplate>(source);
}

// What auto stands for here, with the reasons said aloud.
static std::string qualified(const ModelPath& path, const ModelFlags& model, const EngineFlags& engine, const LoadedModel& loaded) {
  const LoadOptions load = model.load_options();
  const EngineOptions& options = engine.options;
  const std::filesystem::path folder = engine.qualification_dir.empty() ? qualification_folder() : std::filesystem::path(engine.qualification_dir);
  const QualifiedFormat found = qualified_format(folder, {.path = path,
                                                          .load = load,
                                                          .model = loaded,
                                                          .kv_scales = options.kv_scales,
                                                          .device = options.device,
                                                          .version = KEEL_VERSION,
                                                          .page_size = options.block_size,
                                                          .longest_context = options.max_model_len,
                                                          .threads = options.threads});
  for (const std::string& reason : found.reasons) log_info("{}", reason);
  if (!found.warning.empty()) log_warning("{}", found.warning);
  return found.kv_cache_dtype;
}

nlohmann::json run_subject(const ModelFlags& model, const EngineFlags& engine) {
  const ModelPath path = model.path();
  const LoadOptions load = model.load_options();
  const LoadedModel loaded = load_model(path, load);
  EngineOptions options = engine.engine_options();
  if (options.kv_cache_dtype == "auto") options.kv_cache_dtype = qualified(path, model, engine, loaded);
  const ModelConfig& config = loaded.config;
  const KvGeometry geometry{config.layers, config.kv_heads, config.head_dim, options.block_size};
  const KvFormat format = parse_kv_format(options.kv_cache_dtype, config.dtype);
  WorkerPool workers(options.threads);
  return subject_json({.model_name = path.name,
                       .model_digest = model_digest(path, load, workers),
                       .tokenizer_digest = tokenizer_digest(path, workers),
                       .weights = loaded.weights.format,
                       .control = parse_kv_format("k16v16", config.dtype),
                       .candidate = format,
                       .scales = options.kv_scales.empty() ? KvScales::unit(geometry) : read_calibration(options.kv_scales, geometry, format),
                       .device = choose_device(options.device),
                       .page_size = options.block_size},
                      KEEL_VERSION);
}

std::unique_ptr<Engine> open_engine(const ModelFlags& model, const EngineFlags& engine) {
  const ModelPath path = model.path();
  EngineOptions options = engine.engine_options();
  std::shared_ptr<const Tokenizer> tokenizer = open_tokenizer(path);
  LoadedModel loaded = load_model(path, model.load_options());
  if (options.kv_cache_dtype == "auto") options.kv_cache_dtype = qualified(path, model, engine, loaded);
  return std::make_unique<Engine>(std::move(loaded), std::move(tokenizer), path.name, options);
}

void print_attestation(const Attestation& a) {
  log_info("model {} ({}), weights {}, {}", a.model, a.family, a.weights_format, format_bytes(a.weight_bytes));
  log_info("KV cache {} ({}): keys {}, values {}, scales {}", short_name(a.format), to_string(a.format), name(a.format.key),
           name(a.format.value), a.scales);
  log_info("KV cache {} in {} pages of {} tokens: {} slots at {} bytes a token; longest context {}",
           format_bytes(a.pool_bytes), a.pages, a.page_size, a.slots, a.bytes_per_token, a.max_model_len);
  log_info("{}; scratch {}", a.device, format_bytes(a.scratch_bytes));
  if (const DeviceMemory& m = a.device_memory; m.total > 0) {
    log_info("GPU memory: {} of {} in use: weights {}, workspace {}, KV cache {} (peak of these three {}); context, modules, graphs and other programs {}",
             format_bytes(m.in_use), format_bytes(m.total), format_bytes(m.weights), format_bytes(m.workspace), format_bytes(m.cache), format_bytes(m.peak),
             format_bytes(m.other()));
  }
}

std::string render_chat(const ChatTemplate& chat_template, const Tokenizer& tokenizer, Json request) {
  if (!request.contains("add_generation_prompt")) request["add_generation_prompt"] = true;
  Result<std::string> text = chat_template.render_for(tokenizer, std::move(request));
  if (!text) fail("the chat template refused the messages: {}", text.error());
  return *text;
}

}  // namespace keel
