// keel calibrate: the largest |key| and |value| of each layer and KV head over a text, as scales for FP8.
#include <algorithm>

#include "base/error.h"
#include "base/log.h"
#include "base/text_file.h"
#include "options.h"

namespace keel {
namespace {

struct CalibrateFlags {
  ModelFlags model;
  std::string data, output;
  std::int64_t max_tokens = 32'768;
  int threads = 0;
};

constexpr std::int64_t kWindow = 1024;  // tokens a forward, each window from position 0

void calibrate(const CalibrateFlags& flags) {
  const ModelPath path = flags.model.path();
  check_calibration_target(flags.output);
  const std::shared_ptr<const Tokenizer> tokenizer = open_tokenizer(path);
  if (!tokenizer) fail("{}: no tokenizer beside the weights", flags.model.model);
  std::vector<TokenId> ids = tokenizer->encode(read_text_file(flags.data), {});
  if (static_cast<std::int64_t>(ids.size()) > flags.max_tokens) ids.resize(flags.max_tokens);
  if (ids.empty()) fail("{}: holds no text to calibrate on", flags.data);

  const LoadedModel model = load_model(path, flags.model.load_options());
  const ModelConfig& config = model.config;
  const KvGeometry geometry{config.layers, config.kv_heads, config.head_dim};
  const std::int64_t window = std::min(kWindow, config.max_positions);
  const KvLayout layout(parse_kv_format("k16v16", config.dtype), geometry);
  KvPool pool(layout, KvScales::unit(geometry), (window + 15) / 16 * layout.page_bytes());
  WorkerPool workers(flags.threads);
  Decoder decoder(model, layout, window, 1, workers.threads());

  CalibrationRecord record{.model = path.name, .data = std::filesystem::path(flags.data).filename().string(),
                           .tokens = static_cast<std::int64_t>(ids.size()), .geometry = geometry,
                           .key_maxima = std::vector<float>(config.layers * config.kv_heads),
                           .value_maxima = std::vector<float>(config.layers * config.kv_heads)};
  decoder.on_new_kv([&](std::int64_t layer, const StepRows& rows, const float* k, const float* v) {
    record.observe(layer, static_cast<std::int64_t>(rows.tokens.size()), k, v);
  });
  std::vector<PageId> pages;
  for (std::int64_t i = 0; i < pool.pages(); ++i) pages.push_back(*pool.allocate());
  ProgressBar progress("calibrating", record.tokens);
  for (std::int64_t start = 0; start < record.tokens; start += window) {
    const std::int64_t count = std::min(window, record.tokens - start);
    StepRows rows;
    for (std::int64_t i = 0; i < count; ++i) {
      rows.tokens.push_back(ids[start + i]);
      rows.positions.push_back(static_cast<std::int32_t>(i));
      rows.slots.push_back(pages[i / 16] * 16 + i % 16);
    }
    rows.sequences.push_back({.first_row = 0, .rows = count, .context = count, .pages = pages.data()});
    decoder.forward(Stream{&workers}, rows, pool);
    progress.advance(count);
  }
  write_calibration(flags.output, record);
  log_info("{}: scales of {} layers x {} KV heads from {} tokens of {}", flags.output, config.layers, config.kv_heads,
           record.tokens, flags.data);
}

}  // namespace

void add_calibrate(CLI::App& app) {
  auto flags = std::make_shared<CalibrateFlags>();
  CLI::App* command = app.add_subcommand("calibrate", "Make a file of FP8 scales from a text");
  flags->model.add_to(*command);
  command->add_option("--data", flags->data, "Text to calibrate on")->required();
  command->add_option("-o,--output", flags->output, "File to write; serve it with --kv-scales")->required();
  command->add_option("--max-tokens", flags->max_tokens, "Tokens of the text to use")->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 40))->capture_default_str();
  command->add_option("-t,--threads", flags->threads, "Threads that compute; 0 = one a processor")->capture_default_str();
  command->callback([flags] { calibrate(*flags); });
}

}  // namespace keel
